"""REST: users, for administrators."""

from fastapi import APIRouter, Response

from app.api.strict_route import StrictRoute
from app.auth import users
from app.dependencies import AdminCaller, ContainerDep, PageParams, SystemSession
from app.management import users as manage_users
from app.schemas.base import Items, given_fields, render_page
from app.schemas.users import NewUserBody, UserChanges, UserOut

router = APIRouter(tags=["accounts"], route_class=StrictRoute)


@router.post("/users", status_code=201)
async def create_user(body: NewUserBody, container: ContainerDep, caller: AdminCaller) -> UserOut:
    """Create a user, to give it a name or a key beforehand. Service and admin keys create the users that they name."""
    user = await manage_users.create_user(container.database, body.id, body.name, actor=caller.actor)
    return UserOut.of(user, container.discoverer.rollout)


@router.get("/users")
async def list_users(session: SystemSession, page: PageParams, container: ContainerDep) -> Items[UserOut]:
    """List users by id."""
    rollout = container.discoverer.rollout
    return render_page(await users.list_users(session, page), lambda user: UserOut.of(user, rollout))


@router.get("/users/{user_id}")
async def get_user(user_id: str, session: SystemSession, container: ContainerDep) -> UserOut:
    """Return a user with its settings and its number of tools."""
    return UserOut.of(await users.get_account(session, user_id), container.discoverer.rollout)


@router.patch("/users/{user_id}")
async def change_user(user_id: str, body: UserChanges, container: ContainerDep, caller: AdminCaller) -> UserOut:
    """Change the fields that are given; `settings` is replaced as a whole."""
    changes = given_fields(body)
    if "settings" in changes:
        changes["settings"] = body.settings.model_dump(exclude_none=True)
    user = await manage_users.change_user(container.database, user_id, changes, actor=caller.actor)
    return UserOut.of(user, container.discoverer.rollout)


@router.delete("/users/{user_id}", status_code=204)
async def delete_user(user_id: str, container: ContainerDep, caller: AdminCaller) -> Response:
    """Delete a user and everything that it owns. Its audit events stay."""
    await manage_users.delete_user(container.database, container.mcp_pool, user_id, actor=caller.actor)
    return Response(status_code=204)

"""REST: API keys, for administrators."""

from fastapi import APIRouter, Response

from app.api.strict_route import StrictRoute
from app.auth import keys
from app.auth.keys import NewKey
from app.dependencies import AdminCaller, ContainerDep, PageParams, SystemSession
from app.management import keys as manage_keys
from app.schemas.base import Items, render_page
from app.schemas.keys import CreatedKeyOut, KeyOut, NewKeyBody

router = APIRouter(tags=["accounts"], route_class=StrictRoute)


@router.post("/keys", status_code=201)
async def create_key(body: NewKeyBody, container: ContainerDep, caller: AdminCaller) -> CreatedKeyOut:
    """Create a key. The key itself is returned only once."""
    new_key = NewKey(**body.model_dump())
    key, secret = await manage_keys.create_key(container.database, new_key, container.quotas, actor=caller.actor)
    return CreatedKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.get("/keys")
async def list_keys(session: SystemSession, page: PageParams) -> Items[KeyOut]:
    """List keys by their prefixes, with the time of their last use. The keys themselves are not stored."""
    return render_page(await keys.list_keys(session, page), KeyOut.model_validate)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, container: ContainerDep, caller: AdminCaller) -> Response:
    """Revoke a key. It ends with the next request on every replica."""
    await manage_keys.revoke_key(container.database, key_id, caller_key_id=caller.key_id, actor=caller.actor)
    return Response(status_code=204)

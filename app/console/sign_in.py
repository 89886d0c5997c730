"""Signing in with a key, and out; and whom an administrator acts for."""

from fastapi import Request
from starlette.responses import Response

from app import audit
from app.auth.authentication import Caller
from app.auth.keys import hash_key
from app.auth.users import get_user
from app.console.flash import flash_message
from app.console.forms import Form
from app.console.page_context import (
    SIGN_IN,
    AdminCaller,
    DiscoverCaller,
    PageParams,
    forget_session,
    go,
    keep_session,
    page_router,
    posted,
)
from app.console.rendering import Pages
from app.console.session_cookie import start_session
from app.container import Container
from app.dependencies import ContainerDep
from app.errors import Forbidden, InvalidInput, Unauthenticated

router = page_router()

_UNKNOWN = "This key is not known here, or it has ended."
_WHOSE = "A service key acts for many users: name the one to act for."


@router.get("/sign-in")
async def show_sign_in(request: Request, pages: PageParams) -> Response:
    query = Form(request.query_params.multi_items())
    return _form(pages, query, None, 200, notice=flash_message(query.given("said")))


@router.post("/sign-in")
async def sign_in(request: Request, pages: PageParams, container: ContainerDep) -> Response:
    form = await posted(request)
    key, user_id = form.text("key"), form.given("user_id")
    try:
        caller = await container.authenticator.authenticate(key, user_id)
        if caller.kind == "service" and caller.user is None:
            raise InvalidInput(_WHOSE)
    except Unauthenticated as error:
        return _form(pages, form, _UNKNOWN, error.status)
    except (Forbidden, InvalidInput) as error:
        return _form(pages, form, error.message, error.status)
    await _record(container, caller, "console.sign_in")
    return keep_session(request, go(_inside(form)), start_session(hash_key(key), user_id).sealed(container.sealer))


@router.post("/sign-out")
async def sign_out(visit: DiscoverCaller) -> Response:
    await _record(visit.container, visit.caller, "console.sign_out")
    return forget_session(go(SIGN_IN, said="signed-out"))


@router.post("/act-for")
async def act_for(visit: AdminCaller) -> Response:
    """For one user from now on, or for none; no longer than the session would have lasted."""
    user_id = visit.form.given("user_id")
    if user_id is not None:
        async with visit.container.database.system_transaction() as session:
            await get_user(session, user_id)
    signed_in = start_session(visit.signed_in.digest, user_id, visit.signed_in.ends_at)
    target = "/console" if user_id is not None else "/console/users"
    return keep_session(visit.request, go(target), signed_in.sealed(visit.container.sealer))


def _form(pages: Pages, form: Form, error: str | None, status: int, notice: str | None = None) -> Response:
    values = {"visit": None, "form": form, "error": error, "notice": notice}
    return pages.render("sign_in.html", values, status)


def _inside(form: Form) -> str:
    """Only our own pages: an address that somebody made up must not lead a person who just signed in elsewhere."""
    back = form.text("back")
    return back if back.startswith("/console/") and not set("\\?#") & set(back) and "//" not in back else "/console"


async def _record(container: Container, caller: Caller, action: str) -> None:
    database = container.database
    user_id = None if caller.user is None else caller.user.id
    async with database.system_transaction() if user_id is None else database.transaction(user_id) as session:
        await audit.record(session, user_id, caller.actor, action, caller.key_id)

"""Signing in with a key, and out; and whom an administrator acts for."""

from fastapi import Request
from starlette.responses import Response

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
from app.dependencies import ContainerDep
from app.errors import Forbidden, InvalidInput, Unauthenticated
from app.management import sessions

router = page_router()

_UNKNOWN = "This key is not known here, or it has ended."


@router.get("/sign-in")
async def show_sign_in(request: Request, pages: PageParams) -> Response:
    query = Form(request.query_params.multi_items())
    return _form(pages, query, None, 200, notice=flash_message(query.given("said")))


@router.post("/sign-in")
async def sign_in(request: Request, pages: PageParams, container: ContainerDep) -> Response:
    form = await posted(request)
    key, user_id = form.text("key"), form.given("user_id")
    try:
        await sessions.sign_in(container.database, container.authenticator, key, user_id)
    except Unauthenticated as error:
        return _form(pages, form, _UNKNOWN, error.status)
    except (Forbidden, InvalidInput) as error:
        return _form(pages, form, error.message, error.status)
    return keep_session(request, go(_inside(form)), start_session(hash_key(key), user_id).sealed(container.sealer))


@router.post("/sign-out")
async def sign_out(visit: DiscoverCaller) -> Response:
    await sessions.sign_out(visit.container.database, visit.caller)
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

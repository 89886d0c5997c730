"""Sign in with a key, sign out, and select the user that an administrator acts for."""

from fastapi import Request
from starlette.responses import Response

from app.auth.keys import hash_key
from app.auth.users import get_user
from app.console.flash import FlashMessage, get_flash_message
from app.console.forms import Form
from app.console.page_context import (
    SIGN_IN,
    AdminPage,
    DiscoverPage,
    TemplatesDep,
    page_router,
    read_posted_form,
    redirect,
)
from app.console.rendering import Templates
from app.console.session_cookie import clear_session_cookie, set_session_cookie, start_session
from app.dependencies import ContainerDep
from app.errors import Forbidden, InvalidInput, Unauthenticated
from app.management import sessions

router = page_router()

# one message for all: it does not reveal whether a key ever existed
_INVALID_KEY = "This key is invalid, expired or revoked."


@router.get("/sign-in")
async def show_sign_in(request: Request, templates: TemplatesDep) -> Response:
    query = Form(request.query_params.multi_items())
    return _render_page(templates, query, None, 200, notice=get_flash_message(query.optional_text("notice")))


@router.post("/sign-in")
async def sign_in(request: Request, templates: TemplatesDep, container: ContainerDep) -> Response:
    form = await read_posted_form(request)
    key, user_id = form.text("key"), form.optional_text("user_id")
    try:
        await sessions.sign_in(container.database, container.authenticator, key, user_id)
    except Unauthenticated as error:
        return _render_page(templates, form, _INVALID_KEY, error.status)
    except (Forbidden, InvalidInput) as error:
        return _render_page(templates, form, error.message, error.status)
    console_session = start_session(hash_key(key), user_id)
    return set_session_cookie(request, redirect(_get_return_path(form)), console_session, container.sealer)


@router.post("/sign-out")
async def sign_out(context: DiscoverPage) -> Response:
    await sessions.sign_out(context.container.database, context.caller)
    return clear_session_cookie(redirect(SIGN_IN, notice="signed-out"))


@router.post("/act-for")
async def act_for(context: AdminPage) -> Response:
    """Start a session that acts for one user, or for none. It expires when the current session would."""
    user_id = context.form.optional_text("user_id")
    if user_id is not None:
        async with context.container.database.system_transaction() as session:
            await get_user(session, user_id)
    current = context.console_session
    console_session = start_session(current.key_digest, user_id, current.expires_at)
    target = "/console" if user_id is not None else "/console/users"
    return set_session_cookie(context.request, redirect(target), console_session, context.container.sealer)


def _render_page(
    templates: Templates, form: Form, error: str | None, status: int, notice: FlashMessage | None = None
) -> Response:
    values = {"context": None, "form": form, "error": error, "notice": notice}
    return templates.render("sign_in.html", values, status)


def _get_return_path(form: Form) -> str:
    """Return the page to open after signing in. Only paths of the console count: this prevents open redirects."""
    path = form.text("back")
    is_console_path = path.startswith("/console/") and not set("\\?#") & set(path) and "//" not in path
    return path if is_console_path else "/console"

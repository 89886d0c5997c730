"""Sign in with a key, sign out, and select the user that an administrator acts for. See also `single_sign_on`."""

from fastapi import Request
from starlette.responses import Response

from app.auth.keys import hash_key
from app.auth.users import get_account
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
from app.container import Container
from app.dependencies import ContainerDep
from app.errors import Forbidden, InvalidInput, Unauthenticated
from app.management import sessions

router = page_router()

# one message for all: it does not reveal whether a key ever existed
_INVALID_KEY = "This key is invalid, expired or revoked."


@router.get("/sign-in")
async def show_sign_in(request: Request, templates: TemplatesDep, container: ContainerDep) -> Response:
    query = Form(request.query_params.multi_items())
    notice = query.optional_text("notice")
    flow = None if container.sso is None else container.sso.code_flow
    sign_out_url = await flow.get_sign_out_url() if flow is not None and notice == "signed-out" else None
    return render_sign_in(
        templates, container, query, None, 200, notice=get_flash_message(notice), sign_out_url=sign_out_url
    )


@router.post("/sign-in")
async def sign_in(request: Request, templates: TemplatesDep, container: ContainerDep) -> Response:
    form = await read_posted_form(request)
    key, user_id = form.text("key"), form.optional_text("user_id")
    try:
        await sessions.sign_in(container.database, container.authenticator, key, user_id)
    except Unauthenticated as error:
        return render_sign_in(templates, container, form, _INVALID_KEY, error.status)
    except (Forbidden, InvalidInput) as error:
        return render_sign_in(templates, container, form, error.message, error.status)
    console_session = start_session(hash_key(key), user_id)
    return set_session_cookie(request, redirect(get_return_path(form)), console_session, container.sealer)


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
            await get_account(session, user_id)
    current = context.console_session
    console_session = start_session(current.subject, user_id, current.expires_at)
    target = "/console" if user_id is not None else "/console/users"
    return set_session_cookie(context.request, redirect(target), console_session, context.container.sealer)


def render_sign_in(
    templates: Templates,
    container: Container,
    form: Form,
    error: str | None,
    status: int,
    *,
    notice: FlashMessage | None = None,
    sign_out_url: str | None = None,
) -> Response:
    """`sign_out_url`: the identity provider's page for signing out there, too."""
    sso = container.sso
    values = {
        "context": None,
        "form": form,
        "error": error,
        "notice": notice,
        "provider": None if sso is None or sso.code_flow is None else sso.config.name,
        "back": get_return_path(form),
        "sign_out_url": sign_out_url,
    }
    return templates.render("sign_in.html", values, status)


def get_return_path(form: Form) -> str:
    """Return the page to open after signing in. Only paths of the console count: this prevents open redirects."""
    path = form.text("back")
    is_console_path = path.startswith("/console/") and not set("\\?#") & set(path) and "//" not in path
    return path if is_console_path else "/console"

"""What every page needs: the signed-in caller, a check of the permission, and a way to render the response."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from starlette.responses import RedirectResponse, Response

from app.auth.permissions import Caller, Permission
from app.auth.users import User
from app.console.flash import get_flash_message
from app.console.forms import Form, read_form
from app.console.rendering import Templates
from app.console.session_cookie import ConsoleSession, clear_session_cookie, read_session
from app.container import Container
from app.db.engine import Session
from app.dependencies import check_host_and_origin, get_admitted_caller
from app.errors import Forbidden, ToolscoutError, Unauthenticated

SIGN_IN = "/console/sign-in"

# The referrer policy is not `no-referrer`: browsers would then send "Origin: null" with the console's own forms, which
# the check of the origin would reject.
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class NoUserSelected(ToolscoutError):
    """An administrator who acts for no user requested a page about one user."""

    code = "bad_request"
    status = 400


@dataclass(frozen=True)
class PageContext:
    request: Request
    container: Container
    templates: Templates
    caller: Caller
    console_session: ConsoleSession
    form: Form

    @property
    def user(self) -> User:
        if self.caller.user is None:
            raise NoUserSelected("select a user to act for")
        return self.caller.user

    @property
    def query(self) -> Form:
        return Form(self.request.query_params.multi_items())

    def has_permission(self, permission: str) -> bool:
        return self.caller.has_permission(Permission(permission))

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        return self.container.database.transaction(self.user.id)

    def read_transaction(self) -> AbstractAsyncContextManager[Session]:
        """Like `transaction`, but over all users for an administrator who acts for no user."""
        return self.container.database.system_transaction() if self.caller.user is None else self.transaction()

    def audit_transaction(self) -> AbstractAsyncContextManager[Session]:
        """Like `transaction`, but for an administrator one that also sees the keys of other users and of nobody."""
        return self.container.database.system_transaction() if self.has_permission("administer") else self.transaction()

    def render(
        self, template: str, error: ToolscoutError | None = None, status: int | None = None, **values: Any
    ) -> Response:
        """Render a page. With an error, show it above the form, which keeps what the person typed."""
        page_values = {
            "context": self,
            "notice": get_flash_message(self.request.query_params.get("notice")),
            "error": None if error is None else error.message,
        }
        return self.templates.render(template, page_values | values, status or (200 if error is None else error.status))


def redirect(path: str, **query: str) -> Response:
    """Redirect with 303 after a form was accepted, so that reloading the next page does not submit it again."""
    url, hash_mark, fragment = path.partition("#")
    if query:
        url += ("&" if "?" in url else "?") + urlencode(query)
    return RedirectResponse(url + hash_mark + fragment, 303)


async def get_templates(request: Request) -> Templates:
    templates: Templates = request.app.state.templates
    return templates


TemplatesDep = Annotated[Templates, Depends(get_templates)]


async def get_page_context(request: Request, templates: TemplatesDep) -> PageContext:
    """Take the caller whose session's key was looked up, as for every request: a revoked key ends the session."""
    container: Container = request.app.state.container
    caller = get_admitted_caller(request)
    console_session = read_session(request, container.sealer)
    if console_session is None:  # it has just expired
        raise Unauthenticated("sign in first")
    form = await read_posted_form(request)
    context = PageContext(request, container, templates, caller, console_session, form)
    request.state.page_context = context
    token = request.headers.get("x-csrf-token") or form.text("csrf")
    if request.method == "POST" and not console_session.has_token(token):
        raise Forbidden("this form belongs to another session: go back, reload the page and try again")
    return context


async def read_posted_form(request: Request) -> Form:
    if request.method != "POST":
        return Form()
    return read_form(request.headers.get("content-type", ""), await request.body())


def require(permission: Permission) -> Callable[[PageContext], Awaitable[PageContext]]:
    """Declare the permission that a page needs, as the API's routes do."""

    async def check(context: Annotated[PageContext, Depends(get_page_context)]) -> PageContext:
        context.caller.require_permission(permission)
        return context

    return check


DiscoverPage = Annotated[PageContext, Depends(require(Permission.DISCOVER))]
ToolsReadPage = Annotated[PageContext, Depends(require(Permission.READ_TOOLS))]
CatalogReadPage = Annotated[PageContext, Depends(require(Permission.READ_CATALOG))]
CatalogWritePage = Annotated[PageContext, Depends(require(Permission.WRITE_CATALOG))]
ExecutePage = Annotated[PageContext, Depends(require(Permission.EXECUTE))]
AuditReadPage = Annotated[PageContext, Depends(require(Permission.READ_AUDIT))]
AdminPage = Annotated[PageContext, Depends(require(Permission.ADMINISTER))]


class _PageRoute(APIRoute):
    """Render errors as pages, redirect to the sign-in page if needed, and add the security headers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                response = await handler(request)
            except ToolscoutError as error:
                response = _render_error(request, error)
            for name, value in _SECURITY_HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return handle_page


def page_router(prefix: str = "/console") -> APIRouter:
    return APIRouter(
        prefix=prefix,
        route_class=_PageRoute,
        include_in_schema=False,
        dependencies=[Depends(check_host_and_origin)],
    )


def _render_error(request: Request, error: ToolscoutError) -> Response:
    # the script requests parts of pages, into which it puts the response
    is_fragment = "x-fragment" in request.headers
    if isinstance(error, NoUserSelected):
        return redirect("/console/users", notice="select-user")
    if isinstance(error, Unauthenticated) and not is_fragment:
        return clear_session_cookie(redirect(SIGN_IN, **_return_path(request)))
    templates: Templates = request.app.state.templates
    values = {
        "context": getattr(request.state, "page_context", None),
        "notice": None,
        "error": error.message,
        "title": error.title,
    }
    response = templates.render("part_error.html" if is_fragment else "error.html", values, error.status)
    response.headers.update(error.headers)
    return response


def _return_path(request: Request) -> dict[str, str]:
    """Return the page to open after signing in. A submitted form is lost, so only GET requests count."""
    path = request.url.path
    return {"back": path} if request.method == "GET" and path != "/console" else {}

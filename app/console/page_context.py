"""What every page asks for: who is signed in, whether they may, and how to answer."""

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
from app.console.flash import flash_message
from app.console.forms import Form, read_form
from app.console.rendering import Pages
from app.console.session_cookie import COOKIE, LIFE_S, SignedIn, open_session
from app.container import Container
from app.db.engine import Session
from app.dependencies import check_host_and_origin
from app.errors import Forbidden, ToolscoutError, Unauthenticated

SIGN_IN = "/console/sign-in"

# Not `no-referrer`: with that, browsers call the origin of our own forms "null", and `check_host_and_origin` could not know them.
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class NoUserSelected(ToolscoutError):
    """An administrator has asked for a page about one user, and acts for none."""

    code = "bad_request"
    status = 400


@dataclass(frozen=True)
class PageContext:
    request: Request
    container: Container
    pages: Pages
    caller: Caller
    signed_in: SignedIn
    form: Form

    @property
    def user(self) -> User:
        if self.caller.user is None:
            raise NoUserSelected("choose a user to act for")
        return self.caller.user

    @property
    def query(self) -> Form:
        return Form(self.request.query_params.multi_items())

    @property
    def wants_fragment(self) -> bool:
        return _is_fragment(self.request)

    def may(self, permission: str) -> bool:
        return self.caller.has_permission(Permission(permission))

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        return self.container.database.transaction(self.user.id)

    def show(
        self, template: str, error: ToolscoutError | None = None, status: int | None = None, **values: Any
    ) -> Response:
        """With an error: the same page again, with what was typed and what is wrong with it."""
        shown = {
            "visit": self,
            "notice": flash_message(self.request.query_params.get("said")),
            "error": None if error is None else error.message,
        }
        return self.pages.render(template, shown | values, status or (200 if error is None else error.status))


def go(path: str, **query: str) -> Response:
    """After a form was taken: reloading the next page sends nothing again."""
    address, hash_mark, place = path.partition("#")
    if query:
        address += ("&" if "?" in address else "?") + urlencode(query)
    return RedirectResponse(address + hash_mark + place, 303)


def keep_session(request: Request, response: Response, cookie: str) -> Response:
    secure = request.url.scheme == "https"
    response.set_cookie(
        COOKIE, cookie, max_age=LIFE_S, path="/console", httponly=True, samesite="strict", secure=secure
    )
    return response


def forget_session(response: Response) -> Response:
    response.delete_cookie(COOKIE, path="/console", httponly=True, samesite="strict")
    return response


async def get_pages(request: Request) -> Pages:
    pages: Pages = request.app.state.pages
    return pages


PageParams = Annotated[Pages, Depends(get_pages)]


async def get_page_context(request: Request, pages: PageParams) -> PageContext:
    """Through the keyring, every time: a key that was revoked ends here as everywhere."""
    container: Container = request.app.state.container
    signed_in = open_session(container.sealer, request.cookies.get(COOKIE, ""))
    if signed_in is None:
        raise Unauthenticated("sign in first")
    caller = await container.authenticator.authenticate_digest(signed_in.digest, signed_in.user_id)
    form = await posted(request)
    visit = PageContext(request, container, pages, caller, signed_in, form)
    request.state.visit = visit
    if request.method == "POST" and not signed_in.knows(_token(request, form)):
        raise Forbidden("this form is from another session: go back, reload the page and try again")
    return visit


async def posted(request: Request) -> Form:
    if request.method != "POST":
        return Form()
    return read_form(request.headers.get("content-type", ""), await request.body())


def _token(request: Request, form: Form) -> str:
    return request.headers.get("x-csrf-token") or form.text("csrf")


def require(permission: Permission) -> Callable[[PageContext], Awaitable[PageContext]]:
    """The page's declared permission, as the API's routes declare theirs."""

    async def check(visit: Annotated[PageContext, Depends(get_page_context)]) -> PageContext:
        visit.caller.require_permission(permission)
        return visit

    return check


DiscoverCaller = Annotated[PageContext, Depends(require(Permission.DISCOVER))]
ToolsReadCaller = Annotated[PageContext, Depends(require(Permission.READ_TOOLS))]
CatalogReadCaller = Annotated[PageContext, Depends(require(Permission.READ_CATALOG))]
CatalogWriteCaller = Annotated[PageContext, Depends(require(Permission.WRITE_CATALOG))]
AuditReadCaller = Annotated[PageContext, Depends(require(Permission.READ_AUDIT))]
AdminCaller = Annotated[PageContext, Depends(require(Permission.ADMINISTER))]


class _PageRoute(APIRoute):
    """Tells errors as pages, sends whoever is not signed in to the sign-in, and lets no browser guess or keep."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def safe(request: Request) -> Response:
            try:
                response = await handler(request)
            except ToolscoutError as error:
                response = _told(request, error)
            response.headers.update(_SAFE)
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return safe


def page_router() -> APIRouter:
    return APIRouter(
        prefix="/console",
        route_class=_PageRoute,
        include_in_schema=False,
        dependencies=[Depends(check_host_and_origin)],
    )


def _told(request: Request, error: ToolscoutError) -> Response:
    visit: PageContext | None = getattr(request.state, "visit", None)
    if isinstance(error, NoUserSelected):
        return go("/console/users", said="choose-a-user")
    if isinstance(error, Unauthenticated) and not _is_fragment(request):
        return forget_session(go(SIGN_IN, **_back(request)))
    pages: Pages = request.app.state.pages
    template = "part_error.html" if _is_fragment(request) else "error.html"
    response: Response = pages.render(
        template, {"visit": visit, "notice": None, "error": error.message, "title": error.title}, error.status
    )
    response.headers.update(error.headers)
    return response


def _back(request: Request) -> dict[str, str]:
    """Where to go on after signing in; what was being sent is lost, so only pages count."""
    path = request.url.path
    return {"back": path} if request.method == "GET" and path != "/console" else {}


def _is_fragment(request: Request) -> bool:
    return "x-fragment" in request.headers

"""The page to which an authorization server sends the user's browser back after a sign-in to a server.

The browser that comes back has no key. The `state` parameter says which sign-in it is about; if that one began in the
console, a cookie says that it is the same browser.
"""

import secrets
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from app.connections.config import CALLBACK_PATH
from app.connections.models import Callback, SignInResult
from app.console.page_context import TemplatesDep, page_router
from app.dependencies import ContainerDep

COOKIE_NAME = "toolscout_connect"
_COOKIE_S = 600
_HEADERS = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}

router = page_router(prefix="")


def make_browser_secret() -> str:
    """Return a secret for `Connector.start(…, browser=…)`: only the browser that has it can finish the sign-in."""
    return secrets.token_urlsafe(32)


def set_browser_cookie(request: Request, response: Response, secret: str) -> Response:
    """Give the secret to the browser. Not `strict`: the browser comes back from another site."""
    response.set_cookie(
        COOKIE_NAME,
        secret,
        max_age=_COOKIE_S,
        path=CALLBACK_PATH,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return response


@router.get(CALLBACK_PATH)
async def finish_sign_in(request: Request, container: ContainerDep, templates: TemplatesDep) -> Response:
    query = request.query_params
    callback = Callback(query.get("state"), query.get("code"), query.get("iss"), query.get("error"))
    result = await container.connector.finish(callback, request.cookies.get(COOKIE_NAME))
    if result.redirect_url is not None and not _is_own(result.redirect_url, container.connector.config.base_url):
        response: Response = RedirectResponse(result.redirect_url, 303)
    else:
        response = _render(templates, result)
    response.headers.update(_HEADERS)
    return response


def _render(templates: TemplatesDep, result: SignInResult) -> Response:
    """A page, not a redirect: the console's cookie is `strict`, and only our own page can lead back to the console."""
    title = "Signed in" if result.error is None else "Not signed in"
    values = {"context": None, "notice": None, "title": title, "result": result}
    return templates.render("server_signed_in.html", values, 200 if result.error is None else 400)


def _is_own(url: str, base_url: str | None) -> bool:
    return base_url is not None and urlsplit(url)[:2] == urlsplit(base_url)[:2]

"""Sign in at the identity provider.

What is pending while the person is there is in an encrypted cookie, so that any replica can finish it. That cookie is
`lax`, because the browser returns from another site. The session's cookie is `strict`: browsers do not send it along a
redirect that began elsewhere, so that the last step is a page of ours which opens the console.
"""

import base64
import binascii
import time
from dataclasses import astuple, dataclass

import orjson
from fastapi import Request
from starlette.responses import Response

from app.auth.oidc.code_flow import CodeFlow, PendingSignIn
from app.console.forms import Form
from app.console.page_context import SIGN_IN, TemplatesDep, page_router, redirect
from app.console.session_cookie import set_session_cookie, start_session
from app.console.sign_in import get_return_path, render_sign_in
from app.container import Container
from app.crypto import Sealer, SecretOwner
from app.dependencies import ContainerDep, get_base_url
from app.errors import ConfigurationError, Misdirected, NotFound, ToolscoutError, Unauthenticated, Unavailable
from app.management import sessions

router = page_router()

COOKIE_NAME = "toolscout_sign_in"
CALLBACK = f"{SIGN_IN}/callback"
_LIFETIME_S = 600
_OWNER = SecretOwner("", "console", "sign-in")


@dataclass(frozen=True)
class _SignIn:
    pending: PendingSignIn
    back: str
    expires_at: int

    def seal(self, sealer: Sealer) -> str:
        content = orjson.dumps([astuple(self.pending), self.back, self.expires_at])
        return base64.urlsafe_b64encode(sealer.seal(content, _OWNER)).decode()


@router.get("/sign-in/provider")
async def start_sign_in(request: Request, templates: TemplatesDep, container: ContainerDep) -> Response:
    """Send the browser to the identity provider."""
    flow, form = _get_flow(container), Form(request.query_params.multi_items())
    base_url = get_base_url(request, container.settings)
    if base_url is None:
        raise Misdirected("this service does not serve that host: the operator can set TOOLSCOUT_PUBLIC_URL")
    try:
        url, pending = await flow.start(f"{base_url}{CALLBACK}")
    except Unavailable as error:
        return render_sign_in(templates, container, form, error.message, error.status)
    sign_in = _SignIn(pending, get_return_path(form), int(time.time()) + _LIFETIME_S)
    response = redirect(url)
    response.set_cookie(
        COOKIE_NAME,
        sign_in.seal(container.sealer),
        max_age=_LIFETIME_S,
        path=SIGN_IN,
        httponly=True,
        samesite="lax",
        secure=base_url.startswith("https:"),
    )
    return response


@router.get("/sign-in/callback")
async def finish_sign_in(request: Request, templates: TemplatesDep, container: ContainerDep) -> Response:
    """Check with what the browser returns, and start the session."""
    flow = _get_flow(container)
    sign_in = _open_cookie(request.cookies.get(COOKIE_NAME, ""), container.sealer)
    try:
        if sign_in is None:
            raise Unauthenticated("this sign-in was not started in this browser, or took too long; start again")
        identity = await flow.finish(sign_in.pending, request.query_params)
        person = await sessions.sign_in_person(container.database, container.authenticator, identity)
    except ToolscoutError as error:
        response = render_sign_in(templates, container, Form(), error.message, error.status)
    else:
        values = {"context": None, "notice": None, "error": None, "back": sign_in.back}
        response = templates.render("signed_in.html", values)
        set_session_cookie(request, response, start_session(person, None), container.sealer)
    response.delete_cookie(COOKIE_NAME, path=SIGN_IN, httponly=True, samesite="lax")
    return response


def _get_flow(container: Container) -> CodeFlow:
    if container.sso is None or container.sso.code_flow is None:
        raise NotFound("sign-in at an identity provider is not set up (TOOLSCOUT_OIDC_CLIENT_ID)")
    return container.sso.code_flow


def _open_cookie(cookie: str, sealer: Sealer) -> _SignIn | None:
    try:
        content = sealer.open(base64.urlsafe_b64decode(cookie.encode()), _OWNER)
    except (ConfigurationError, binascii.Error, ValueError):
        return None
    pending, back, expires_at = orjson.loads(content)
    return None if expires_at <= time.time() else _SignIn(PendingSignIn(*pending), back, expires_at)

"""The console's session: an encrypted cookie that names the key a person signed in with.

The cookie holds the key's digest, not the key, so that a decrypted cookie is no credential for the API. Every request
looks the key up again: revoking the key ends the session.
"""

import base64
import binascii
import hmac
import secrets
import time
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from app.auth.credentials import Credentials
from app.container import Container
from app.crypto import Sealer, SecretOwner
from app.errors import ConfigurationError

COOKIE_NAME = "toolscout_session"
LIFETIME_S = 12 * 3600

_OWNER = SecretOwner("", "console", "session")


@dataclass(frozen=True)
class ConsoleSession:
    key_digest: bytes
    user_id: str | None
    """The user that a service or admin key acts for."""
    csrf_token: str
    """Every form of this session carries it. A page of another site cannot know it."""
    expires_at: int

    def seal(self, sealer: Sealer) -> str:
        """Return the session as an encrypted cookie value."""
        parts = [self.key_digest.hex(), self.user_id, self.csrf_token, self.expires_at]
        return base64.urlsafe_b64encode(sealer.seal(orjson.dumps(parts), _OWNER)).decode()

    def has_token(self, token: str) -> bool:
        return hmac.compare_digest(self.csrf_token.encode(), token.encode())


def start_session(key_digest: bytes, user_id: str | None, expires_at: int | None = None) -> ConsoleSession:
    csrf_token = secrets.token_urlsafe(24)
    return ConsoleSession(key_digest, user_id, csrf_token, expires_at or int(time.time()) + LIFETIME_S)


def open_session(sealer: Sealer, cookie: str) -> ConsoleSession | None:
    """Decrypt a cookie value. Return None if it is not valid or has expired."""
    try:
        parts = sealer.open(base64.urlsafe_b64decode(cookie.encode()), _OWNER)
    except (ConfigurationError, binascii.Error, ValueError):
        return None
    key_digest, user_id, csrf_token, expires_at = orjson.loads(parts)
    if expires_at <= time.time():
        return None
    return ConsoleSession(bytes.fromhex(key_digest), user_id, csrf_token, expires_at)


def read_session(request: Request, sealer: Sealer) -> ConsoleSession | None:
    """Return the session in the request's cookie, or None if there is no valid one."""
    return open_session(sealer, request.cookies.get(COOKIE_NAME, ""))


def read_session_credentials(scope: Scope, container: Container) -> Credentials | None:
    """Return the credentials of the session in the request's cookie, or None if there is no valid one."""
    session = read_session(Request(scope), container.sealer)
    return None if session is None else Credentials(session.key_digest, session.user_id)


def set_session_cookie(request: Request, response: Response, session: ConsoleSession, sealer: Sealer) -> Response:
    response.set_cookie(
        COOKIE_NAME,
        session.seal(sealer),
        max_age=LIFETIME_S,
        path="/console",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


def clear_session_cookie(response: Response) -> Response:
    response.delete_cookie(COOKIE_NAME, path="/console", httponly=True, samesite="strict")
    return response

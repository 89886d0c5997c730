"""The console's session: an encrypted cookie that names the key, or the person, that signed in.

The cookie holds the key's digest, not the key, so that a decrypted cookie is no credential for the API. Every request
looks the key or the person's user up again: revoking the key, or deleting the user, ends the session.
"""

import base64
import binascii
import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import datetime

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from app.auth.credentials import Credentials
from app.auth.identity import Identity
from app.container import Container
from app.crypto import Sealer, SecretOwner
from app.errors import ConfigurationError

COOKIE_NAME = "toolscout_session"
LIFETIME_S = 12 * 3600

_KEY_SESSION = SecretOwner("", "console", "session")
_PERSON_SESSION = SecretOwner("", "console", "session of a person")


@dataclass(frozen=True)
class ConsoleSession:
    subject: bytes | Identity
    """The digest of the key, or the person, that signed in."""
    user_id: str | None
    """The user that a service key or an administrator acts for."""
    csrf_token: str
    """Every form of this session carries it. A page of another site cannot know it."""
    expires_at: int

    def seal(self, sealer: Sealer) -> str:
        """Return the session as an encrypted cookie value."""
        is_key = isinstance(self.subject, bytes)
        subject = self.subject.hex() if isinstance(self.subject, bytes) else _dump_identity(self.subject)
        parts = [subject, self.user_id, self.csrf_token, self.expires_at]
        sealed = sealer.seal(orjson.dumps(parts), _KEY_SESSION if is_key else _PERSON_SESSION)
        return base64.urlsafe_b64encode(sealed).decode()

    def has_token(self, token: str) -> bool:
        return hmac.compare_digest(self.csrf_token.encode(), token.encode())


def start_session(subject: bytes | Identity, user_id: str | None, expires_at: int | None = None) -> ConsoleSession:
    csrf_token = secrets.token_urlsafe(24)
    return ConsoleSession(subject, user_id, csrf_token, expires_at or int(time.time()) + LIFETIME_S)


def open_session(sealer: Sealer, cookie: str) -> ConsoleSession | None:
    """Decrypt a cookie value. Return None if it is not valid or has expired."""
    for owner in (_KEY_SESSION, _PERSON_SESSION):
        try:
            parts = sealer.open(base64.urlsafe_b64decode(cookie.encode()), owner)
        except (ConfigurationError, binascii.Error, ValueError):
            continue
        subject, user_id, csrf_token, expires_at = orjson.loads(parts)
        if expires_at <= time.time():
            return None
        opened = bytes.fromhex(subject) if owner is _KEY_SESSION else _load_identity(subject)
        return ConsoleSession(opened, user_id, csrf_token, expires_at)
    return None


def _dump_identity(identity: Identity) -> list[str | bool | None]:
    created_at = None if identity.user_created_at is None else identity.user_created_at.isoformat()
    return [identity.issuer, identity.user_id, identity.is_admin, created_at]


def _load_identity(parts: list[str]) -> Identity:
    issuer, user_id, is_admin, created_at = parts
    return Identity(issuer, user_id, bool(is_admin), None, datetime.fromisoformat(created_at))


def read_session(request: Request, sealer: Sealer) -> ConsoleSession | None:
    """Return the session in the request's cookie, or None if there is no valid one."""
    return open_session(sealer, request.cookies.get(COOKIE_NAME, ""))


def read_session_credentials(scope: Scope, container: Container) -> Credentials | None:
    """Return the credentials of the session in the request's cookie, or None if there is no valid one."""
    session = read_session(Request(scope), container.sealer)
    if session is None:
        return None
    issuer = None if container.sso is None else container.sso.config.issuer
    if isinstance(session.subject, Identity) and session.subject.issuer != issuer:
        return None  # the operator has replaced or removed the identity provider since
    return Credentials(session.subject, session.user_id)


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

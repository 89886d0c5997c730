"""Who is signed in, as a cookie that only we can read or write.

It holds the key's digest and never the key: whoever could open it could still not call the API with it. The key is
looked up anew with every request, so that revoking it ends the session.
"""

import base64
import binascii
import hmac
import secrets
import time
from dataclasses import dataclass

import orjson

from app.crypto import Sealer, SecretOwner
from app.errors import ConfigurationError

COOKIE = "toolscout_session"
LIFE_S = 12 * 3600

_OWNER = SecretOwner("", "console", "session")


@dataclass(frozen=True)
class SignedIn:
    digest: bytes
    """Of the key."""
    user_id: str | None
    """Whom a service or admin key acts for."""
    token: str
    """That every form of this session carries: another site's page cannot know it."""
    ends_at: int

    def sealed(self, sealer: Sealer) -> str:
        parts = [self.digest.hex(), self.user_id, self.token, self.ends_at]
        return base64.urlsafe_b64encode(sealer.seal(orjson.dumps(parts), _OWNER)).decode()

    def knows(self, token: str) -> bool:
        return hmac.compare_digest(self.token.encode(), token.encode())


def start_session(digest: bytes, user_id: str | None, ends_at: int | None = None) -> SignedIn:
    return SignedIn(digest, user_id, secrets.token_urlsafe(24), ends_at or int(time.time()) + LIFE_S)


def open_session(sealer: Sealer, cookie: str) -> SignedIn | None:
    """None for what is not ours, and for what has ended."""
    try:
        parts = sealer.open(base64.urlsafe_b64decode(cookie.encode()), _OWNER)
    except (ConfigurationError, binascii.Error, ValueError):
        return None
    digest, user_id, token, ends_at = orjson.loads(parts)
    return SignedIn(bytes.fromhex(digest), user_id, token, ends_at) if ends_at > time.time() else None

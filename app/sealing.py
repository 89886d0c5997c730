"""Seals credentials so that a dump of the database tells nothing.

A sealed value is bound to the user, the server and the field that it belongs to: in another row it does not open.
"""

import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.errors import ConfigurationError

_NONCE_BYTES = 12


@dataclass(frozen=True)
class Owner:
    user_id: str
    server_id: str
    field: str

    def as_bytes(self) -> bytes:
        return "\x1f".join((self.user_id, self.server_id, self.field)).encode()


class Sealer:
    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, secret: bytes, owner: Owner) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, owner.as_bytes())

    def open(self, sealed: bytes, owner: Owner) -> bytes:
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, owner.as_bytes())
        except (InvalidTag, ValueError) as error:
            raise ConfigurationError("a stored credential does not open with TOOLSCOUT_SECRET_KEY") from error

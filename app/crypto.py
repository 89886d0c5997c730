"""Seals credentials so that a dump of the database tells nothing.

A sealed value is bound to the user, the thing and the field that it belongs to: in another row it does not open. It
names the key that sealed it, so that a new key can take over while values of the old ones still open.
"""

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.errors import ConfigurationError

_NONCE_BYTES = 12
_KEY_ID_BYTES = 4
_LEAST_FINGERPRINT = 7


@dataclass(frozen=True)
class SecretOwner:
    user_id: str
    thing_id: str
    field: str

    def as_bytes(self) -> bytes:
        return "\x1f".join((self.user_id, self.thing_id, self.field)).encode()


class Sealer:
    """The first key seals; all of them open."""

    def __init__(self, key: bytes, former: Sequence[bytes] = ()) -> None:
        self._ciphers = {_key_id(known): AESGCM(known) for known in (key, *former)}
        self._current = _key_id(key)
        self._fingerprint_keys = [hashlib.sha256(b"fingerprint" + known).digest() for known in (key, *former)]

    def seal(self, secret: bytes, owner: SecretOwner) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return self._current + nonce + self._ciphers[self._current].encrypt(nonce, secret, owner.as_bytes())

    def open(self, sealed: bytes, owner: SecretOwner) -> bytes:
        key_id, rest = sealed[:_KEY_ID_BYTES], sealed[_KEY_ID_BYTES:]
        if key_id in self._ciphers and (secret := _opened(self._ciphers[key_id], rest, owner)) is not None:
            return secret
        # from before values named their key
        for cipher in self._ciphers.values():
            if (secret := _opened(cipher, sealed, owner)) is not None:
                return secret
        raise ConfigurationError(
            "a stored credential opens neither with TOOLSCOUT_SECRET_KEY nor with TOOLSCOUT_OLD_SECRET_KEYS"
        )

    def is_current(self, sealed: bytes) -> bool:
        return sealed[:_KEY_ID_BYTES] == self._current

    def fingerprint(self, text: bytes) -> bytes:
        """Tells equal from unequal, and nothing else, to whoever has no key."""
        return hmac.digest(self._fingerprint_keys[0], text, "sha256")

    def is_fingerprint(self, fingerprint: bytes, text: bytes) -> bool:
        """Also of a former key. One that was shortened is as good as its length."""
        known = (hmac.digest(key, text, "sha256")[: len(fingerprint)] for key in self._fingerprint_keys)
        return len(fingerprint) >= _LEAST_FINGERPRINT and any(hmac.compare_digest(fingerprint, each) for each in known)


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"key id" + key).digest()[:_KEY_ID_BYTES]


def _opened(cipher: AESGCM, sealed: bytes, owner: SecretOwner) -> bytes | None:
    nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return cipher.decrypt(nonce, ciphertext, owner.as_bytes())
    except (InvalidTag, ValueError):
        return None

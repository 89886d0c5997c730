"""Encrypt credentials at rest, so that a dump of the database reveals nothing.

A sealed value is bound to its user, record and field: copied to another row, it cannot be opened. It contains the id of
its key, so that keys can be rotated while values of old keys can still be opened.
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
_MIN_FINGERPRINT_BYTES = 7


@dataclass(frozen=True)
class SecretOwner:
    user_id: str
    record_id: str
    field: str

    def as_bytes(self) -> bytes:
        return "\x1f".join((self.user_id, self.record_id, self.field)).encode()


class Sealer:
    """Seals with the current key, and opens with the current and all former keys (AES-GCM)."""

    def __init__(self, key: bytes, former: Sequence[bytes] = ()) -> None:
        self._ciphers = {_key_id(known): AESGCM(known) for known in (key, *former)}
        self._current = _key_id(key)
        self._fingerprint_keys = [hashlib.sha256(b"fingerprint" + known).digest() for known in (key, *former)]

    def seal(self, secret: bytes, owner: SecretOwner) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return self._current + nonce + self._ciphers[self._current].encrypt(nonce, secret, owner.as_bytes())

    def open(self, sealed: bytes, owner: SecretOwner) -> bytes:
        key_id, rest = sealed[:_KEY_ID_BYTES], sealed[_KEY_ID_BYTES:]
        if key_id in self._ciphers and (secret := _decrypt(self._ciphers[key_id], rest, owner)) is not None:
            return secret
        # Older values have no key id.
        for cipher in self._ciphers.values():
            if (secret := _decrypt(cipher, sealed, owner)) is not None:
                return secret
        raise ConfigurationError(
            "cannot decrypt a stored credential with TOOLSCOUT_SECRET_KEY or TOOLSCOUT_OLD_SECRET_KEYS"
        )

    def is_current(self, sealed: bytes) -> bool:
        """Whether the value was sealed with the current key."""
        return sealed[:_KEY_ID_BYTES] == self._current

    def fingerprint(self, text: bytes) -> bytes:
        """Return a keyed hash (HMAC). Without the key it reveals only whether two texts are equal."""
        return hmac.digest(self._fingerprint_keys[0], text, "sha256")

    def matches_fingerprint(self, fingerprint: bytes, text: bytes) -> bool:
        """Check a fingerprint made with the current or a former key, truncated to no fewer than 7 bytes."""
        expected = (hmac.digest(key, text, "sha256")[: len(fingerprint)] for key in self._fingerprint_keys)
        return len(fingerprint) >= _MIN_FINGERPRINT_BYTES and any(
            hmac.compare_digest(fingerprint, each) for each in expected
        )


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"key id" + key).digest()[:_KEY_ID_BYTES]


def _decrypt(cipher: AESGCM, sealed: bytes, owner: SecretOwner) -> bytes | None:
    nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return cipher.decrypt(nonce, ciphertext, owner.as_bytes())
    except (InvalidTag, ValueError):
        return None

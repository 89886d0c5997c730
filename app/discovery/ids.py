"""Discovery ids that can be verified without being stored.

An id is a UUID of version 8, whose bits are free to use: the time of creation (4 bytes, seconds), random bytes, and a
keyed fingerprint of these and of the user (7 bytes). Every replica can verify an id of its user, and rejects another
user's id and an invented one.
"""

import os
import time
import uuid

from app.crypto import Sealer
from app.usage.repository import FEEDBACK_RETENTION

_TIME_BYTES = 4
_RANDOM_BYTES = 5
_PAYLOAD_BYTES = _TIME_BYTES + _RANDOM_BYTES
_FINGERPRINT_BYTES = 16 - _PAYLOAD_BYTES


def new_discovery_id(sealer: Sealer, user_id: str, now: float | None = None) -> str:
    timestamp = int(time.time() if now is None else now).to_bytes(_TIME_BYTES)
    payload = _set_version_bits(timestamp + os.urandom(_RANDOM_BYTES))
    fingerprint = sealer.fingerprint(_make_message(payload, user_id))[:_FINGERPRINT_BYTES]
    return str(uuid.UUID(bytes=payload + fingerprint))


def verify_discovery_id(sealer: Sealer, discovery_id: str, user_id: str, now: float | None = None) -> bool:
    """Whether the id was made for this user and is recent enough.

    The feedback on an older discovery is deleted, so that repeated feedback would count twice.
    """
    try:
        parsed = uuid.UUID(discovery_id)
    except ValueError:
        return False
    if str(parsed) != discovery_id:
        return False  # another spelling of a valid id would count twice
    payload, fingerprint = parsed.bytes[:_PAYLOAD_BYTES], parsed.bytes[_PAYLOAD_BYTES:]
    age_s = (time.time() if now is None else now) - int.from_bytes(payload[:_TIME_BYTES])
    if age_s >= FEEDBACK_RETENTION.total_seconds():
        return False
    return sealer.matches_fingerprint(fingerprint, _make_message(payload, user_id))


def _set_version_bits(payload: bytes) -> bytes:
    """Set the version and the variant of a UUID; `uuid` of Python 3.11 cannot make version 8."""
    return bytes([*payload[:6], payload[6] & 0x0F | 0x80, payload[7], payload[8] & 0x3F | 0x80])


def _make_message(payload: bytes, user_id: str) -> bytes:
    return b"discovery" + payload + user_id.encode()

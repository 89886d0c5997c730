"""Discovery ids that can be verified without being stored.

An id is a UUID of version 8, whose bits are free to use: the time of creation (4 bytes, seconds), random bits, the
chance that any tool fits (6 bits), and a keyed fingerprint of these and of the user (7 bytes). Every replica can verify
an id of its user, and rejects another user's id and an invented one.

Up to version 0.2.0 the bits of the chance were random. Such ids are valid, and nothing tells them apart: during an
upgrade their outcomes count with a wrong chance. The effect is bounded, as is that of all outcomes.
"""

import math
import os
import time
import uuid
from dataclasses import dataclass

from app.crypto import Sealer
from app.usage.repository import FEEDBACK_RETENTION

_TIME_BYTES = 4
_RANDOM_BYTES = 4
_PAYLOAD_BYTES = _TIME_BYTES + _RANDOM_BYTES + 1
_FINGERPRINT_BYTES = 16 - _PAYLOAD_BYTES

_CHANCE_BITS = 0x3F
"""All bits of the last byte of the payload that do not say the variant of the UUID."""
_UNKNOWN = 63
_HIGHEST_LEVEL = 62
_MAX_LOGIT = 6.2
"""The levels are 0.2 logits apart."""


@dataclass(frozen=True)
class DiscoveryId:
    """What a valid id says about its discovery."""

    chance: float | None
    """The chance that any tool fits, to about 10 %; None if it is not known."""


def new_discovery_id(sealer: Sealer, user_id: str, chance: float | None = None, now: float | None = None) -> str:
    timestamp = int(time.time() if now is None else now).to_bytes(_TIME_BYTES)
    payload = _set_version_bits(timestamp + os.urandom(_RANDOM_BYTES) + bytes([_encode_chance(chance)]))
    fingerprint = sealer.fingerprint(_make_message(payload, user_id))[:_FINGERPRINT_BYTES]
    return str(uuid.UUID(bytes=payload + fingerprint))


def read_discovery_id(sealer: Sealer, discovery_id: str, user_id: str, now: float | None = None) -> DiscoveryId | None:
    """Return what the id says, or None if it was not made for this user or is too old.

    The feedback on an older discovery is deleted, so that repeated feedback would count twice.
    """
    try:
        parsed = uuid.UUID(discovery_id)
    except ValueError:
        return None
    if str(parsed) != discovery_id:
        return None  # another spelling of a valid id would count twice
    payload, fingerprint = parsed.bytes[:_PAYLOAD_BYTES], parsed.bytes[_PAYLOAD_BYTES:]
    age_s = (time.time() if now is None else now) - int.from_bytes(payload[:_TIME_BYTES])
    if age_s >= FEEDBACK_RETENTION.total_seconds():
        return None
    if not sealer.matches_fingerprint(fingerprint, _make_message(payload, user_id)):
        return None
    return DiscoveryId(_decode_chance(payload[-1] & _CHANCE_BITS))


def _encode_chance(chance: float | None) -> int:
    """Return the level of the chance, in even steps of its logit: small chances differ by small amounts."""
    if chance is None or not 0 < chance < 1:
        return _UNKNOWN
    logit = max(-_MAX_LOGIT, min(math.log(chance / (1 - chance)), _MAX_LOGIT))
    return round((logit + _MAX_LOGIT) / (2 * _MAX_LOGIT) * _HIGHEST_LEVEL)


def _decode_chance(level: int) -> float | None:
    if level == _UNKNOWN:
        return None
    return 1 / (1 + math.exp(_MAX_LOGIT - 2 * _MAX_LOGIT * level / _HIGHEST_LEVEL))


def _set_version_bits(payload: bytes) -> bytes:
    """Set the version and the variant of a UUID; `uuid` of Python 3.11 cannot make version 8."""
    return bytes([*payload[:6], payload[6] & 0x0F | 0x80, payload[7], payload[8] & _CHANCE_BITS | 0x80])


def _make_message(payload: bytes, user_id: str) -> bytes:
    return b"discovery" + payload + user_id.encode()

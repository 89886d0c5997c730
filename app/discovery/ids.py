"""Ids of discoveries that tell their own from others' without being stored anywhere.

A UUID of version 8, whose bits are ours to fill: when it was made (4 bytes, seconds), chance, and a keyed fingerprint
of these and of the user (7 bytes). By it every replica knows an id of this user; another's, or an invented one, is not.
"""

import os
import time
import uuid

from app.crypto import Sealer
from app.usage.repository import FEEDBACK_RETENTION

_TIME = 4
_CHANCE = 5
_MADE_UP = _TIME + _CHANCE
_FINGERPRINT = 16 - _MADE_UP


def new_discovery_id(sealer: Sealer, user_id: str, now: float | None = None) -> str:
    made = _marked(int(time.time() if now is None else now).to_bytes(_TIME) + os.urandom(_CHANCE))
    return str(uuid.UUID(bytes=made + sealer.fingerprint(_signed(made, user_id))[:_FINGERPRINT]))


def _marked(made: bytes) -> bytes:
    """With the version and the variant where a UUID has them; `uuid` of Python 3.11 knows no version 8."""
    return bytes([*made[:6], made[6] & 0x0F | 0x80, made[7], made[8] & 0x3F | 0x80])


def is_discovery_id_of(sealer: Sealer, discovery_id: str, user_id: str, now: float | None = None) -> bool:
    """Not of one so old that what was told of it is forgotten: it would count twice."""
    try:
        read = uuid.UUID(discovery_id)
    except ValueError:
        return False
    made, fingerprint = read.bytes[:_MADE_UP], read.bytes[_MADE_UP:]
    age_s = (time.time() if now is None else now) - int.from_bytes(made[:_TIME])
    # spelled as we spell it: one id in two spellings would count twice, too
    ours = str(read) == discovery_id and age_s < FEEDBACK_RETENTION.total_seconds()
    return ours and sealer.matches_fingerprint(fingerprint, _signed(made, user_id))


def _signed(made: bytes, user_id: str) -> bytes:
    return b"discovery" + made + user_id.encode()

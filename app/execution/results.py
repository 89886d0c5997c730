"""What a tool gave back, made fit to be passed on. Pure."""

from contextlib import suppress
from typing import Any

import orjson

from app.text.strict_json import Json

_WRITABLE_BITS = 63
_EMPTY_TEXT = b'{"type":"text","text":""}'
_LONGEST_ESCAPE = len(r"\u0000")


def make_serializable(result: Json) -> Json:
    """Integers may have any length in JSON, and 64 bits with our writer: longer ones become text, to the last digit."""
    try:
        orjson.dumps(result)
    except TypeError:
        return {name: _with_short_integers(value) for name, value in result.items()}
    return result


def _with_short_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_short_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_short_integers(each) for each in value]
    return str(value) if isinstance(value, int) and value.bit_length() > _WRITABLE_BITS else value


def truncate(result: Json, limit: int) -> tuple[Json, bool]:
    """The result whole, or, where it is too large, as much of its content as fits; and whether it was cut."""
    if _size(result) <= limit:
        return result, False
    kept: list[Json] = []
    cut: Json = {"content": kept} | {name: value for name, value in result.items() if name == "isError"}
    left = limit - _size(cut)
    for block in result.get("content", []):
        needed = _size(block) + len(",")
        if needed > left:
            kept += _beginning(block, left)
            break
        kept.append(block)
        left -= needed
    return cut, True


def _beginning(block: Json, room: int) -> list[Json]:
    """Of a text as much as fits, cut between two characters; of anything else nothing."""
    if block.get("type") != "text":
        return []
    written = orjson.dumps(block["text"])[: -len('"')]
    end = room - len(_EMPTY_TEXT) + len('"')
    for shorter in range(end, max(end - _LONGEST_ESCAPE, 0), -1):
        with suppress(orjson.JSONDecodeError):  # in the midst of a character
            return [{"type": "text", "text": orjson.loads(written[:shorter] + b'"')}]
    return []


def _size(value: object) -> int:
    return len(orjson.dumps(value))

"""Prepare a tool's result for the caller: make it serializable and cut it to the size limit. No I/O."""

from contextlib import suppress
from typing import Any

import orjson

from app.text.strict_json import Json

_MAX_INTEGER_BITS = 63
_EMPTY_TEXT_BLOCK = b'{"type":"text","text":""}'
_MAX_ESCAPE_LENGTH = len(r"\u0000")


def make_serializable(result: Json) -> Json:
    """Turn integers beyond 64 bits, which JSON allows and orjson cannot write, into strings with all their digits."""
    try:
        orjson.dumps(result)
    except TypeError:
        return {name: _stringify_long_integers(value) for name, value in result.items()}
    return result


def _stringify_long_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stringify_long_integers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_stringify_long_integers(item) for item in value]
    return str(value) if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS else value


def truncate(result: Json, limit: int) -> tuple[Json, bool]:
    """Return the result, cut to as much of its content as fits into `limit` bytes, and whether it was cut."""
    if _size(result) <= limit:
        return result, False
    content: list[Json] = []
    shortened: Json = {"content": content} | {name: value for name, value in result.items() if name == "isError"}
    bytes_left = limit - _size(shortened)
    for block in result.get("content", []):
        needed = _size(block) + len(",")
        if needed > bytes_left:
            content += _truncate_block(block, bytes_left)
            break
        content.append(block)
        bytes_left -= needed
    return shortened, True


def _truncate_block(block: Json, limit: int) -> list[Json]:
    """Cut a text block between two characters. Blocks of other types are dropped."""
    if block.get("type") != "text":
        return []
    encoded = orjson.dumps(block["text"])[: -len('"')]
    end = limit - len(_EMPTY_TEXT_BLOCK) + len('"')
    for length in range(end, max(end - _MAX_ESCAPE_LENGTH, 0), -1):
        with suppress(orjson.JSONDecodeError):  # the cut is inside a character or an escape: try one byte less
            return [{"type": "text", "text": orjson.loads(encoded[:length] + b'"')}]
    return []


def _size(value: object) -> int:
    return len(orjson.dumps(value))

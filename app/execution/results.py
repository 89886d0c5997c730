"""Cut a tool's result to the size limit. No I/O."""

from contextlib import suppress

import orjson

from app.text.strict_json import Json, dump_json

_EMPTY_TEXT_BLOCK = b'{"type":"text","text":""}'
_MAX_ESCAPE_LENGTH = len(r"\u0000")


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
    return len(dump_json(value))

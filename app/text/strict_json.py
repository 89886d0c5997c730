"""Strict JSON: parsing, walking and canonical serialization."""

from collections.abc import Iterator
from typing import Any

import orjson

from app.errors import InvalidInput

Json = dict[str, Any]


def parse_json(body: bytes, label: str = "the body") -> Any:
    """Parse JSON as the RFC defines it: no NaN, no Infinity, no lone surrogates. Also reject NUL, which Postgres cannot
    store. `label` names the input in error messages."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{label} is not valid JSON: {error.msg} ({_describe_position(body, error)})") from error
    # A NUL can pass the parser only as an escape, so most bodies need no walk.
    if b"\\u0000" in body and any("\0" in text for text in iter_strings(value)):
        raise InvalidInput(f"{label} contains a NUL character, which cannot be stored")
    return value


def _describe_position(body: bytes, error: orjson.JSONDecodeError) -> str:
    """Omit the line number of a single-line input: it would be mistaken for a line of the file it comes from."""
    return f"line {error.lineno}, column {error.colno}" if b"\n" in body else f"column {error.colno}"


def iter_strings(value: Any) -> Iterator[str]:
    """Yield every string and every key, without recursion: the sender chooses the nesting depth."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def canonical_json(value: Any) -> bytes:
    """Serialize so that equal values give equal bytes: key order and white space do not matter."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)

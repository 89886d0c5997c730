"""Strict JSON: parsing, walking and serialization, with every digit of an integer.

orjson reads integers beyond 64 bits as floats and cannot write them. Such numbers are read by the standard library's
parser and written as fragments.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from app.errors import InvalidInput

Json = dict[str, Any]

_MAX_INTEGER_BITS = 63
# Integers of 18 digits fit into 64 bits. Translating a body and searching it takes a sixth of a regex's time.
_LONG_NUMBER = b"0" * 19
_DIGITS_TO_ZEROS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))


def parse_json(body: bytes, label: str = "the body") -> Any:
    """Parse JSON as the RFC defines it: no NaN, no Infinity, no lone surrogates. Also reject NUL, which Postgres cannot
    store. `label` names the input in error messages."""
    try:
        value = orjson.loads(body)
        if _has_long_number(body):
            value = json.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{label} is not valid JSON: {error.msg} ({_describe_position(body, error)})") from error
    except RecursionError as error:
        raise InvalidInput(f"{label} is nested too deeply") from error
    # A NUL can pass the parser only as an escape, so most bodies need no walk.
    if b"\\u0000" in body and any("\0" in text for text in iter_strings(value)):
        raise InvalidInput(f"{label} contains a NUL character, which cannot be stored")
    return value


def _describe_position(body: bytes, error: orjson.JSONDecodeError) -> str:
    """Omit the line number of a single-line input: it would be mistaken for a line of the file it comes from."""
    return f"line {error.lineno}, column {error.colno}" if b"\n" in body else f"column {error.colno}"


def load_json(text: str | bytes) -> Any:
    """Parse JSON that we have written ourselves."""
    encoded = text.encode() if isinstance(text, str) else text
    return json.loads(encoded) if _has_long_number(encoded) else orjson.loads(encoded)


def _has_long_number(body: bytes) -> bool:
    return _LONG_NUMBER in body.translate(_DIGITS_TO_ZEROS)


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


def dump_json(value: Any, *, option: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """Serialize with orjson and its options, and write integers of any size."""
    try:
        return orjson.dumps(value, default, option)
    except orjson.JSONEncodeError as error:
        if "64-bit" not in str(error):
            raise
    try:
        return orjson.dumps(_wrap_long_integers(value), default, option)
    except RecursionError as error:
        raise orjson.JSONEncodeError("Recursion limit reached") from error


def _wrap_long_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _wrap_long_integers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_wrap_long_integers(item) for item in value]
    is_long = isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS
    return orjson.Fragment(str(value)) if is_long else value


def canonical_json(value: Any) -> bytes:
    """Serialize so that equal values give equal bytes: key order and white space do not matter."""
    return dump_json(value, option=orjson.OPT_SORT_KEYS)

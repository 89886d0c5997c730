r"""Make JSON with lone surrogates readable. Pure functions.

A server that cuts a text in the middle of an emoji writes half of a surrogate pair (`\ud83d`). It is not a character,
and every strict parser rejects the whole message because of it, also a list with a hundred other tools. Here each lone
surrogate becomes U+FFFF, a code point that no text contains: the indexer refuses the tools that have one, and results
of calls show U+FFFD in its place.
"""

import re
from typing import Any

LONE_SURROGATE = "\uffff"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_HEX = rb"[0-9a-fA-F]"
_LOW = rb"\\u[dD][c-fC-F]" + _HEX + rb"{2}"
# Every escape is matched, so that an escaped backslash before a `u` is not mistaken for the start of one.
_ESCAPE = re.compile(
    rb"\\(?:u[dD](?:[89abAB]" + _HEX + rb"{2}" + _LOW + rb"|(?P<lone>[89a-fA-F]" + _HEX + rb"{2}))|.)"
    rb"|(?P<raw>\xed[\xa0-\xbf][\x80-\xbf])",
    re.DOTALL,
)
_MAX_ESCAPE_BYTES = 12
# The beginning of an escape, or of a pair of surrogates, that the end of a chunk cuts off.
_CUT_OFF = re.compile(
    rb"\\(?:u(?:" + _HEX + rb"{0,3}|[dD][89abAB]" + _HEX + rb"{2}(?:\\(?:u(?:[dD](?:[c-fC-F]" + _HEX + rb"?)?)?)?)?))?"
)


class LoneSurrogateFilter:
    """Replaces lone surrogates in a stream of bytes, whose chunks may end anywhere."""

    def __init__(self) -> None:
        self._held_back = b""

    def feed(self, chunk: bytes) -> bytes:
        data = self._held_back + chunk
        end = _find_safe_end(data)
        self._held_back = data[end:]
        return replace_lone_surrogates(data[:end])

    def flush(self) -> bytes:
        return replace_lone_surrogates(self._held_back)


def replace_lone_surrogates(body: bytes) -> bytes:
    """Return the JSON text with U+FFFF in place of lone surrogates."""
    if b"\\u" not in body and b"\xed" not in body:
        return body
    marker = LONE_SURROGATE.encode()
    return _ESCAPE.sub(lambda escape: marker if escape.lastgroup else escape[0], body)


def show_replacement(value: Any) -> Any:
    """Return a result with U+FFFD, which stands for text that cannot be displayed, in place of lone surrogates."""
    if isinstance(value, str):
        return value.replace(LONE_SURROGATE, _REPLACEMENT)
    if isinstance(value, dict):
        return {show_replacement(key): show_replacement(item) for key, item in value.items()}
    return [show_replacement(item) for item in value] if isinstance(value, list) else value


def _find_safe_end(data: bytes) -> int:
    """Return the position up to which the data has no escape or character that is cut off.

    Nothing else is held back: an event must not wait for the next one.
    """
    position = data.find(b"\\", max(0, len(data) - _MAX_ESCAPE_BYTES + 1))
    if position >= 0:
        run = position
        while run and data[run - 1 : run] == b"\\":
            run -= 1
        position -= (position - run) % 2  # the second backslash of two is no start of an escape
    while position >= 0:
        if _CUT_OFF.fullmatch(data, position):
            return position
        position = data.find(b"\\", position + 2)
    return data.find(b"\xed", len(data) - 2) if b"\xed" in data[-2:] else len(data)

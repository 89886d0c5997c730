"""JSON with comments and trailing commas, as editors write it in their configuration files."""

import re
from typing import Any

from app.errors import InvalidInput
from app.text.strict_json import parse_json

# A string comes first, so that nothing inside of one is taken for a comment or a comma. An unterminated string reaches
# to the end of the text: the repetitions are possessive, and the time is linear.
_STRING = r'"(?:[^"\\]|\\.)*+"?'
_COMMENT = re.compile(rf"(?P<string>{_STRING})|//[^\n]*|/\*.*?\*/|(?P<open>/\*)", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"(?P<string>{_STRING})|,(?=\s*[}}\]])", re.DOTALL)
_NOT_A_LINE_BREAK = re.compile(r"[^\n]")


def parse_jsonc(body: bytes, label: str) -> Any:
    """Parse JSON that may have comments, trailing commas and a byte order mark. Raise `InvalidInput`.

    `label` names the input in error messages. What is removed is replaced by spaces, so that they name the position
    in the original text.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{label} is not UTF-8 text") from error
    for pattern in (_COMMENT, _TRAILING_COMMA):
        if any(match.lastgroup == "open" for match in pattern.finditer(text)):
            raise InvalidInput(f"{label} has a comment that does not end")
        text = pattern.sub(_blank, text)
    return parse_json(text.encode(), label)


def _blank(match: re.Match[str]) -> str:
    return match[0] if match["string"] is not None else _NOT_A_LINE_BREAK.sub(" ", match[0])

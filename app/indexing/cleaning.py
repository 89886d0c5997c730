"""Takes out of a tool definition what a person cannot see and a model still reads. Pure.

Text that nobody sees is the cheapest way to give a model orders behind its user's back. What is taken out is told, so
that a person can judge the server; what only spells a line break differently is put right without a word.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.protocol import Json, strings_in

MAX_FINDINGS = 20
MAX_WHERE_CHARACTERS = 200

Flag = Literal["hidden_characters", "instructions"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Finding:
    flag: Flag
    where: str
    """Like `inputSchema.properties.path.description`; one line, with nothing hidden in it."""
    reason: str


def without_hidden(text: str) -> str:
    return _seen(text)[0]


def cleaned(definition: Json) -> tuple[Json, list[Finding]]:
    """Every value and every key. The caller has bounded the depth."""
    if not any(_SUSPICIOUS.search(text) for text in strings_in(definition)):
        return definition, []
    findings: list[Finding] = []
    result = _cleaned_value(definition, (), findings)
    return (definition if result == definition else result), findings


def place(path: Path) -> str:
    """Keys are the server's own: they may be long or hold line breaks, and people read this in one line."""
    parts = (f"[{step}]" if isinstance(step, int) else "." + " ".join(step.split()) for step in path)
    where = "".join(parts).removeprefix(".")
    return where if len(where) <= MAX_WHERE_CHARACTERS else where[: MAX_WHERE_CHARACTERS - 1] + "…"


def _cleaned_value(value: Any, path: Path, findings: list[Finding]) -> Any:
    if isinstance(value, str):
        text, removed = _seen(value)
        _note(findings, path, removed, "were removed")
        return text
    if isinstance(value, list):
        return [_cleaned_value(item, (*path, number), findings) for number, item in enumerate(value)]
    return _cleaned_object(value, path, findings) if isinstance(value, dict) else value


def _cleaned_object(value: Json, path: Path, findings: list[Finding]) -> Json:
    result: Json = {}
    for key, item in value.items():
        name, removed = _seen(key)
        if name in result:
            raise ValueError("two names differ only in characters that cannot be seen")
        _note(findings, (*path, name), removed, "were removed from this name")
        result[name] = _cleaned_value(item, (*path, name), findings)
    return result


def _note(findings: list[Finding], path: Path, removed: Sequence[str], what_happened: str) -> None:
    """A definition of nothing but rubbish must not fill the database."""
    kept = removed[: MAX_FINDINGS - len(findings)]
    findings.extend(Finding("hidden_characters", place(path), f"{kind} {what_happened}") for kind in kept)


def _seen(text: str) -> tuple[str, list[str]]:
    """The text as a person sees it, and the kinds of what was taken out."""
    if not _SUSPICIOUS.search(text):
        return text, []
    text = _LINE_BREAK.sub("\n", text)
    removed = []
    for kind, pattern in _KINDS:
        text, count = pattern.subn("", text)
        if count:
            removed.append(kind)
    return text, removed


_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTION = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_TAG = r"\U000e0000-\U000e007f"
_SELECTOR = r"\u180b-\u180d\u180f\ufe00-\ufe0d\U000e0100-\U000e01ef"
# zero-width spaces and joiners, soft hyphen, invisible operators, fillers, and all else that no font draws; the format
# characters with a shape (Arabic number signs, Egyptian joiners) are not among them
_UNDRAWN = (
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0080-\U000e00ff\U000e01f0-\U000e0fff"
)
# these two say whether an emoji is drawn in colour; in a row, or after nothing, they say something else
_EMOJI_STYLE = r"\ufe0e\ufe0f"

# all that is ever touched: most definitions hold none of it and are not walked a second time
_SUSPICIOUS = re.compile(rf"[{_CONTROL}{_DIRECTION}{_TAG}{_SELECTOR}{_UNDRAWN}{_EMOJI_STYLE}\u2028\u2029]")

_LINE_BREAK = re.compile(r"\r\n|[\x85\u2028\u2029]")

# Each repetition stops at the next start of a sequence and gives nothing back, so the time is linear. What is cut short
# loses only its start: the rest of the text must not vanish with it.
_TERMINAL_SEQUENCE = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*+(?:\x07|\x1b\\|\x9c)"  # a title, a link, a picture
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # a colour, a move of the cursor
    r"|\x1b[ -/]*+[0-~]"
)

# in this order: a sequence is known by its control characters, a row of emoji styles by nothing standing between them
_KINDS = (
    ("terminal escape sequences", _TERMINAL_SEQUENCE),
    ("control characters", re.compile(f"[{_CONTROL}]+")),
    ("bidirectional controls", re.compile(f"[{_DIRECTION}]+")),
    ("tag characters", re.compile(f"[{_TAG}]+")),
    ("invisible characters", re.compile(f"[{_UNDRAWN}]+")),
    ("variation selectors", re.compile(rf"[{_SELECTOR}]+")),
    ("stray emoji styles", re.compile(rf"[{_EMOJI_STYLE}]{{2,}}|(?<!\S)[{_EMOJI_STYLE}]")),
)

"""Find and remove characters that a person cannot see but a model or a terminal still reads."""

import re
import unicodedata


def remove_hidden(text: str) -> str:
    return remove_and_report_hidden(text)[0]


def has_hidden(text: str) -> bool:
    """A quick check. Also true of characters that `remove_hidden` keeps, such as the style of an emoji."""
    return _SUSPICIOUS.search(text) is not None


def remove_and_report_hidden(text: str) -> tuple[str, list[str]]:
    """Return the text as a person sees it, and the kinds of characters that were removed."""
    if not has_hidden(text):
        return text, []
    text = _LINE_BREAK.sub("\n", text)
    removed = []
    for kind, pattern in _KINDS:
        text, count = pattern.subn("", text)
        if count:
            removed.append(kind)
    return text, removed


def describe_problem(name: str) -> str | None:
    """Say why a person cannot see a name as it is; None if they can."""
    visible, removed = remove_and_report_hidden(name)
    if "\n" in visible or "\t" in visible:
        return "contains line breaks or tabs: write it in one line"
    if visible != name:
        return f"contains {', '.join(removed)}, which nobody can see: remove them"
    if not any(unicodedata.category(character)[0] in _DRAWN and character not in _BLANK for character in name):
        return "has no visible character"
    return None


_DRAWN = "LNPS"  # letters, numbers, punctuation, symbols; not marks, which need a letter, and not spaces
_BLANK = "\u2800\U0001d159"  # symbols that are drawn as nothing

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTION = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_TAG = r"\U000e0000-\U000e007f"
_SELECTOR = r"\u180b-\u180d\u180f\ufe00-\ufe0d\U000e0100-\U000e01ef"
# Zero-width spaces and joiners, soft hyphen, invisible operators, fillers, and everything else that no font draws.
# Format characters with a shape (Arabic number signs, Egyptian joiners) are not included.
_UNDRAWN = (
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0080-\U000e00ff\U000e01f0-\U000e0fff"
)
# These two choose whether an emoji is drawn in colour. Repeated, or with nothing before them, they can encode data.
_EMOJI_STYLE = r"\ufe0e\ufe0f"

# Every character that may be changed: most definitions contain none and need no second pass.
_SUSPICIOUS = re.compile(rf"[{_CONTROL}{_DIRECTION}{_TAG}{_SELECTOR}{_UNDRAWN}{_EMOJI_STYLE}\u2028\u2029]")

_LINE_BREAK = re.compile(r"\r\n|[\x85\u2028\u2029]")

# Each repetition is possessive and stops at the next start of a sequence, so the time is linear. An unterminated
# sequence loses only its start: the text after it must stay.
_TERMINAL_SEQUENCE = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*+(?:\x07|\x1b\\|\x9c)"  # a title, a link, a picture
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # a colour, a move of the cursor
    r"|\x1b[ -/]*+[0-~]"
)

# The order matters: sequences are recognised by their control characters, and repeated emoji styles only once
# everything between them is gone.
_KINDS = (
    ("terminal escape sequences", _TERMINAL_SEQUENCE),
    ("control characters", re.compile(f"[{_CONTROL}]+")),
    ("bidirectional controls", re.compile(f"[{_DIRECTION}]+")),
    ("tag characters", re.compile(f"[{_TAG}]+")),
    ("invisible characters", re.compile(f"[{_UNDRAWN}]+")),
    ("variation selectors", re.compile(rf"[{_SELECTOR}]+")),
    ("stray emoji styles", re.compile(rf"[{_EMOJI_STYLE}]{{2,}}|(?<!\S)[{_EMOJI_STYLE}]")),
)

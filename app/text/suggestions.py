"""Suggest the name that a caller meant by one that does not exist."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_MAX_LENGTH = 128
_MAX_CANDIDATES = 500
_MIN_RATIO = 0.7
_NOT_ALPHANUMERIC = re.compile(r"[^0-9a-z]+")


def suggest_name(name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str | None:
    """Return the known name that differs least in its spelling, or None if all differ too much.

    Case and punctuation do not count: `toolKey` is `tool_key`. `synonyms` says what is meant by names whose spelling
    does not help. The time that this takes is bounded: long names get no suggestion, and neither does a name that
    would have to be compared with more than 500 others.
    """
    if len(name) > _MAX_LENGTH:
        return None
    simplified = _simplify(name)
    candidates: dict[str, str] = {}
    for each in known:
        if len(each) <= _MAX_LENGTH:
            candidates.setdefault(_simplify(each), each)
    if simplified in candidates:
        return candidates[simplified]
    for synonym, meant in (synonyms or {}).items():
        if _simplify(synonym) == simplified:
            return meant
    if len(candidates) > _MAX_CANDIDATES:
        return None
    close = get_close_matches(simplified, candidates, n=1, cutoff=_MIN_RATIO)
    return candidates[close[0]] if close else None


def describe_unknown_name(kind: str, name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return "unknown field `message`; did you mean `query`?", or without a suggestion if there is none."""
    names = list(known)
    shown = name if len(name) <= _MAX_LENGTH else f"{name[:_MAX_LENGTH]}…"
    suggestion = suggest_name(name, names, synonyms)
    if suggestion is None:
        return f"unknown {kind} `{shown}`"
    return f"unknown {kind} `{shown}`; did you mean {f'`{suggestion}`' if suggestion in names else suggestion}?"


def _simplify(name: str) -> str:
    return _NOT_ALPHANUMERIC.sub("", name.lower()) or name

"""Takes out of a tool definition what a person cannot see and a model still reads. Pure.

Text that nobody sees is the cheapest way to give a model orders behind its user's back. What is taken out is told, so
that a person can judge the server; what only spells a line break differently is put right without a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.text.invisible import has_hidden, remove_and_report_hidden
from app.text.strict_json import Json, iter_strings

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


def sanitize(definition: Json) -> tuple[Json, list[Finding]]:
    """Every value and every key. The caller has bounded the depth."""
    if not any(has_hidden(text) for text in iter_strings(definition)):
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
        text, removed = remove_and_report_hidden(value)
        _note(findings, path, removed, "were removed")
        return text
    if isinstance(value, list):
        return [_cleaned_value(item, (*path, number), findings) for number, item in enumerate(value)]
    return _cleaned_object(value, path, findings) if isinstance(value, dict) else value


def _cleaned_object(value: Json, path: Path, findings: list[Finding]) -> Json:
    result: Json = {}
    for key, item in value.items():
        name, removed = remove_and_report_hidden(key)
        if name in result:
            raise ValueError("two names differ only in characters that cannot be seen")
        _note(findings, (*path, name), removed, "were removed from this name")
        result[name] = _cleaned_value(item, (*path, name), findings)
    return result


def _note(findings: list[Finding], path: Path, removed: Sequence[str], what_happened: str) -> None:
    """A definition of nothing but rubbish must not fill the database."""
    kept = removed[: MAX_FINDINGS - len(findings)]
    findings.extend(Finding("hidden_characters", place(path), f"{kind} {what_happened}") for kind in kept)

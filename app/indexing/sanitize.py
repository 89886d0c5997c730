"""Removes characters from tool definitions that a person cannot see but a model reads. Pure functions.

Invisible text is the simplest way to give a model instructions that its user does not notice. Every removal is
reported as a finding, so that a person can assess the server; other spellings of a line break are normalized silently.
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
    """A path like `inputSchema.properties.path.description`, in one line and without hidden characters."""
    reason: str


def sanitize(definition: Json) -> tuple[Json, list[Finding]]:
    """Return the definition with all keys and values sanitized, and the findings. The caller has limited the depth."""
    if not any(has_hidden(text) for text in iter_strings(definition)):
        return definition, []
    findings: list[Finding] = []
    result = _sanitize_value(definition, (), findings)
    return (definition if result == definition else result), findings


def format_path(path: Path) -> str:
    """Format a path in one line. Its keys come from the server: they may be long or contain line breaks."""
    parts = (f"[{step}]" if isinstance(step, int) else "." + " ".join(step.split()) for step in path)
    where = "".join(parts).removeprefix(".")
    return where if len(where) <= MAX_WHERE_CHARACTERS else where[: MAX_WHERE_CHARACTERS - 1] + "…"


def _sanitize_value(value: Any, path: Path, findings: list[Finding]) -> Any:
    if isinstance(value, str):
        text, removed = remove_and_report_hidden(value)
        _add_findings(findings, path, removed, "were removed")
        return text
    if isinstance(value, list):
        return [_sanitize_value(item, (*path, number), findings) for number, item in enumerate(value)]
    return _sanitize_object(value, path, findings) if isinstance(value, dict) else value


def _sanitize_object(value: Json, path: Path, findings: list[Finding]) -> Json:
    result: Json = {}
    for key, item in value.items():
        name, removed = remove_and_report_hidden(key)
        if name in result:
            raise ValueError("two keys differ only in invisible characters")
        _add_findings(findings, (*path, name), removed, "were removed from this name")
        result[name] = _sanitize_value(item, (*path, name), findings)
    return result


def _add_findings(findings: list[Finding], path: Path, removed: Sequence[str], what_happened: str) -> None:
    """Add a finding for each kind of removed character, up to the limit, so that findings cannot fill the database."""
    reported = removed[: MAX_FINDINGS - len(findings)]
    findings.extend(Finding("hidden_characters", format_path(path), f"{kind} {what_happened}") for kind in reported)

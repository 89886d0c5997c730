"""Sanitizes the texts that a user writes for a tool, and warns about them. Pure functions.

A server's texts are not trusted: what is found in them is stored as a flag, and can hold a tool back. A user's own
texts are: what is found in them is a warning, for text that was copied without being read.
"""

from collections.abc import Mapping
from typing import Any

from app.catalog.own_texts import OwnTexts
from app.indexing.prompt_injection import find_instructions
from app.indexing.sanitize import Finding, sanitize

_TEXT_FIELDS = ("title", "description", "annotations")


def sanitize_texts(changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the changes of a tool with sanitized texts, and warnings about these."""
    texts = {name: changes[name] for name in _TEXT_FIELDS if changes.get(name) is not None}
    sanitized, hidden = sanitize(texts)
    if "title" in sanitized:
        sanitized["title"] = " ".join(sanitized["title"].split())
    if "description" in sanitized:
        sanitized["description"] = sanitized["description"].strip()
    if "annotations" in sanitized:
        sanitized["annotations"] = sanitized["annotations"] or None
    findings = [*hidden, *find_instructions(sanitized)]
    return {**changes, **sanitized}, [f"{finding.where}: {finding.reason}" for finding in findings]


def find_own_instructions(own_texts: OwnTexts | None) -> list[Finding]:
    """Return what of a user's own texts gives instructions to the model."""
    if own_texts is None:
        return []
    texts = {name: getattr(own_texts, name) for name in _TEXT_FIELDS}
    return find_instructions({name: text for name, text in texts.items() if text is not None})

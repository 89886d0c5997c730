"""Texts that a user writes for a tool in place of its server's: title, description, annotations.

They are stored beside the server's. Everything that a search or a model reads has the effective texts: the user's,
where there are any. The definition's hash, its approval and its history are about the server's texts alone.

The rule stands here twice, for tools in memory and for rows.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from app.mcp_types import ToolDefinition
from app.text.strict_json import Json


@dataclass(frozen=True)
class Texts:
    title: str | None
    description: str
    annotations: Json | None


T = TypeVar("T", Texts, ToolDefinition)


@dataclass(frozen=True)
class OwnTexts:
    """None stands for the server's text."""

    title: str | None = None
    description: str | None = None
    annotations: Json | None = None
    """Only the annotations that replace those of the server: the others stay as they are."""

    def __bool__(self) -> bool:
        return self != NO_OWN_TEXTS

    def apply(self, texts: T) -> T:
        """Return the effective texts for those of the server."""
        if not self:
            return texts
        annotations = texts.annotations if self.annotations is None else (texts.annotations or {}) | self.annotations
        title = texts.title if self.title is None else self.title
        description = texts.description if self.description is None else self.description
        return replace(texts, title=title, description=description, annotations=annotations)


NO_OWN_TEXTS = OwnTexts()

# The same on `mcp_tools t`.

TITLE = "coalesce(t.own_title, t.title)"
DESCRIPTION = "coalesce(t.own_description, t.description)"
# json and not jsonb, which cannot hold every number that a server may send; sorted, so that the bytes stay the same
ANNOTATIONS = """
    CASE WHEN t.own_annotations IS NULL THEN t.annotations ELSE (
        SELECT json_object_agg(key, coalesce(own.value, original.value) ORDER BY key COLLATE "C")
        FROM json_each(t.annotations) original FULL JOIN json_each(t.own_annotations) own USING (key)) END
"""
IS_READ_ONLY = """
    coalesce(coalesce(t.own_annotations -> 'readOnlyHint', t.annotations -> 'readOnlyHint')::text = 'true', false)
"""

"""The field `keep` of `/discover`: the tools that the model was given before."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, WrapValidator

from app.discovery.changes import GivenTool
from app.schemas.base import CamelCaseInput, ToolKey, Visible, make_synonyms

_MAX_KEPT = 200


def _require_path_segment(text: str) -> str:
    if "/" in text or text in (".", ".."):
        raise ValueError("must not contain a slash, or be `.` or `..`: it is part of the path `/conversations/{id}`")
    return text


ConversationId = Annotated[Visible, AfterValidator(_require_path_segment)]
"""Chosen by the caller."""


class ConversationIn(CamelCaseInput):
    """A conversation whose tools Toolscout remembers."""

    synonyms = make_synonyms(conversation_id="id conversation chat_id thread_id session_id")

    conversation_id: ConversationId = Field(description="your own id of the chat", examples=["chat-7"])


class KeptToolIn(CamelCaseInput):
    """A tool as the model has it: these fields of an item of `tools` in the last answer."""

    synonyms = make_synonyms(tool_key="id key tool tool_id", alias="name tool_name", definition_hash="hash")

    tool_key: ToolKey
    alias: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$", description="null: the one that it has now")
    definition_hash: str | None = Field(
        None, pattern=r"^[0-9a-f]{16}$", description="in the same `format`; null: that of its definition now"
    )


_TOOL_KEY: TypeAdapter[str] = TypeAdapter(ToolKey)


def _parse_item(item: Any, _handler: object) -> str | KeptToolIn:
    """Choose by the kind of value: the errors of a union would be about all of its members."""
    if isinstance(item, str):
        return _TOOL_KEY.validate_python(item)
    if isinstance(item, dict):
        return KeptToolIn.model_validate(item)
    raise ValueError("must be a tool key, or an object with `tool_key`, `alias` and `definition_hash`")


KeptTools = Annotated[
    list[Annotated[ToolKey | KeptToolIn, WrapValidator(_parse_item)]],
    Field(max_length=_MAX_KEPT),
]
_KEPT_TOOLS: TypeAdapter[list[str | KeptToolIn]] = TypeAdapter(KeptTools)


def _parse_keep(value: Any, _handler: object) -> list[str | KeptToolIn] | ConversationIn:
    if isinstance(value, list):
        return _KEPT_TOOLS.validate_python(value)
    if isinstance(value, dict):
        return ConversationIn.model_validate(value)
    raise ValueError('must be a list of tool keys, or {"conversation_id": "…"}')


Keep = Annotated[KeptTools | ConversationIn, WrapValidator(_parse_keep)]


def to_given_tools(items: list[str | KeptToolIn]) -> list[GivenTool]:
    return [
        GivenTool(item) if isinstance(item, str) else GivenTool(item.tool_key, item.alias, item.definition_hash)
        for item in items
    ]

"""The field `keep` of `/discover`: the tools that the model was given before."""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, WrapValidator

from app.discovery.changes import GivenTool
from app.schemas.base import CamelCaseInput, ToolKey, make_synonyms

_MAX_KEPT = 200


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


def to_given_tools(items: list[str | KeptToolIn]) -> list[GivenTool]:
    return [
        GivenTool(item) if isinstance(item, str) else GivenTool(item.tool_key, item.alias, item.definition_hash)
        for item in items
    ]

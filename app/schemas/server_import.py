"""Request and response models of `/servers/import`."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from app.catalog.client_config.config import MAX_ENTRIES, ClientConfig
from app.catalog.client_config.entries import ResolvedEntry, SkippedEntry, check_value_names, resolve_entry
from app.catalog.client_config.placeholders import hide_values
from app.catalog.servers import NewServer
from app.management.server_import import ImportEntry, ImportResult
from app.schemas.base import Input, Output
from app.schemas.servers import NewServerBody, ServerOut

PlaceholderName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
PlaceholderValue = Annotated[str, StringConstraints(max_length=8_192)]

_MAX_ERRORS = 3


class ImportBody(Input):
    config: dict[str, Any] = Field(
        description="the file of an MCP client, such as `mcp.json` or `claude_desktop_config.json`: servers under "
        f"`mcpServers`, `servers`, `mcp.servers` or `context_servers`, at most {MAX_ENTRIES}",
        examples=[{"mcpServers": {"tickets": {"url": "https://mcp.example.com/mcp"}}}],
    )
    values: dict[PlaceholderName, PlaceholderValue] = Field(
        {},
        max_length=200,
        description="values of the placeholders in URLs and headers, by name: `TOKEN` for `${TOKEN}`, `${env:TOKEN}` "
        "and `${input:TOKEN}`; the environment of the service is never read",
    )


class SkippedOut(Output):
    name: str
    reason: str = Field(description="why it was not imported, and what to do")


class ImportNoteOut(Output):
    name: str
    note: str = Field(description="what of an imported server was left out or changed")


class ImportOut(Output):
    imported: list[ServerOut]
    skipped: list[SkippedOut]
    notes: list[ImportNoteOut]


def plan_import(
    config: ClientConfig, values: Mapping[str, str], programs: Collection[str]
) -> list[ImportEntry | SkippedEntry]:
    """Validate each entry by the rules of `POST /servers`. `programs`: the stdio servers that the user may use.

    Raise `InvalidInput` for a value that belongs to no placeholder.
    """
    check_value_names(config, values)
    resolved = (resolve_entry(config, entry, values, programs) for entry in config.entries)
    return [entry if isinstance(entry, SkippedEntry) else _validate(entry) for entry in resolved]


def render_import(result: ImportResult) -> ImportOut:
    return ImportOut(
        imported=[ServerOut.model_validate(each.server) for each in result.imported],
        skipped=[SkippedOut.model_validate(each) for each in result.skipped],
        notes=[ImportNoteOut(name=each.server.name, note=note) for each in result.imported for note in each.notes],
    )


def _validate(entry: ResolvedEntry) -> ImportEntry | SkippedEntry:
    try:
        body = NewServerBody.model_validate(entry.body)
    except ValidationError as error:
        return SkippedEntry(entry.name, "invalid", hide_values(_describe_errors(error), entry.used))
    return ImportEntry(NewServer(**body.model_dump()), entry.notes, entry.used)


def _describe_errors(error: ValidationError) -> str:
    """Leave out the values, which may be credentials."""
    messages = []
    for item in error.errors(include_input=False, include_url=False)[:_MAX_ERRORS]:
        field = ".".join(map(str, item["loc"]))
        is_pattern = item["type"] == "string_pattern_mismatch"
        message = "it has characters that are not allowed" if is_pattern else item["msg"].removeprefix("Value error, ")
        messages.append(f"`{field}`: {message}" if field else message)
    return "; ".join(messages)

"""Keep what the SDK cannot read away from it: it rejects a whole message because of a single invalid tool or character.

Invalid tools are moved from the list into its `_meta` before the SDK validates it, and appended again afterwards, so
that the indexer refuses them one by one.
"""

from collections.abc import Callable
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from app.mcp_client.surrogates import replace_lone_surrogates
from app.text.strict_json import Json

_INVALID_TOOLS = "toolscout/invalid-tools"


class FilteredReadStream:
    """Wraps the stream from which the SDK reads messages. `get_version` returns the negotiated protocol version."""

    def __init__(self, stream: Any, get_version: Callable[[], str | None]) -> None:
        self._stream = stream
        self._get_version = get_version

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._filter(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return self._filter(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> Any:
        return await self._stream.__aexit__(*exc_info)

    def _filter(self, item: Any) -> Any:
        item = _read_again(item) if isinstance(item, ValidationError) else item
        message, version = getattr(item, "message", None), self._get_version()
        if version is not None and isinstance(message, JSONRPCResponse) and _is_tool_list(message.result):
            remove_invalid_tools(message.result, version)
        return item


def _read_again(error: ValidationError) -> SessionMessage | ValidationError:
    """Read a line of a stdio server that the SDK could not read, without its lone surrogates.

    The answers of other servers pass through our own HTTP transport, which replaces them.
    """
    line = error.errors(include_url=False, include_context=False)[0]["input"]
    if not isinstance(line, str):
        return error
    try:
        repaired = replace_lone_surrogates(line.encode(errors="surrogatepass"))
        return SessionMessage(jsonrpc_message_adapter.validate_json(repaired, by_name=False))
    except ValidationError:
        return error


def _is_tool_list(result: Json) -> bool:
    """The result of a tool call has `content`; it is forwarded unchanged."""
    return isinstance(result.get("tools"), list) and "content" not in result


def remove_invalid_tools(listing: Json, version: str) -> None:
    """Move invalid tools into `_meta`, in place. Errors outside of single tools are left for the SDK to report."""
    meta = listing.get("_meta")
    if isinstance(meta, dict):
        meta.pop(_INVALID_TOOLS, None)  # only we may set it
    invalid = _find_invalid_tools(listing, version)
    if invalid and isinstance(meta, dict | None):
        tools = listing["tools"]
        listing["tools"] = [tool for position, tool in enumerate(tools) if position not in invalid]
        listing["_meta"] = {**(meta or {}), _INVALID_TOOLS: [tools[position] for position in sorted(invalid)]}


def restore_invalid_tools(meta: Json | None) -> list[Any]:
    """Return the tools that `remove_invalid_tools` has moved."""
    return list((meta or {}).get(_INVALID_TOOLS, ()))


def _find_invalid_tools(listing: Json, version: str) -> set[int]:
    """Return the positions of invalid tools, or nothing if the list has errors outside of single tools."""
    try:
        validate_server_result("tools/list", version, listing)
    except ValidationError as error:
        paths = [item["loc"][:2] for item in error.errors(include_url=False, include_context=False)]
        found = {path[1] for path in paths if path[0] == "tools" and len(path) == 2}
        return {position for position in found if isinstance(position, int)} if len(found) == len(set(paths)) else set()
    return set()

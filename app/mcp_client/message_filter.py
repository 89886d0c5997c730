"""Lists of tools of which some are not valid MCP: the SDK would refuse the whole list, and a server lose all its tools
for the sake of one. They are set aside before it looks, and given back behind the others, to be refused one by one."""

from collections.abc import Callable
from typing import Any, Self

from mcp_types import JSONRPCResponse
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from app.text.strict_json import Json

_SET_ASIDE = "toolscout/set-aside"


class Inbox:
    """The SDK's way in from its transport. `version` is the protocol's that the two have agreed upon."""

    def __init__(self, stream: Any, version: Callable[[], str | None]) -> None:
        self._stream = stream
        self._version = version

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._sifted(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return self._sifted(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *ended: Any) -> Any:
        return await self._stream.__aexit__(*ended)

    def _sifted(self, item: Any) -> Any:
        message, version = getattr(item, "message", None), self._version()
        if version is not None and isinstance(message, JSONRPCResponse) and _is_listing(message.result):
            remove_invalid_tools(message.result, version)
        return item


def _is_listing(result: Json) -> bool:
    """And not what a tool has answered, which is passed on whole, whatever it is."""
    return isinstance(result.get("tools"), list) and "content" not in result


def remove_invalid_tools(listing: Json, version: str) -> None:
    """In place. What is wrong elsewhere than in single tools is left for the SDK to find."""
    meta = listing.get("_meta")
    if isinstance(meta, dict):
        meta.pop(_SET_ASIDE, None)  # nobody else's to say
    broken = _broken(listing, version)
    if broken and isinstance(meta, dict | None):
        tools = listing["tools"]
        listing["tools"] = [tool for place, tool in enumerate(tools) if place not in broken]
        listing["_meta"] = {**(meta or {}), _SET_ASIDE: [tools[place] for place in sorted(broken)]}


def restore_invalid_tools(meta: Json | None) -> list[Any]:
    return list((meta or {}).get(_SET_ASIDE, ()))


def _broken(listing: Json, version: str) -> set[int]:
    try:
        validate_server_result("tools/list", version, listing)
    except ValidationError as error:
        places = [item["loc"][:2] for item in error.errors(include_url=False, include_context=False)]
        found = {place[1] for place in places if place[0] == "tools" and len(place) == 2}
        return {place for place in found if isinstance(place, int)} if len(found) == len(set(places)) else set()
    return set()

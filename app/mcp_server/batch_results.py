"""The result of several calls at once. No I/O.

The content has the blocks of each call after a heading; the structured content has an entry for each call. A client
shows its model one of the two, so that each has all of the results, and neither has one twice.
"""

from collections.abc import Iterator, Sequence

from app.text.strict_json import Json, dump_json


def render_results(tool_keys: Sequence[str], results: Sequence[Json]) -> Json:
    """Return the results of the calls of these tools. The whole is an error only if every call failed."""
    pairs = list(zip(tool_keys, results, strict=True))
    content = [block for position, pair in enumerate(pairs) for block in _list_blocks(position, *pair)]
    entries = [_make_entry(position, *pair) for position, pair in enumerate(pairs)]
    has_failed = all(entry["isError"] for entry in entries)
    return {"content": content, "structuredContent": {"results": entries}} | ({"isError": True} if has_failed else {})


def _list_blocks(position: int, tool_key: str, result: Json) -> Iterator[Json]:
    failed = " failed" if result.get("isError") else ""
    yield {"type": "text", "text": f"calls[{position}] {tool_key}{failed}:"}
    yield from result["content"]
    if not result["content"] and "structuredContent" in result:
        yield {"type": "text", "text": dump_json(result["structuredContent"]).decode()}


def _make_entry(position: int, tool_key: str, result: Json) -> Json:
    """Texts beside structured content repeat it, as MCP asks servers to do, and are left out."""
    has_structure = "structuredContent" in result
    content = [block for block in result["content"] if not has_structure or block.get("type") != "text"]
    entry: Json = {"position": position, "toolKey": tool_key, "isError": bool(result.get("isError"))}
    entry |= {"structuredContent": result["structuredContent"]} if has_structure else {}
    entry |= {"content": content} if content or not has_structure else {}
    return entry | ({"_meta": result["_meta"]} if "_meta" in result else {})

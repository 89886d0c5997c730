"""The `BM25SearchTransform` of FastMCP, used as its clients use it: by calling its search tool."""

from collections.abc import Sequence

from fastmcp import FastMCP
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool

from bench.relevance.baselines import DEPTH
from bench.relevance.sets import BenchTool


class FastMcpSearch:
    def __init__(self, tools: Sequence[BenchTool]) -> None:
        self._ids = dict(zip(_unique_names(tools), (tool.id for tool in tools), strict=True))
        self._server = FastMCP("all tools")
        for name, tool in zip(self._ids, tools, strict=True):
            self._server.add_tool(
                Tool(name=name, description=tool.description, parameters=tool.definition.get("inputSchema") or {})
            )
        self._server.add_transform(BM25SearchTransform(max_results=DEPTH, search_result_serializer=_serialize_names))

    async def rank(self, text: str) -> list[str]:
        result = await self._server.call_tool("search_tools", {"query": text})
        return [self._ids[tool["name"]] for tool in result.structured_content["result"]]


def _serialize_names(tools: Sequence[Tool]) -> list[dict[str, str]]:
    return [{"name": tool.name} for tool in tools]


def _unique_names(tools: Sequence[BenchTool]) -> list[str]:
    """Prefix each name with its server, as FastMCP does for mounted servers; it also finds more tools this way."""
    names: dict[str, None] = {}
    for tool in tools:
        name = f"{tool.server}_{tool.name}"
        while name in names:
            name += "_"
        names[name] = None
    return list(names)

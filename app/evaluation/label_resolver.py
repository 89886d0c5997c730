"""Resolve labels to tools: a tool may be labelled by any of its keys, by `SERVER/TOOL` or by its name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.catalog.tool_keys import KeyedTool, ToolKeyIndex
from app.catalog.visibility import VISIBLE, Scope, read_facts
from app.discovery.discover import Discoverer

_SELECT_VISIBLE = f"SELECT v.tool_id FROM mcp_tool_embeddings v WHERE {VISIBLE}"


@dataclass(frozen=True)
class LabelResolver:
    """A label that is only a name stands for all tools of that name."""

    index: ToolKeyIndex
    names: Mapping[str, str]
    """`SERVER.TOOL`, by key."""

    def resolve(self, labels: Iterable[str]) -> list[str]:
        """Return the keys of the labelled tools. An unknown label is returned unchanged: it counts as a tool that is
        never found, so that it cannot improve the scores."""
        found = ((label, self.index.find(label)) for label in labels)
        return list(dict.fromkeys(key for label, tools in found for key in [tool.tool_id for tool in tools] or [label]))

    def find_unknown(self, labels: Iterable[str]) -> list[str]:
        return [label for label in labels if not self.index.find(label)]


def make_resolver(tools: Iterable[KeyedTool]) -> LabelResolver:
    listed = list(tools)
    return LabelResolver(ToolKeyIndex(listed, "./"), {tool.tool_id: tool.qualified_name for tool in listed})


async def load_resolver(discoverer: Discoverer, caller: Caller, scope: Scope) -> LabelResolver:
    """Include hidden tools, so that a miss can say what hides them. For a caller bound to a project, tools outside the
    project do not exist."""
    async with discoverer.database.snapshot(scope.user_id) as session:
        tools = await read_facts(session, scope.user_id)
        if caller.project_id is not None:
            visible = {tool_id for (tool_id,) in await session.rows(_SELECT_VISIBLE, scope.parameters())}
            tools = [tool for tool in tools if tool.tool_id in visible]
    return make_resolver(KeyedTool(tool.tool_id, tool.server_id, tool.server_name, tool.name) for tool in tools)

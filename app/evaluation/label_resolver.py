"""Resolve labels to tools: a tool may be labelled by its key, its name, `SERVER.TOOL` or `SERVER/TOOL`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.catalog.visibility import VISIBLE, Scope, read_facts
from app.discovery.discover import Discoverer

_SELECT_VISIBLE = f"SELECT v.tool_id FROM mcp_tool_embeddings v WHERE {VISIBLE}"


@dataclass(frozen=True)
class LabelResolver:
    """A label that is only a name stands for all tools of that name."""

    keys_by_label: Mapping[str, Sequence[str]]
    names: Mapping[str, str]
    """`SERVER.TOOL`, by key."""

    def resolve(self, labels: Iterable[str]) -> list[str]:
        """Return the keys of the labelled tools. An unknown label is returned unchanged: it counts as a tool that is
        never found, so that it cannot improve the scores."""
        return list(dict.fromkeys(key for label in labels for key in self.keys_by_label.get(label, [label])))

    def find_unknown(self, labels: Iterable[str]) -> list[str]:
        return [label for label in labels if label not in self.keys_by_label]


def make_resolver(tools: Iterable[tuple[str, str, str]]) -> LabelResolver:
    """`tools` are triples of key, server name and tool name."""
    keys_by_label: defaultdict[str, list[str]] = defaultdict(list)
    names = {}
    for key, server_name, name in tools:
        names[key] = f"{server_name}.{name}"
        for label in {key, name, names[key], f"{server_name}/{name}"}:
            keys_by_label[label].append(key)
    return LabelResolver(keys_by_label, names)


async def load_resolver(discoverer: Discoverer, caller: Caller, scope: Scope) -> LabelResolver:
    """Include hidden tools, so that a miss can say what hides them. For a caller bound to a project, tools outside the
    project do not exist."""
    async with discoverer.database.snapshot(scope.user_id) as session:
        tools = await read_facts(session, scope.user_id)
        if caller.project_id is not None:
            visible = {tool_id for (tool_id,) in await session.rows(_SELECT_VISIBLE, scope.parameters())}
            tools = [tool for tool in tools if tool.tool_id in visible]
    return make_resolver((tool.tool_id, tool.server_name, tool.name) for tool in tools)

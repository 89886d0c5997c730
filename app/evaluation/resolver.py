"""What labels mean: the tools of a user's catalogue by whatever name a person gives them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.catalog.visibility import VISIBLE, Scope, read_facts
from app.discovery.discover import Discoverer

_SEEN = f"SELECT v.tool_id FROM mcp_tool_embeddings v WHERE {VISIBLE}"


@dataclass(frozen=True)
class LabelResolver:
    """A label's tools: all of one name where only a name is given. None: the catalogue has no such tool."""

    keys_of: Mapping[str, Sequence[str]]
    called: Mapping[str, str]
    """`SERVER.TOOL`, by key."""

    def relevant(self, labels: Iterable[str]) -> list[str]:
        """Keys, and what names no tool as it stands: it is never found, and must not make the figures better."""
        return list(dict.fromkeys(key for label in labels for key in self.keys_of.get(label, [label])))

    def unknown(self, labels: Iterable[str]) -> list[str]:
        return [label for label in labels if label not in self.keys_of]


def make_resolver(tools: Iterable[tuple[str, str, str]]) -> LabelResolver:
    """Of tools by their keys, their servers' names and their own."""
    keys_of: defaultdict[str, list[str]] = defaultdict(list)
    called = {}
    for key, server_name, name in tools:
        called[key] = f"{server_name}.{name}"
        for label in {key, name, called[key], f"{server_name}/{name}"}:
            keys_of[label].append(key)
    return LabelResolver(keys_of, called)


async def load_resolver(discoverer: Discoverer, caller: Caller, scope: Scope) -> LabelResolver:
    """Also of tools that are hidden, so that a miss can say what hides them. To a caller who is bound to a project,
    what lies outside it is not there."""
    async with discoverer.database.snapshot(scope.user_id) as session:
        tools = await read_facts(session, scope.user_id)
        if caller.project_id is not None:
            seen = {tool_id for (tool_id,) in await session.rows(_SEEN, scope.parameters())}
            tools = [tool for tool in tools if tool.tool_id in seen]
    return make_resolver((tool.tool_id, tool.server_name, tool.name) for tool in tools)

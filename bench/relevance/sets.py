"""Labelled sets: folders with `tools.jsonl`, `queries.jsonl` and optionally `no_tool_queries.jsonl`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from app import evaluation
from app.demo.seed import load_catalogue
from app.evaluation.labelled_messages import LabelledMessage, parse_labelled_messages
from app.text.strict_json import Json

OWN = Path(evaluation.__file__).parent / "messages" / "own"


@dataclass(frozen=True)
class BenchTool:
    id: str
    server: str
    definition: Json
    """The MCP definition."""

    @property
    def name(self) -> str:
        name: str = self.definition["name"]
        return name

    @property
    def description(self) -> str:
        return self.definition.get("description") or ""


@dataclass(frozen=True)
class BenchSet:
    name: str
    tools: Sequence[BenchTool]
    items: Sequence[LabelledMessage]
    """Messages that need tools, followed by messages that need none."""


def read_set(folder: Path) -> BenchSet:
    """Read a set. One without `tools.jsonl`, as our own, is about the demo catalogue."""
    paths = [folder / "queries.jsonl", folder / "no_tool_queries.jsonl"]
    items = [item for path in paths if path.exists() for item in parse_labelled_messages(path.read_bytes())]
    path = folder / "tools.jsonl"
    tools = read_tools(path.read_bytes()) if path.exists() else load_demo_tools()
    bench = BenchSet(folder.name, separate_duplicates(tools), items)
    check_labels(bench)
    return bench


def read_tools(content: bytes) -> list[BenchTool]:
    return [_parse_tool(orjson.loads(line)) for line in content.splitlines() if line.strip()]


def load_demo_tools() -> list[BenchTool]:
    return [
        BenchTool(f"{server['name']}/{tool['name']}", server["name"], tool)
        for server in load_catalogue()
        for tool in server["tools"]
    ]


def separate_duplicates(tools: Sequence[BenchTool]) -> list[BenchTool]:
    """Move the second tool of a name to a second server: no MCP server has two tools of one name, but the invented
    servers of some sets do."""
    seen: Counter[tuple[str, str]] = Counter()
    separated = []
    for tool in tools:
        seen[tool.server, tool.name] += 1
        number = seen[tool.server, tool.name]
        separated.append(tool if number == 1 else replace(tool, server=f"{tool.server} {number}"))
    return separated


def check_labels(bench: BenchSet) -> None:
    known = {tool.id for tool in bench.tools}
    unknown = sorted({label for item in bench.items for label in item.tools} - known)
    if unknown:
        raise SystemExit(f"{bench.name}: unknown tool {unknown[0]!r}")


def add_haystack(bench: BenchSet, haystack: BenchSet) -> BenchSet:
    """Add the tools of another set. Tools that both sets have are added once."""
    known = {tool.id for tool in bench.tools}
    added = [replace(tool, id=f"{haystack.name}:{tool.id}") for tool in haystack.tools if tool.id not in known]
    return replace(bench, name=f"{bench.name}+{haystack.name}", tools=separate_duplicates([*bench.tools, *added]))


def take_sample(bench: BenchSet, size: int | None) -> BenchSet:
    """Take about `size` messages that need tools and as many that need none, evenly spread over the set."""
    if size is None:
        return bench
    kinds = [[each for each in bench.items if bool(each.tools) is needing] for needing in (True, False)]
    return replace(bench, items=[each for kind in kinds for each in kind[:: max(1, -(-len(kind) // size))]])


def last_user_text(item: LabelledMessage) -> str:
    """Return the text that the baselines search for: the message, or the user's last turn."""
    texts = [turn.get("content") for turn in item.messages or () if turn.get("role") == "user"]
    return item.message or (texts[-1] if texts and isinstance(texts[-1], str) else item.text)


def _parse_tool(row: Mapping[str, object]) -> BenchTool:
    fields = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    definition = {field: row[field] for field in fields if row.get(field) is not None}
    return BenchTool(str(row["id"]), str(row["server"]), definition)

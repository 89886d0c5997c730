"""Labelled sets: a folder with `tools.jsonl`, `queries.jsonl` and, where there are some, `no_tool_queries.jsonl`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from app import evaluation
from app.demo.seed import load_catalogue
from app.evaluation.labelled import LabelledMessage, parse_labelled_messages
from app.text.strict_json import Json

OWN = Path(evaluation.__file__).parent / "messages" / "own"


@dataclass(frozen=True)
class BenchTool:
    id: str
    server: str
    definition: Json
    """As MCP has it."""

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
    item: Sequence[LabelledMessage]
    """Messages that need tools, then those that need none."""


def read_set(folder: Path) -> BenchSet:
    """Our own set has no tools of its own: it is about the demo catalogue."""
    lists = [folder / "queries.jsonl", folder / "no_tool_queries.jsonl"]
    asked = [each for path in lists if path.exists() for each in parse_labelled_messages(path.read_bytes())]
    path = folder / "tools.jsonl"
    tools = read_tools(path.read_bytes()) if path.exists() else demo_tools()
    bench = BenchSet(folder.name, apart(tools), asked)
    check_labels(bench)
    return bench


def read_tools(content: bytes) -> list[BenchTool]:
    return [_tool(orjson.loads(line)) for line in content.splitlines() if line.strip()]


def demo_tools() -> list[BenchTool]:
    return [
        BenchTool(f"{server['name']}/{tool['name']}", server["name"], tool)
        for server in load_catalogue()
        for tool in server["tools"]
    ]


def apart(tools: Sequence[BenchTool]) -> list[BenchTool]:
    """No MCP server has two tools of one name, yet some sets do, whose servers are not real ones: the second of a name
    stands on a second server."""
    seen: Counter[tuple[str, str]] = Counter()
    parted = []
    for tool in tools:
        seen[tool.server, tool.name] += 1
        number = seen[tool.server, tool.name]
        parted.append(tool if number == 1 else replace(tool, server=f"{tool.server} {number}"))
    return parted


def check_labels(bench: BenchSet) -> None:
    known = {tool.id for tool in bench.tools}
    unknown = sorted({label for asked in bench.item for label in asked.tools} - known)
    if unknown:
        raise SystemExit(f"{bench.name}: there is no tool {unknown[0]!r}")


def with_haystack(bench: BenchSet, haystack: BenchSet) -> BenchSet:
    """The same messages, among more tools. What both have stays once."""
    known = {tool.id for tool in bench.tools}
    hay = [replace(tool, id=f"{haystack.name}:{tool.id}") for tool in haystack.tools if tool.id not in known]
    return replace(bench, name=f"{bench.name}+{haystack.name}", tools=apart([*bench.tools, *hay]))


def shortened(bench: BenchSet, most: int | None) -> BenchSet:
    """Evenly from all of them, so that a quick look is a fair one; of each kind, those with tools and those without."""
    if most is None:
        return bench
    kinds = [[each for each in bench.item if bool(each.tools) is needing] for needing in (True, False)]
    return replace(bench, item=[each for kind in kinds for each in kind[:: max(1, -(-len(kind) // most))]])


def last_said(asked: LabelledMessage) -> str:
    """What the floors search for: the message, or the last one of the user."""
    said = [turn.get("content") for turn in asked.messages or () if turn.get("role") == "user"]
    return asked.message or (said[-1] if said and isinstance(said[-1], str) else asked.text)


def _tool(row: Mapping[str, object]) -> BenchTool:
    fields = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    definition = {field: row[field] for field in fields if row.get(field) is not None}
    return BenchTool(str(row["id"]), str(row["server"]), definition)

"""Labelled sets: folders with `tools.jsonl`, `queries.jsonl` and optionally `no_tool_queries.jsonl`.

The sets in `bench/sets` have no `tools.jsonl`: their tools are those of public MCP servers, which are not ours to ship.
`bench/sets/pool.json` names the servers, by the folder of the corpus that has them. A corpus is a folder with a
`tools.jsonl`.
"""

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
SETS = Path(__file__).parents[1] / "sets"

PUBLIC = ("azure_mcp_2026", "metatool", "bfcl_live", "stabletoolbench", "mcpproxy_golden")
DEVELOPMENT = ("everyday", "conversations", "languages")
HELD_OUT_SUFFIX = "_held_out"
_TUNED_ON = frozenset({*PUBLIC, OWN.name, *DEVELOPMENT})
_POOL = "pool.json"


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


def find_all_sets(corpora: Path) -> list[Path]:
    """Return the folders of the public sets that are there, of the set that ships with Toolscout, and of `bench/sets`,
    where each development set is followed by its held-out twin."""
    public = [corpora / name for name in PUBLIC if (corpora / name).is_dir()]
    ours = [SETS / f"{name}{suffix}" for name in DEVELOPMENT for suffix in ("", HELD_OUT_SUFFIX)]
    return [*public, OWN, *ours]


def is_tuned_on(name: str) -> bool:
    """Whether the ranking or its calibration was tuned on the set of this name, with or without a haystack."""
    return name.partition("+")[0] in _TUNED_ON


def read_set(folder: Path, corpora: Path | None = None) -> BenchSet:
    """Read a set. `corpora` is the folder of the corpora, which only the sets in `bench/sets` need."""
    paths = [folder / "queries.jsonl", folder / "no_tool_queries.jsonl"]
    items = [item for path in paths if path.exists() for item in parse_labelled_messages(path.read_bytes())]
    bench = BenchSet(folder.name, separate_duplicates(_load_tools(folder, corpora)), items)
    check_labels(bench)
    return bench


def _load_tools(folder: Path, corpora: Path | None) -> list[BenchTool]:
    """Load the tools of a set: its own, those of the pool beside it, or those of the demo catalogue."""
    path, pool = folder / "tools.jsonl", folder.absolute().parent / _POOL
    if path.exists():
        return read_tools(path.read_bytes())
    if not pool.exists():
        return load_demo_tools()
    if corpora is None:
        raise SystemExit(f"{folder.name}: its tools are not part of this repository: give --corpora DIR")
    return [
        tool
        for corpus, servers in orjson.loads(pool.read_bytes()).items()
        for tool in _read_corpus(corpora / corpus, servers)
    ]


def _read_corpus(corpus: Path, servers: Sequence[str]) -> list[BenchTool]:
    path = corpus / "tools.jsonl"
    if not path.exists():
        raise SystemExit(f"--corpora: {corpus.parent} has no {corpus.name}/tools.jsonl")
    tools = [tool for tool in read_tools(path.read_bytes()) if tool.server in set(servers)]
    if missing := sorted(set(servers) - {tool.server for tool in tools}):
        raise SystemExit(f"--corpora: {corpus.name} has no server {missing[0]!r}: is it another version?")
    return tools


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

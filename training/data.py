"""The training data: messages that people send to an assistant, each with the tools that serve it.

`data/tools.jsonl` has the definitions of real MCP tools, `data/catalogues.json` the catalogues (the tools of one user,
all of one split) and `data/messages.jsonl` the messages, each labelled with all tools of its catalogue that serve it.
Messages without a label need no tool (`none`), or one that the catalogue does not have (`missing`).

Public pairs (`--public FOLDER`) are `pairs.jsonl` (`{"src", "q", "pos"}`) and `docs.jsonl` (`{"id", "cat", "text"}`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from app.indexing.documents import embedded_text
from app.mcp_types import ToolDefinition
from app.search.glossary import Glossary
from app.search.query import Query, parse_query

DATA = Path(__file__).parent / "data"

Split = Literal["train", "validation", "test"]
Kind = Literal["tool", "none", "missing"]


@dataclass(frozen=True)
class Tool:
    id: str
    server: str
    definition: ToolDefinition

    @property
    def text(self) -> str:
        """What is embedded of the tool."""
        return embedded_text(self.definition, self.server)


@dataclass(frozen=True)
class Catalogue:
    name: str
    split: Split
    tools: Sequence[Tool]


@dataclass(frozen=True)
class Message:
    """`query` is the message as the search parses it, with the turns before it."""

    id: str
    catalogue: str
    kind: Kind
    query: Query
    tools: Sequence[str]


@dataclass(frozen=True)
class Data:
    catalogues: Mapping[str, Catalogue]
    messages: Sequence[Message]

    def select(self, split: Split, kind: Kind = "tool") -> list[Message]:
        return [each for each in self.messages if each.kind == kind and self.catalogues[each.catalogue].split == split]


@dataclass(frozen=True)
class Pair:
    """A text of a message, and the texts of tools. `group` are the texts that are likely to be mistaken for them."""

    message: str
    positives: Sequence[str]
    group: str


def read_data(folder: Path = DATA, glossary: Glossary | None = None) -> Data:
    tools = {tool.id: tool for tool in map(_parse_tool, read_lines(folder / "tools.jsonl"))}
    catalogues = {
        entry["name"]: Catalogue(entry["name"], entry["split"], [tools[tool_id] for tool_id in entry["tools"]])
        for entry in orjson.loads((folder / "catalogues.json").read_bytes())
    }
    glossary = glossary or Glossary()
    return Data(catalogues, [_parse_message(row, glossary) for row in read_lines(folder / "messages.jsonl")])


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def make_pairs(messages: Iterable[Message], data: Data) -> list[Pair]:
    """Make a pair of each text that the search would embed: the message alone, and the message in its context."""
    texts = {tool.id: tool.text for catalogue in data.catalogues.values() for tool in catalogue.tools}
    pairs = []
    for message in messages:
        positives = [texts[tool_id] for tool_id in message.tools]
        spoken = [message.query.texts[-1]] if message.query.context else [message.query.search_text]
        pairs += [Pair(text, positives, message.catalogue) for text in spoken]
    return pairs


def read_public_pairs(folder: Path) -> list[Pair]:
    docs = {row["id"]: row for row in read_lines(folder / "docs.jsonl")}
    pairs = []
    for row in read_lines(folder / "pairs.jsonl"):
        positives = [docs[key] for key in row["pos"]]
        group = f"{positives[0]['src']}/{positives[0]['cat']}"
        pairs.append(Pair(row["q"], [doc["text"] for doc in positives], group))
    return pairs


def group_texts(data: Data, own: Iterable[Pair], public: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the texts of all tools that are trained on, by group: a catalogue, or the public tools of one kind."""
    groups = {
        name: [tool.text for tool in data.catalogues[name].tools] for name in sorted({pair.group for pair in own})
    }
    for pair in public:
        groups.setdefault(pair.group, []).extend(pair.positives)
    return {name: list(dict.fromkeys(texts)) for name, texts in groups.items()}


def make_tool(tool_id: str, server: str, definition: Mapping[str, Any]) -> Tool:
    parsed = ToolDefinition(
        name=definition["name"],
        title=definition.get("title"),
        description=definition.get("description") or "",
        input_schema=definition.get("inputSchema") or {},
        output_schema=None,
        annotations=None,
        meta=None,
    )
    return Tool(tool_id, server, parsed)


def _parse_tool(row: Mapping[str, Any]) -> Tool:
    return make_tool(row["id"], row["server"], row)


def _parse_message(row: Mapping[str, Any], glossary: Glossary) -> Message:
    query = glossary.expand(parse_query(row.get("message"), row.get("messages")))
    return Message(row["id"], row["catalogue"], row["kind"], query, row["tools"])

"""Build the examples of known tools that ship with Toolscout: `python -m training.examples`.

They are the messages of the splits `train` and `validation`, under the first tool that they are labelled with. The
servers of the split `test` are left out, so that the effect on unknown servers can be measured.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from app.indexing import known_tools
from app.indexing.known_tools.matching import MAX_EXAMPLES, KnownTool, take_beginning
from app.indexing.known_tools.pack import FILE_NAME, encode_tools
from app.search.tokenizer import tokenize

DATA = Path(__file__).parent / "data"
TARGET = Path(known_tools.__file__).parent / FILE_NAME

MAX_CHARS = 200
MAX_BYTES = 600_000
SHIPPED_SPLITS = frozenset({"train", "validation"})

_ENOUGH = 4
"""With so many messages that need this tool alone, those that need several tools are left out."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.examples", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--target", type=Path, default=TARGET, metavar="FILE", help="default: %(default)s")
    options = parser.parse_args()
    tools = build_examples(options.data)
    content = encode_tools(tools)
    if len(content) > MAX_BYTES:
        raise SystemExit(f"{len(content):,} bytes are more than the package may carry ({MAX_BYTES:,})")
    options.target.write_bytes(content)
    count = sum(len(tool.examples) for tool in tools)
    print(f"{options.target}: {len(tools):,} tools, {count:,} examples, {len(content):,} bytes")


def build_examples(data: Path) -> list[KnownTool]:
    """Return the known tools with their examples, ordered by name."""
    definitions = {row["id"]: row for row in _read_lines(data / "tools.jsonl")}
    known = [
        KnownTool(tool["name"], take_beginning(tool["description"]), tuple(choose_examples(messages)))
        for tool_id, messages in _group_messages(data).items()
        if (tool := definitions[tool_id]).get("description")
    ]
    return sorted(
        (tool for tool in known if tool.examples), key=lambda tool: (tool.name, tool.description, tool.examples)
    )


def _group_messages(data: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the messages that may ship, by the id of their first tool."""
    catalogues = orjson.loads((data / "catalogues.json").read_bytes())
    shipped = {each["name"] for each in catalogues if each["split"] in SHIPPED_SPLITS}
    by_tool: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in _read_lines(data / "messages.jsonl"):
        # one with a context has `messages` instead
        if row["catalogue"] in shipped and row["kind"] == "tool" and "message" in row:
            by_tool[row["tools"][0]].append(row)
    return by_tool


def choose_examples(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Choose the messages of one tool that differ most from each other."""
    short = [row for row in rows if len(row["message"]) <= MAX_CHARS]
    alone = sorted({row["message"] for row in short if len(row["tools"]) == 1})
    shared = sorted({row["message"] for row in short if len(row["tools"]) > 1} - set(alone))
    chosen = _take_most_different(alone, [], MAX_EXAMPLES)
    return _take_most_different(shared, chosen, max(_ENOUGH, len(chosen)))


def _take_most_different(messages: Sequence[str], chosen: Sequence[str], count: int) -> list[str]:
    """Add the message that has least in common with those chosen so far, until there are `count`."""
    terms = {message: frozenset(tokenize(message)) for message in (*messages, *chosen)}
    taken, left = list(chosen), list(messages)

    def measure_overlap(message: str) -> float:
        own = terms[message]
        # the first message is the one with the most words
        return max((len(own & terms[each]) / max(1, len(own | terms[each])) for each in taken), default=-len(own))

    while left and len(taken) < count:
        taken.append(min(left, key=measure_overlap))
        left.remove(taken[-1])
    return taken


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    return (orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip())


if __name__ == "__main__":
    main()

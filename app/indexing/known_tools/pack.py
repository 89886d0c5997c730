"""The file of known tools: gzipped JSON Lines, one tool a line."""

import gzip
from collections.abc import Iterable
from importlib.resources import files

import orjson

from app.indexing.known_tools.matching import KnownTool, KnownTools

FILE_NAME = "examples.jsonl.gz"


def load_known_tools() -> KnownTools:
    """Load the known tools that ship with Toolscout."""
    return KnownTools(decode_tools((files("app.indexing.known_tools") / FILE_NAME).read_bytes()))


def encode_tools(tools: Iterable[KnownTool]) -> bytes:
    """Return the content of the file. The same tools give the same bytes."""
    lines = (orjson.dumps([tool.name, tool.description, *tool.examples]) for tool in tools)
    return gzip.compress(b"\n".join(lines), mtime=0)


def decode_tools(content: bytes) -> list[KnownTool]:
    rows = (orjson.loads(line) for line in gzip.decompress(content).splitlines())
    return [KnownTool(name, description, tuple(examples)) for name, description, *examples in rows]

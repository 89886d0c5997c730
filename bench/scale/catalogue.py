"""Users with any number of tools, made from the real tools of `training/data`.

The first tools of a user are the real ones. Each further tool is a plausible variation: the vectors of two real tools,
mixed and blurred a little, and most of the words of the first with some of the second.
"""

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import psycopg
from pgvector import HalfVector, SparseVector
from pgvector.psycopg import register_vector

from app.container import Container
from app.db.tables import TERM_SPACE
from app.embeddings.base import Vectors
from app.indexing.documents import embedded_text, lexical_vector
from app.mcp_types import ToolDefinition
from bench.relevance.sets import BenchTool, read_tools
from training.data import DATA, read_lines

_TOOLS_PER_SERVER = 1_000
_NOISE = 0.01
_OWN_TERMS = 0.8
_OTHER_TERMS = 0.2

_COPY_TOOLS = """
    COPY mcp_tools (user_id, id, server_id, name, description, input_schema, definition_hash, index_hash,
                    approved_hash, enriched_description, tokens) FROM STDIN
"""
_COPY_ROWS = """
    COPY mcp_tool_embeddings (user_id, model, tool_id, server_id, server_name, tool_name, embedding, content_hash,
                              lexical, tokens, enabled, tags) FROM STDIN WITH (FORMAT BINARY)
"""
_ROW_TYPES = "text text text text text text halfvec text sparsevec int4 bool text[]".split()


@dataclass(frozen=True)
class RealTools:
    definitions: Sequence[dict[str, Any]]
    vectors: Vectors
    lexical: Sequence[SparseVector]


@dataclass(frozen=True)
class SeedTool:
    definition: dict[str, Any]
    vector: HalfVector
    lexical: SparseVector


def read_messages(count: int) -> list[str]:
    messages = [row["message"] for row in read_lines(DATA / "messages.jsonl") if "message" in row]
    return random.Random(3).sample(messages, count)  # noqa: S311 the same ones each time


async def embed_real_tools(container: Container, count: int | None) -> RealTools:
    """Embed the first `count` tools of `training/data`, or all of them."""
    tools = read_tools((DATA / "tools.jsonl").read_bytes())[:count]
    parsed = [_parse(tool) for tool in tools]
    texts = [embedded_text(definition, tool.server) for definition, tool in zip(parsed, tools, strict=True)]
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))  # a batch is padded to its longest text
    embedded = await container.models.current.embedder.embed_documents([texts[number] for number in order])
    vectors = np.empty_like(embedded)
    vectors[order] = embedded
    dimension = container.model.dimension
    lexical = [lexical_vector(each, tool.server, dimension) for each, tool in zip(parsed, tools, strict=True)]
    return RealTools([tool.definition for tool in tools], vectors, lexical)


def _parse(tool: BenchTool) -> ToolDefinition:
    schema = tool.definition.get("inputSchema") or {"type": "object"}
    return ToolDefinition(tool.name, None, tool.description, schema, None, None, None)


def vary_tools(real: RealTools, count: int, seed: int = 1) -> Iterator[SeedTool]:
    """Yield the real tools, or `count` of them, and then variations of pairs."""
    generator = np.random.default_rng(seed)
    for number in range(min(count, len(real.vectors))):
        yield SeedTool(real.definitions[number], HalfVector(real.vectors[number]), real.lexical[number])
    for number in range(len(real.vectors), count):
        first, second = generator.integers(len(real.vectors), size=2)
        weight = generator.uniform(0.5, 1.0)
        noise = generator.standard_normal(real.vectors.shape[1]) * _NOISE
        mixed = weight * real.vectors[first] + (1 - weight) * real.vectors[second] + noise
        definition = real.definitions[first] | {"name": f"{real.definitions[first]['name']}_{number}"[:128]}
        lexical = _mix_terms(real.lexical[first], real.lexical[second], generator)
        yield SeedTool(definition, HalfVector(mixed / np.linalg.norm(mixed)), lexical)


def _mix_terms(first: SparseVector, second: SparseVector, generator: np.random.Generator) -> SparseVector:
    terms: dict[int, float] = {}
    for vector, share in ((second, _OTHER_TERMS), (first, _OWN_TERMS)):
        chosen = generator.random(len(vector.indices())) < share
        pairs = zip(vector.indices(), vector.values(), chosen, strict=True)
        terms |= {index: value for index, value, is_chosen in pairs if is_chosen}
    return SparseVector(terms, TERM_SPACE)


def insert_user(url: str, model: str, user_id: str, tools: Sequence[SeedTool], *, ann: bool = False) -> None:
    """Insert a user with these tools, without the embedder and without the API."""
    with psycopg.connect(url) as connection:
        register_vector(connection)
        cursor = connection.cursor()
        cursor.execute("INSERT INTO users (id, tool_count, ann) VALUES (%s, %s, %s)", (user_id, len(tools), ann))
        servers = [str(uuid.uuid4()) for _ in range(0, len(tools), _TOOLS_PER_SERVER)]
        cursor.executemany(
            "INSERT INTO mcp_servers (user_id, id, name, transport) VALUES (%s, %s, %s, 'push')",
            [(user_id, server, f"server-{number}") for number, server in enumerate(servers)],
        )
        ids = [str(uuid.uuid4()) for _ in tools]
        with cursor.copy(_COPY_TOOLS) as copy:
            for number, (tool_id, tool) in enumerate(zip(ids, tools, strict=True)):
                schema = orjson.dumps(tool.definition.get("inputSchema") or {"type": "object"}).decode()
                description = (tool.definition.get("description") or "").replace("\0", "")
                server = servers[number // _TOOLS_PER_SERVER]
                name = f"{tool.definition['name']}-{number}"  # the real ones are of many servers
                copy.write_row((user_id, tool_id, server, name, description, schema, "", "", "", "", 100))
        with cursor.copy(_COPY_ROWS) as copy:
            copy.set_types(_ROW_TYPES)
            for number, (tool_id, tool) in enumerate(zip(ids, tools, strict=True)):
                place = number // _TOOLS_PER_SERVER
                names = servers[place], f"server-{place}", str(tool.definition["name"])
                copy.write_row((user_id, model, tool_id, *names, tool.vector, "bench", tool.lexical, 100, True, []))


# Neighbours are copies of one user, made by Postgres: a million rows come to be within minutes.
_COPY_USERS = """
    INSERT INTO users (id, tool_count)
    SELECT %(prefix)s || n, %(tools)s FROM generate_series(%(first)s::int, %(last)s::int) n
"""
_COPY_OF = {
    "mcp_servers": "user_id, id, name, transport",
    "mcp_tools": "user_id, id, server_id, name, description, input_schema, definition_hash, index_hash, approved_hash,"
    " enriched_description, tokens",
    "mcp_tool_embeddings": "user_id, model, tool_id, server_id, server_name, tool_name, embedding, content_hash,"
    " lexical, tokens, enabled, tags",
}


def copy_user(url: str, original: str, prefix: str, first: int, last: int) -> None:
    """Copy a user's tools to the users `prefix` + number, from `first` to `last`."""
    with psycopg.connect(url) as connection:
        tools = connection.execute("SELECT tool_count FROM users WHERE id = %s", (original,)).fetchone()
        assert tools is not None
        numbers = {"prefix": prefix, "first": first, "last": last, "tools": tools[0], "original": original}
        connection.execute(_COPY_USERS, numbers)
        for table, columns in _COPY_OF.items():
            values = columns.replace("user_id", "%(prefix)s || n", 1)
            for name in ("server_id", "tool_id"):
                values = values.replace(f" {name}", f" md5({name} || n)::uuid::text")
            if table != "mcp_tool_embeddings":
                values = values.replace(" id,", " md5(id || n)::uuid::text,", 1)
            connection.execute(
                f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table},"
                " generate_series(%(first)s::int, %(last)s::int) n WHERE user_id = %(original)s".replace("\n", " "),
                numbers,
            )


def analyze(url: str) -> None:
    """Update the planner's statistics, as autovacuum does after a minute."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")

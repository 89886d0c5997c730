"""Index the tools of a set for a user of their own, with the product's own indexing."""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psycopg

from app.auth.permissions import Caller
from app.auth.users import delete_user, ensure_user, get_user
from app.catalog.servers import NewServer, insert_server
from app.catalog.visibility import VISIBLE, Scope
from app.cli.progress import ProgressBar
from app.container import Container, open_container
from app.embeddings.base import Vector
from app.errors import NotFound
from app.indexing import queue
from app.local_postgres.database import open_database
from app.settings import Settings
from bench.relevance.sets import BenchSet, BenchTool

_POLL_S = 0.2

_COUNT_RUNS = """
    SELECT count(*) FILTER (WHERE finished_at IS NULL), count(*) FILTER (WHERE state = 'failed'), count(*)
    FROM index_runs WHERE user_id = %(user_id)s
"""
_SELECT_REFUSED = """
    SELECT s.name, entry ->> 'name', entry ->> 'reason'
    FROM index_runs r JOIN mcp_servers s ON s.user_id = r.user_id AND s.id = r.server_id,
         jsonb_array_elements(r.refused) entry
    WHERE r.user_id = %(user_id)s
"""
_SELECT_ROWS = f"SELECT v.tool_id, v.server_name, v.tool_name, v.embedding FROM mcp_tool_embeddings v WHERE {VISIBLE}"


@dataclass(frozen=True)
class IndexedSet:
    caller: Caller
    ids: dict[str, str]
    """The ids in the set, by tool key."""
    keys: dict[str, str]
    """The tool keys, by id in the set; rejected tools have none."""
    vectors: dict[str, Vector]
    """By id in the set."""
    refused: dict[str, str]
    """The reasons of rejected tools, by id in the set."""


@contextmanager
def open_data_folder(path: Path | None) -> Iterator[Path]:
    """Make the folder of the database, or a temporary one if there is no path."""
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        path.mkdir(parents=True, exist_ok=True)
        yield path


@asynccontextmanager
async def open_bench_container(data: Path, *, known_examples: bool = True) -> AsyncIterator[Container]:
    """Open the product as it ships, but accept large servers, and never degrade an answer on a busy machine."""
    overrides: dict[str, Any] = {
        "data_dir": data,
        "database_url": None,
        "demo": False,
        "max_tools_per_server": 100_000,
        "query_embed_budget_ms": 60_000,
        "reindex_every_s": 0,
        "query_cache_size": 100_000,
        "known_examples": known_examples,
    }
    settings = Settings(_env_file=None, **overrides)
    async with open_database(settings) as url, open_container(settings, url) as container:
        yield container


async def index_set(container: Container, bench: BenchSet) -> IndexedSet:
    """Index a set from scratch: only the cached vectors of the texts survive a run of the benchmark."""
    user_id = f"bench-{bench.name}"
    await _delete_user(container, user_id)
    await _enqueue(container, user_id, bench.tools)
    await _wait_until_indexed(container, user_id, bench.name)
    await asyncio.to_thread(_analyze, container)
    return await _read_index(container, user_id, bench.tools)


async def _delete_user(container: Container, user_id: str) -> None:
    try:
        async with container.database.system_transaction() as session:
            await delete_user(session, user_id)
    except NotFound:
        return


async def _enqueue(container: Container, user_id: str, tools: Sequence[BenchTool]) -> None:
    by_server: defaultdict[str, list[BenchTool]] = defaultdict(list)
    for tool in tools:
        by_server[tool.server].append(tool)
    async with container.database.system_transaction() as session:
        await ensure_user(session, user_id, "bench")
        for name, server_tools in by_server.items():
            server = await insert_server(session, container.sealer, user_id, NewServer(name, "push"))
            payload = orjson.dumps({"tools": [tool.definition for tool in server_tools]})
            await queue.enqueue(session, user_id, server.id, payload)
    container.worker.notify()


async def _wait_until_indexed(container: Container, user_id: str, name: str) -> None:
    bar = ProgressBar(f"{name}: servers indexed")
    while True:
        async with container.database.transaction(user_id) as session:
            [(unfinished, failed, total)] = await session.rows(_COUNT_RUNS, {"user_id": user_id})
        bar.show((total - unfinished) * 20 // total * total // 20, total, "")  # in twenty steps
        if not unfinished:
            break
        await asyncio.sleep(_POLL_S)
    bar.end()
    if failed:
        raise SystemExit(f"{name}: {failed} servers could not be indexed")


def _analyze(container: Container) -> None:
    """Update the planner statistics, as autovacuum does after a minute."""
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


async def _read_index(container: Container, user_id: str, tools: Sequence[BenchTool]) -> IndexedSet:
    async with container.database.transaction(user_id) as session:
        user = await get_user(session, user_id)
        rows = await session.rows(_SELECT_ROWS, Scope(user_id, container.model.id).parameters())
        reasons = {
            (server, name): reason for server, name, reason in await session.rows(_SELECT_REFUSED, {"user_id": user_id})
        }
    set_ids = {(tool.server, tool.name): tool.id for tool in tools}
    ids = {tool_id: set_ids[server, name] for tool_id, server, name, _ in rows}
    vectors = {ids[tool_id]: embedding.to_numpy() for tool_id, _, _, embedding in rows if embedding is not None}
    keys = {set_id: tool_id for tool_id, set_id in ids.items()}
    ordered = {tool.id: vectors[tool.id] for tool in tools if tool.id in vectors}
    missing = [tool for tool in tools if tool.id not in keys]
    refused = {tool.id: reasons.get((tool.server, tool.name), "unknown reason") for tool in missing}
    return IndexedSet(Caller("user", "bench", user), ids, keys, ordered, refused)

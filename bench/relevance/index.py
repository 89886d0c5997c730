"""A set's tools on a user of their own, through the product's own indexing."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
from app.local_postgres.paths import open_database
from app.settings import Settings
from bench.relevance.sets import BenchSet, BenchTool

_LOOK_AGAIN_S = 0.2

_STATES = """
    SELECT count(*) FILTER (WHERE finished_at IS NULL), count(*) FILTER (WHERE state = 'failed'), count(*)
    FROM index_runs WHERE user_id = %(user_id)s
"""
_REFUSED = """
    SELECT s.name, told ->> 'name', told ->> 'reason'
    FROM index_runs r JOIN mcp_servers s ON s.user_id = r.user_id AND s.id = r.server_id,
         jsonb_array_elements(r.refused) told
    WHERE r.user_id = %(user_id)s
"""
_ROWS = f"SELECT v.tool_id, v.server_name, v.tool_name, v.embedding FROM mcp_tool_embeddings v WHERE {VISIBLE}"


@dataclass(frozen=True)
class Indexed:
    caller: Caller
    ids: dict[str, str]
    """The set's id of each tool key."""
    keys: dict[str, str]
    """The other way round; what was refused has none."""
    vectors: dict[str, Vector]
    """By the set's ids."""
    refused: dict[str, str]
    """Why, by the set's ids."""


@asynccontextmanager
async def opened(data: Path) -> AsyncIterator[Container]:
    """The product as it ships, save that large servers are let in, and that a busy machine degrades no answer."""
    changes: dict[str, Any] = {
        "data_dir": data,
        "database_url": None,
        "demo": False,
        "max_tools_per_server": 100_000,
        "query_embed_budget_ms": 60_000,
        "reindex_every_s": 0,
        "query_cache_size": 100_000,
    }
    settings = Settings(_env_file=None, **changes)
    async with open_database(settings) as url, open_container(settings, url) as container:
        yield container


async def indexed(container: Container, bench: BenchSet) -> Indexed:
    """Always anew: only the texts' vectors, which are cached, outlive a run of the bench."""
    user_id = f"bench-{bench.name}"
    await _forget(container, user_id)
    await _queue(container, user_id, bench.tools)
    await _finish(container, user_id, bench.name)
    await asyncio.to_thread(_analyze, container)
    return await _read(container, user_id, bench.tools)


async def _forget(container: Container, user_id: str) -> None:
    try:
        async with container.database.system_transaction() as session:
            await delete_user(session, user_id)
    except NotFound:
        return


async def _queue(container: Container, user_id: str, tools: Sequence[BenchTool]) -> None:
    of_server: defaultdict[str, list[BenchTool]] = defaultdict(list)
    for tool in tools:
        of_server[tool.server].append(tool)
    async with container.database.system_transaction() as session:
        await ensure_user(session, user_id, "bench")
        for name, its_tools in of_server.items():
            server = await insert_server(session, container.sealer, user_id, NewServer(name, "push"))
            payload = orjson.dumps({"tools": [tool.definition for tool in its_tools]})
            await queue.enqueue(session, user_id, server.id, payload)
    container.worker.wake()


async def _finish(container: Container, user_id: str, name: str) -> None:
    bar = ProgressBar(f"{name}: servers indexed")
    while True:
        async with container.database.transaction(user_id) as session:
            [(unfinished, failed, total)] = await session.rows(_STATES, {"user_id": user_id})
        bar.show((total - unfinished) * 20 // total * total // 20, total, "")  # twenty steps are enough
        if not unfinished:
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
    bar.end()
    if failed:
        raise SystemExit(f"{name}: {failed} servers could not be indexed")


def _analyze(container: Container) -> None:
    """What the database does by itself after a minute."""
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


async def _read(container: Container, user_id: str, tools: Sequence[BenchTool]) -> Indexed:
    async with container.database.transaction(user_id) as session:
        user = await get_user(session, user_id)
        rows = await session.rows(_ROWS, Scope(user_id, container.model.id).parameters())
        told = {(server, name): reason for server, name, reason in await session.rows(_REFUSED, {"user_id": user_id})}
    id_at = {(tool.server, tool.name): tool.id for tool in tools}
    ids = {tool_id: id_at[server, name] for tool_id, server, name, _ in rows}
    vectors = {ids[tool_id]: embedding.to_numpy() for tool_id, _, _, embedding in rows if embedding is not None}
    keys = {set_id: tool_id for tool_id, set_id in ids.items()}
    order = {tool.id: vectors[tool.id] for tool in tools if tool.id in vectors}
    lost = [tool for tool in tools if tool.id not in keys]
    refused = {tool.id: told.get((tool.server, tool.name), "no reason was told") for tool in lost}
    return Indexed(Caller("user", "bench", user), ids, keys, order, refused)

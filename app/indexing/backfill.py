"""The deed: the tools of all users get the vectors of a model that is to become active.

Server by server, so that it can be broken off at any moment and goes on from there; through the cache that all users
share, so that a text which many of them have is embedded once. Meanwhile the other model serves, and index runs write
rows for both.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from app.catalog.servers import get_server
from app.catalog.visibility import ServerLock, lock_server
from app.embeddings.models import LoadedModel
from app.embeddings.repository import lock_models_shared
from app.errors import NotFound
from app.indexing import store
from app.indexing.documents import text_hash
from app.indexing.plan import IndexTarget, MissingVector, ModelUpdate, StoredTool, plan_for_another_model
from app.indexing.reindex import Embedding, Indexer

_SERVERS_AT_ONCE = 20

ProgressCallback = Callable[[int, int], None]
"""How many tools are done, of how many."""

# what a vector was made from is known by its hash, the same as document.content_hash
MISSING = """
    FROM mcp_tools t LEFT JOIN mcp_tool_embeddings v
      ON v.user_id = t.user_id AND v.tool_id = t.id AND v.model = %(model)s::text
    WHERE t.vanished_at IS NULL AND v.content_hash IS DISTINCT FROM
          encode(sha256(convert_to(t.index_hash || chr(10) || %(model)s::text, 'UTF8')), 'hex')
"""
_SERVERS = f"SELECT t.user_id, t.server_id {MISSING} GROUP BY t.user_id, t.server_id ORDER BY t.user_id, t.server_id"
_COUNTS = f"""
    SELECT (SELECT count(*) {MISSING}), (SELECT count(*) FROM mcp_tools WHERE vanished_at IS NULL)
"""


@dataclass(frozen=True)
class _Plan:
    """For one server, with what it was made from."""

    user_id: str
    seen: ServerLock
    stored: dict[str, StoredTool]
    share: ModelUpdate


async def missing_vectors(indexer: Indexer, model: str) -> tuple[int, int]:
    """Of how many tools."""
    async with indexer.database.system_transaction() as session:
        [(missing, total)] = await session.rows(_COUNTS, {"model": model})
    return missing, total


async def backfill_vectors(indexer: Indexer, kept: LoadedModel, told: ProgressCallback) -> Sequence[str]:
    """Every server that lacks something, once. What could not be done, in words."""
    missing, total = await missing_vectors(indexer, kept.model.id)
    async with indexer.database.system_transaction() as session:
        servers = await session.rows(_SERVERS, {"model": kept.model.id})
    done, warnings = total - missing, list[str]()
    for group in _in_groups(servers):
        written, unable = await _fill_together(indexer, kept, group)
        done, warnings = done + written, [*warnings, *unable]
        told(min(done, total), total)
    return warnings


def _in_groups(servers: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    for start in range(0, len(servers), _SERVERS_AT_ONCE):
        yield servers[start : start + _SERVERS_AT_ONCE]


async def _fill_together(
    indexer: Indexer, kept: LoadedModel, servers: Sequence[tuple[str, str]]
) -> tuple[int, Sequence[str]]:
    """Embedded together, since a server has fewer tools than an embedder takes at once; written one by one. How many
    vectors there were to write, and what could not be done."""
    found = [await _planned(indexer, kept, user_id, server_id) for user_id, server_id in servers]
    plans = [plan for plan in found if plan is not None]
    wanted = [tool for plan in plans for tool in plan.share.plan.wanted]
    embedding = Embedding(indexer, kept.embedder, _tell_nobody)
    await embedding.gather(list(_each_text_once(wanted)))
    by_text = {text_hash(tool.text): embedding.vectors.get(tool.tool_id) for tool in _each_text_once(wanted)}
    vectors = {tool.tool_id: vector for tool in wanted if (vector := by_text[text_hash(tool.text)]) is not None}
    for plan in plans:
        own = {tool.tool_id: vectors[tool.tool_id] for tool in plan.share.plan.wanted if tool.tool_id in vectors}
        await _write(indexer, replace(plan, share=replace(plan.share, vectors=own)))
    return len(vectors), embedding.warnings


async def _tell_nobody(_left: int) -> None: ...


def _each_text_once(wanted: Sequence[MissingVector]) -> Iterator[MissingVector]:
    yield from {text_hash(tool.text): tool for tool in wanted}.values()


async def _planned(indexer: Indexer, kept: LoadedModel, user_id: str, server_id: str) -> _Plan | None:
    """None where the server has gone."""
    async with indexer.database.transaction(user_id) as session:
        try:
            server = await get_server(session, user_id, server_id)
        except NotFound:
            return None
        listing = await store.stored_listing(session, user_id, server_id)
        stored = await store.stored_tools(session, user_id, server_id, kept.model.id)
    place = IndexTarget(server_id, server.name, kept.model.id, kept.model.dimension)
    # counting and hashing takes a while: not on the event loop
    plan = await asyncio.to_thread(plan_for_another_model, listing, stored, place, indexer.count_tokens)
    return _Plan(user_id, ServerLock(server.name, server.config_version), stored, ModelUpdate(place, plan, {}))


async def _write(indexer: Indexer, plan: _Plan) -> None:
    """Unless the server has been indexed meanwhile: what it lacks then is found the next time."""
    place = plan.share.place
    async with indexer.database.transaction(plan.user_id) as session:
        models = await lock_models_shared(session)
        locked = await lock_server(session, plan.user_id, place.server_id)
        now = await store.stored_tools(session, plan.user_id, place.server_id, place.model)
        if place.model in models[1:] and locked == plan.seen and now == plan.stored:
            await store.apply_inactive_model(session, plan.user_id, plan.share)

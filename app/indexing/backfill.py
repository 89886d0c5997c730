"""Backfills the vectors of a model that is about to become active, for the tools of all users.

It proceeds server by server, so that it can be interrupted at any time and continue later. A text that many users have
is embedded once: no user can observe it here, and index runs read such entries only for inactive models. Meanwhile the
active model serves, and index runs write rows for both models.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.catalog.rules import get_rules
from app.catalog.servers import get_server
from app.catalog.visibility import ServerLock, lock_server
from app.embeddings.loaded_models import LoadedModel
from app.embeddings.repository import lock_models_shared
from app.errors import NotFound
from app.indexing import store
from app.indexing.cache_scope import EVERYONE
from app.indexing.document_embedder import DocumentEmbedder
from app.indexing.plan import ModelUpdate, StoredTool, plan_backfill
from app.indexing.reindex import Indexer, make_target

SERVERS_PER_BATCH = 20

ProgressCallback = Callable[[int, int], None]
"""Called with the number of tools that have a vector and the number of all tools."""

# the same formula as documents.content_hash
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
class _ServerPlan:
    """The update for one server, with the state that it was planned for."""

    user_id: str
    seen: ServerLock
    stored: dict[str, StoredTool]
    update: ModelUpdate


async def count_missing_vectors(indexer: Indexer, model: str) -> tuple[int, int]:
    """Return the number of tools without an up-to-date vector of the model, and the number of all tools."""
    async with indexer.database.system_transaction() as session:
        [(missing, total)] = await session.rows(_COUNTS, {"model": model})
    return missing, total


async def backfill_vectors(indexer: Indexer, loaded: LoadedModel, on_progress: ProgressCallback) -> Sequence[str]:
    """Process every server with missing vectors once. Return warnings about the tools that could not be embedded."""
    missing, total = await count_missing_vectors(indexer, loaded.model.id)
    async with indexer.database.system_transaction() as session:
        servers = await session.rows(_SERVERS, {"model": loaded.model.id})
    done, warnings = total - missing, list[str]()
    for start in range(0, len(servers), SERVERS_PER_BATCH):
        written, new_warnings = await _backfill_servers(indexer, loaded, servers[start : start + SERVERS_PER_BATCH])
        done += written
        warnings += new_warnings
        on_progress(min(done, total), total)
    return warnings


async def _backfill_servers(
    indexer: Indexer, loaded: LoadedModel, servers: Sequence[tuple[str, str]]
) -> tuple[int, Sequence[str]]:
    """Embed the tools of several servers together, which fills the embedder's batches, and write them one by one.

    Return the number of vectors and the warnings.
    """
    found = [await _plan_server(indexer, loaded, user_id, server_id) for user_id, server_id in servers]
    plans = [plan for plan in found if plan is not None]
    missing = [tool for plan in plans for tool in plan.update.plan.count_missing_vectors]
    embedder = DocumentEmbedder(indexer.database, loaded, indexer.metrics, indexer.tracing)
    await embedder.embed(missing)
    vectors = embedder.vectors
    for plan in plans:
        tool_ids = [tool.tool_id for tool in plan.update.plan.count_missing_vectors]
        own = {tool_id: vectors[tool_id] for tool_id in tool_ids if tool_id in vectors}
        await _apply(indexer, replace(plan, update=replace(plan.update, vectors=own)))
    return len(vectors), embedder.warnings


async def _plan_server(indexer: Indexer, loaded: LoadedModel, user_id: str, server_id: str) -> _ServerPlan | None:
    """Return None if the server has been deleted."""
    async with indexer.database.transaction(user_id) as session:
        try:
            server = await get_server(session, user_id, server_id)
        except NotFound:
            return None
        listing = await store.read_listing(session, user_id, server_id)
        stored = await store.read_tools(session, user_id, server_id, loaded.model.id)
        rules = await get_rules(session, user_id)
    target = await make_target(indexer, server, loaded.model, rules, EVERYONE, EVERYONE)
    # in a thread: counting tokens and hashing would block the event loop
    plan = await asyncio.to_thread(plan_backfill, listing, stored, target, indexer.count_tokens)
    return _ServerPlan(user_id, ServerLock(server.name, server.config_version), stored, ModelUpdate(target, plan, {}))


async def _apply(indexer: Indexer, plan: _ServerPlan) -> None:
    """Write the plan, unless the server has been indexed meanwhile: the next round finds what is then missing."""
    target = plan.update.target
    async with indexer.database.transaction(plan.user_id) as session:
        models = await lock_models_shared(session)
        locked = await lock_server(session, plan.user_id, target.server_id)
        stored = await store.read_tools(session, plan.user_id, target.server_id, target.model)
        if target.model in models[1:] and locked == plan.seen and stored == plan.stored:
            await store.apply_inactive_model(session, plan.user_id, plan.update)

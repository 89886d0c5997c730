"""The deed: another embedding model takes over while the service runs, and the way back.

Registered, so that every index run writes rows for it; filled, in the background, while the other one serves; switched
to in one transaction, when no vector is missing. The old one's rows stay, and follow every change, until it is dropped:
whoever began with it ends with it, and the way back is as short as what has changed since.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, text

from app.embeddings import repository
from app.embeddings.models import LoadedModel
from app.embeddings.repository import EmbeddingModel, list_models, lock_models_exclusive
from app.errors import Conflict, NotFound
from app.indexing.backfill import MISSING, ProgressCallback, backfill_vectors, missing_vectors
from app.indexing.reindex import Indexer
from app.search.hnsw import drop_hnsw_index, ensure_hnsw_index, hnsw_index_name, list_hnsw_indexes

_MOST_ROUNDS = 20


class OwnerConnection(Protocol):
    """Opens a connection as the database's owner."""

    def __call__(self, *, autocommit: bool = False) -> AbstractContextManager[Connection]: ...


_PENDING = """
    UPDATE mcp_servers s SET pending_count = now.pending FROM (
        SELECT v.user_id, v.server_id, count(*) FILTER (WHERE v.embedding IS NULL) AS pending
        FROM mcp_tool_embeddings v WHERE v.model = %(model)s GROUP BY v.user_id, v.server_id
    ) now
    WHERE s.user_id = now.user_id AND s.id = now.server_id AND s.pending_count <> now.pending
"""
_BUMP = "UPDATE users SET catalog_version = nextval('catalog_versions')"

_LEFT_OVER = """
    SELECT EXISTS (SELECT FROM mcp_tool_embeddings WHERE model = %(model)s)
        OR EXISTS (SELECT FROM embedding_cache WHERE model = %(model)s)
"""
_UNREGISTERED = "model NOT IN (SELECT id FROM embedding_models)"


async def change_model(
    indexer: Indexer, owner: OwnerConnection, kept: LoadedModel, told: ProgressCallback, *, incomplete: bool = False
) -> None:
    """Raises `Conflict` where vectors stay missing, unless it may be `incomplete`: such tools are found by their words
    until the vectors follow."""
    missing, total = await missing_vectors(indexer, kept.model.id)
    told(total - missing, total)
    warnings: Sequence[str] = ()
    for _ in range(_MOST_ROUNDS):
        before = missing
        warnings = await backfill_vectors(indexer, kept, told)
        missing, _ = await missing_vectors(indexer, kept.model.id)
        if missing == 0 or missing == before:
            break
    await asyncio.to_thread(_make_index, owner, kept.model)
    left = await asyncio.to_thread(_switch, owner, kept.model.id, incomplete=incomplete)
    if left and not incomplete:
        reason = f" ({warnings[-1]})" if warnings else ""
        raise Conflict(f"{left} of {total} tools have no vector of {kept.model.id} yet{reason}; nothing was switched")


def _make_index(owner: OwnerConnection, model: EmbeddingModel) -> None:
    """While everybody goes on writing, which is why it stands outside of a transaction."""
    with owner(autocommit=True) as connection:
        ensure_hnsw_index(connection, model.id, model.dimension, concurrently=True)


def _switch(owner: OwnerConnection, model_id: str, *, incomplete: bool) -> int:
    """The one moment of change. How many vectors are missing: if any, and it may not be so, all stays as it was."""
    with owner() as connection:
        lock_models_exclusive(connection)
        missing = int(connection.exec_driver_sql(f"SELECT count(*) {MISSING}", {"model": model_id}).scalar_one())
        if missing and not incomplete:
            return missing
        repository.activate(connection, model_id)
        connection.exec_driver_sql(_PENDING, {"model": model_id})
        connection.exec_driver_sql(_BUMP)
        return missing


async def drop_model(owner: OwnerConnection, model_id: str, told: ProgressCallback, *, grace_s: float) -> None:
    """Raises `Conflict` for the active one. Its rows go after a while, for requests that began with it. Broken off, it
    is finished by dropping the same model again."""
    await asyncio.to_thread(_unregister, owner, model_id)
    await asyncio.sleep(grace_s)
    await asyncio.to_thread(_sweep, owner, told)


def _unregister(owner: OwnerConnection, model_id: str) -> None:
    with owner() as connection:
        lock_models_exclusive(connection)
        known = next((model for model in list_models(connection) if model.id == model_id), None)
        if known is None and not connection.exec_driver_sql(_LEFT_OVER, {"model": model_id}).scalar_one():
            raise NotFound(f"there is no model {model_id!r}: see `toolscout model list`")
        if known is not None and known.active:
            raise Conflict(f"{model_id} is active: let another one take over first (`toolscout model use`)")
        repository.unregister(connection, model_id)


def _sweep(owner: OwnerConnection, told: ProgressCallback) -> None:
    """What no registered model needs any more. User by user, so that nobody has to wait long."""
    with owner() as connection:
        statement = f"SELECT DISTINCT user_id FROM mcp_tool_embeddings WHERE {_UNREGISTERED}"
        users = list(connection.scalars(text(statement)))
    for done, user_id in enumerate(users, start=1):
        with owner() as connection:
            # whoever indexes, or changes rules, writes the same rows, and holds the user first
            connection.exec_driver_sql("SELECT FROM users WHERE id = %(id)s FOR UPDATE", {"id": user_id})
            rows = f"DELETE FROM mcp_tool_embeddings WHERE user_id = %(id)s AND {_UNREGISTERED}"
            connection.exec_driver_sql(rows, {"id": user_id})
        told(done, len(users))
    with owner(autocommit=True) as connection:
        connection.exec_driver_sql(f"DELETE FROM embedding_cache WHERE {_UNREGISTERED}")
        needed = {hnsw_index_name(model.id) for model in list_models(connection)}
        for name in set(list_hnsw_indexes(connection)) - needed:
            drop_hnsw_index(connection, name)

"""Use case: switch to another embedding model while the service runs, and switch back.

A registered model gets rows from every index run. Its vectors are backfilled while the active model serves; when none
is missing, one transaction makes it active. The rows of the previous model stay, and follow every change, until it is
dropped: requests that started with it finish with it, and switching back only needs the vectors that changed since.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, text

from app.auth.users import (
    DRAW_VERSION,
    LIST_NEWER_VERSIONS,
    LOCK_USER,
    RAISE_CATALOG_VERSION,
    RAISE_OLDER_VERSIONS,
)
from app.embeddings import repository
from app.embeddings.loaded_models import LoadedModel
from app.embeddings.repository import list_models, lock_models_exclusive
from app.errors import Conflict, EmbeddingFailed, NotFound
from app.indexing.backfill import MISSING, ProgressCallback, backfill_vectors, count_missing_vectors
from app.indexing.example_backfill import backfill_examples
from app.indexing.large_tenants import wait_and_update_large_tenants
from app.indexing.reindex import Indexer

logger = logging.getLogger("toolscout.indexing")

_MAX_BACKFILL_ROUNDS = 20


class OwnerConnection(Protocol):
    """Opens a connection as the database's owner."""

    def __call__(self, *, autocommit: bool = False) -> AbstractContextManager[Connection]: ...


_UPDATE_PENDING_COUNTS = """
    UPDATE mcp_servers s SET pending_count = now.pending FROM (
        SELECT v.user_id, v.server_id, count(*) FILTER (WHERE v.embedding IS NULL) AS pending
        FROM mcp_tool_embeddings v WHERE v.model = %(model)s GROUP BY v.user_id, v.server_id
    ) now
    WHERE s.user_id = now.user_id AND s.id = now.server_id AND s.pending_count <> now.pending
"""
_COUNT_LEARNED = """
    SELECT count(*) FROM tool_examples WHERE source = 'use' AND model = %(model)s
"""
_HAS_ROWS = "SELECT EXISTS (SELECT 1 FROM {table} WHERE model = %(model)s)"
_IS_UNREGISTERED = "model NOT IN (SELECT id FROM embedding_models)"


async def change_model(
    indexer: Indexer,
    owner: OwnerConnection,
    loaded: LoadedModel,
    on_progress: ProgressCallback,
    *,
    incomplete: bool = False,
) -> int:
    """Backfill the model's vectors, create the indexes of large users and make it active.

    Return how many examples that were learnt from use stay with the previous model: their messages are not known, so
    that the new model cannot embed them. Examples in words are embedded again.

    Raises `Conflict` if vectors are still missing, unless `incomplete` allows it: lexical search finds such tools until
    their vectors follow.
    """
    missing, total = await count_missing_vectors(indexer, loaded.model.id)
    on_progress(total - missing, total)
    warnings: Sequence[str] = ()
    for _ in range(_MAX_BACKFILL_ROUNDS):
        before = missing
        warnings = await backfill_vectors(indexer, loaded, on_progress)
        missing, _ = await count_missing_vectors(indexer, loaded.model.id)
        if missing == 0 or missing == before:
            break
    await asyncio.to_thread(_update_large_tenants, owner)
    await _backfill_examples(indexer, loaded, required=not incomplete)
    learned = await asyncio.to_thread(_count_learned_of_active, owner)
    missing = await asyncio.to_thread(_activate, owner, loaded.model.id, incomplete=incomplete)
    if missing and not incomplete:
        reason = f" ({warnings[-1]})" if warnings else ""
        raise Conflict(
            f"{missing} of {total} tools have no vector of {loaded.model.id} yet{reason}; the active model is unchanged"
        )
    await _backfill_examples(indexer, loaded, required=False)  # those that were written while the model became active
    return learned


async def _backfill_examples(indexer: Indexer, loaded: LoadedModel, *, required: bool) -> None:
    try:
        await backfill_examples(indexer.database, loaded)
    except EmbeddingFailed:
        if required:
            raise
        logger.warning("failed to embed examples in words: they do not count until they are written again")


def _count_learned_of_active(owner: OwnerConnection) -> int:
    with owner() as connection:
        return sum(_count_learned(connection, model.id) for model in list_models(connection) if model.active)


def _count_learned(connection: Connection, model_id: str) -> int:
    return int(connection.exec_driver_sql(_COUNT_LEARNED, {"model": model_id}).scalar_one())


def _update_large_tenants(owner: OwnerConnection) -> None:
    """Create and drop indexes concurrently, without blocking writers, which is not possible inside a transaction."""
    with owner(autocommit=True) as connection:
        wait_and_update_large_tenants(connection)


def _activate(owner: OwnerConnection, model_id: str, *, incomplete: bool) -> int:
    """Make the model active in one transaction. Return the number of missing vectors.

    If there are any, and `incomplete` is False, nothing changes.
    """
    with owner() as connection:
        lock_models_exclusive(connection)
        missing = int(connection.exec_driver_sql(f"SELECT count(*) {MISSING}", {"model": model_id}).scalar_one())
        if missing and not incomplete:
            return missing
        repository.activate(connection, model_id)
        connection.exec_driver_sql(_UPDATE_PENDING_COUNTS, {"model": model_id})
        _raise_catalog_versions(connection)
        return missing


def _raise_catalog_versions(connection: Connection) -> None:
    """Like `raise_all_catalog_versions`, with a connection of the owner."""
    version = -1
    for _ in range(2):
        above, version = version, connection.exec_driver_sql(DRAW_VERSION).scalar_one()
        connection.exec_driver_sql(RAISE_OLDER_VERSIONS, {"above": above, "version": version})
    for user_id in list(connection.exec_driver_sql(LIST_NEWER_VERSIONS, {"version": version}).scalars()):
        connection.exec_driver_sql(LOCK_USER, {"user_id": user_id})
        newer = connection.exec_driver_sql(DRAW_VERSION).scalar_one()
        connection.exec_driver_sql(RAISE_CATALOG_VERSION, {"user_id": user_id, "version": newer})


async def drop_model(owner: OwnerConnection, model_id: str, on_progress: ProgressCallback, *, grace_s: float) -> int:
    """Unregister a model and delete its rows after `grace_s`, when requests that started with it have finished.

    Return how many examples that were learnt from use end with it.

    Raises `Conflict` for the active model. An interrupted drop is completed by dropping the same model again.
    """
    learned = await asyncio.to_thread(_unregister, owner, model_id)
    await asyncio.sleep(grace_s)
    await asyncio.to_thread(_delete_unregistered_rows, owner, on_progress)
    return learned


def _unregister(owner: OwnerConnection, model_id: str) -> int:
    """Return how many examples that were learnt from use the model has."""
    with owner() as connection:
        lock_models_exclusive(connection)
        known = next((model for model in list_models(connection) if model.id == model_id), None)
        if known is None and not _has_leftovers(connection, model_id):
            raise NotFound(f"model {model_id!r} not found: see `toolscout model list`")
        if known is not None and known.active:
            raise Conflict(f"{model_id} is the active model: switch to another one first (`toolscout model use`)")
        repository.unregister(connection, model_id)
        return _count_learned(connection, model_id)


def _has_leftovers(connection: Connection, model_id: str) -> bool:
    """Return whether a drop of the model was interrupted. Each table is asked by itself: they are distributed apart."""
    statements = [
        _HAS_ROWS.format(table=table) for table in ("mcp_tool_embeddings", "embedding_cache", "tool_examples")
    ]
    return any(connection.exec_driver_sql(each, {"model": model_id}).scalar_one() for each in statements)


def _delete_unregistered_rows(owner: OwnerConnection, on_progress: ProgressCallback) -> None:
    """Delete rows, cached vectors and indexes of all unregistered models, one user at a time to keep locks short."""
    with owner() as connection:
        statement = f"SELECT DISTINCT user_id FROM mcp_tool_embeddings WHERE {_IS_UNREGISTERED}"
        users = list(connection.scalars(text(statement)))
    for done, user_id in enumerate(users, start=1):
        with owner() as connection:
            # lock the user first, in the order of index runs and rule changes, which write the same rows
            connection.exec_driver_sql("SELECT 1 FROM users WHERE id = %(id)s FOR UPDATE", {"id": user_id})
            rows = f"DELETE FROM mcp_tool_embeddings WHERE user_id = %(id)s AND {_IS_UNREGISTERED}"
            connection.exec_driver_sql(rows, {"id": user_id})
        on_progress(done, len(users))
    with owner(autocommit=True) as connection:
        for table in ("embedding_cache", "discovery_vectors", "tool_examples"):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {_IS_UNREGISTERED}")
    _update_large_tenants(owner)

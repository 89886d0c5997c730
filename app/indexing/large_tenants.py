"""Keeps the indexes and the counts of very large tenants up to date.

A tenant that has grown above `SEARCH_ANN_ABOVE` tools has `ann` set, and the next pass does the rest, without blocking
anybody: it flags the tenant's rows in batches, so that triggers copy them to `large_tenant_tools`, builds the indexes
concurrently, and counts. The counts come last: a tenant without them is searched exactly. For a tenant that has shrunk,
a model that was dropped, or a user who was deleted, it undoes all this.

Only the database's owner may create indexes. One process at a time does.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from app.catalog.projects import project_number
from app.db.distribute import is_distributed
from app.db.engine import Database
from app.errors import QueryFailed, Unavailable
from app.local_postgres.database import async_owner_connection
from app.search.hnsw import INDEX_PREFIXES, LargeTenant, drop_index, ensure_indexes, list_indexes

logger = logging.getLogger("toolscout.indexing")

# an arbitrary number, the same in all versions
_LOCK = 7_300_418_257
_LOCK_POLL_S = 0.2
_FLAGGED_AT_ONCE = 2_000
_INTERVAL_S = 30.0
_PAUSE_FACTOR = 20
"""The pause is this many times as long as counting took, so that a tenant that changes all the time costs little."""
_MAX_TAGS = 5_000

_HAS_WORK = f"""
    SELECT EXISTS (SELECT 1 FROM users WHERE ann) OR EXISTS (SELECT 1 FROM large_tenant_tools)
        OR EXISTS (SELECT 1 FROM pg_class WHERE {" OR ".join(f"relname ^@ '{prefix}'" for prefix in INDEX_PREFIXES)})
"""
_LARGE_TENANTS = """
    SELECT u.id, m.id, m.dimension, u.catalog_version, u.tool_count FROM users u, embedding_models m
    WHERE u.ann ORDER BY u.id, m.id
"""
_NO_LONGER_LARGE = """
    SELECT u.id FROM users u WHERE NOT u.ann AND EXISTS (SELECT 1 FROM large_tenant_tools l WHERE l.user_id = u.id)
"""
# The user is locked first, in the order of index runs and rule changes, which write the same rows.
_FLAG_ROWS = """
    WITH locked AS MATERIALIZED (SELECT id FROM users WHERE id = :user_id FOR UPDATE),
    batch AS MATERIALIZED (
        SELECT v.model, v.tool_id FROM locked, mcp_tool_embeddings v
        WHERE v.user_id = locked.id AND v.ann <> :ann LIMIT :size)
    UPDATE mcp_tool_embeddings v SET ann = :ann FROM batch
    WHERE v.user_id = :user_id AND v.model = batch.model AND v.tool_id = batch.tool_id
"""
_DELETE_OUTDATED = """
    DELETE FROM {table} counted WHERE NOT EXISTS (
        SELECT 1 FROM users u, embedding_models m WHERE u.id = counted.user_id AND m.id = counted.model AND u.ann)
"""
_COUNTED_VERSION = """
    SELECT version FROM large_tenant_stats WHERE user_id = :user_id AND model = :model AND project_id = ''
"""
_COUNT_TERMS = """
    WITH counted AS MATERIALIZED (
        SELECT term, count(*) AS tools
        FROM large_tenant_tools l JOIN mcp_tool_embeddings v USING (user_id, model, tool_id), unnest(l.terms) term
        WHERE user_id = :user_id AND model = :model AND v.enabled GROUP BY term),
    vanished AS (
        DELETE FROM large_tenant_terms t
        WHERE t.user_id = :user_id AND t.model = :model AND t.term_id NOT IN (SELECT term FROM counted))
    INSERT INTO large_tenant_terms AS t (user_id, model, term_id, tools)
    SELECT :user_id, :model, term, tools FROM counted
    ON CONFLICT (user_id, model, term_id) DO UPDATE SET tools = excluded.tools WHERE t.tools <> excluded.tools
"""
# The user counts as the project of number 0, which no project has.
_COUNT_TOOLS = f"""
    WITH scopes AS (SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:numbers AS bigint[])) AS s (id, number)),
    visible AS MATERIALIZED (
        SELECT tokens, tags, 0::bigint || projects AS numbers, project_tags FROM mcp_tool_embeddings
        WHERE user_id = :user_id AND model = :model AND enabled),
    tools AS (
        SELECT number, count(*) AS searched, sum(tokens) AS tokens
        FROM visible, unnest(numbers) number GROUP BY number),
    tags AS (
        SELECT id, (array_agg(tag ORDER BY tag))[1:{_MAX_TAGS}] AS tags FROM (
            SELECT s.id, tag FROM visible, unnest(numbers) number JOIN scopes s USING (number), unnest(tags) tag
            UNION
            SELECT s.id, tag FROM visible, unnest(numbers) number JOIN scopes s USING (number),
                   jsonb_array_elements_text(project_tags -> s.id) tag
        ) each GROUP BY id),
    vanished AS (
        DELETE FROM large_tenant_stats s
        WHERE s.user_id = :user_id AND s.model = :model AND s.project_id NOT IN (SELECT id FROM scopes))
    INSERT INTO large_tenant_stats (user_id, model, project_id, version, searched, tokens, tags)
    SELECT :user_id, :model, scopes.id, :version,
           coalesce(searched, 0), coalesce(tokens, 0), coalesce(tags.tags, '{{}}')
    FROM scopes LEFT JOIN tools USING (number) LEFT JOIN tags USING (id)
    ON CONFLICT (user_id, model, project_id) DO UPDATE
    SET version = excluded.version, searched = excluded.searched, tokens = excluded.tokens, tags = excluded.tags
"""


@dataclass(frozen=True)
class _Catalogue:
    version: int
    tool_count: int


async def maintain_large_tenants(database: Database, url: str) -> None:
    """Run a pass when the service starts, and then whenever there are large tenants. Runs until it is cancelled."""
    is_first, pause_s = True, 0.0
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _INTERVAL_S
        if database.is_distributed:
            return  # see db/distribute.py
        try:
            if is_first or await _has_work(database):
                counting_s = await run_pass(url)
                pause_s = max(pause_s, _PAUSE_FACTOR * counting_s)
            is_first = False
        except (SQLAlchemyError, Unavailable, QueryFailed):
            logger.exception("failed to bring the indexes of large users up to date")


async def _has_work(database: Database) -> bool:
    async with database.system_transaction() as session:
        [(has_work,)] = await session.rows(_HAS_WORK)
    return bool(has_work)


async def run_pass(url: str) -> float:
    """Bring all indexes and counts up to date; `url` is the owner's. Return how many seconds counting took.

    If the task is cancelled, so is the statement that runs: an index may take minutes.
    """
    async with async_owner_connection(url) as connection:
        return await connection.run_sync(update_large_tenants) or 0.0


def wait_and_update_large_tenants(connection: Connection) -> None:
    """Bring all indexes and counts up to date, after another process that does so."""
    while update_large_tenants(connection) is None:
        # not by waiting for the lock in Postgres: to build an index, the other process waits for all transactions
        time.sleep(_LOCK_POLL_S)


def update_large_tenants(connection: Connection) -> float | None:
    """Bring all indexes and counts up to date. Needs the owner's connection, in autocommit mode.

    Return how many seconds counting took, or None if another process does so already.
    """
    if is_distributed(connection):
        return 0.0
    with _lock(connection) as is_locked:
        if not is_locked:
            return None
        rows = connection.execute(text(_LARGE_TENANTS)).all()
        tenants = {LargeTenant(*row[:3]): _Catalogue(*row[3:]) for row in rows}
        _remove_outdated(connection, tenants)
        return sum(_update_tenant(connection, tenant, catalogue) for tenant, catalogue in tenants.items())


@contextmanager
def _lock(connection: Connection) -> Iterator[bool]:
    is_locked = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}))
    try:
        yield is_locked
    finally:
        if is_locked and not connection.invalidated:
            connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})


def _remove_outdated(connection: Connection, tenants: Mapping[LargeTenant, _Catalogue]) -> None:
    """The counts go first, so that no search looks for an index that is gone."""
    for table in ("large_tenant_stats", "large_tenant_terms"):
        connection.execute(text(_DELETE_OUTDATED.format(table=table)))
    needed = {name for tenant in tenants for name in (tenant.hnsw_index, tenant.words_index)}
    for name in list_indexes(connection).keys() - needed:
        drop_index(connection, name)
    for user_id in connection.scalars(text(_NO_LONGER_LARGE)).all():
        _flag_rows(connection, user_id, ann=False)


def _update_tenant(connection: Connection, tenant: LargeTenant, catalogue: _Catalogue) -> float:
    key = {"user_id": tenant.user_id, "model": tenant.model}
    indexes = list_indexes(connection)
    is_indexed = all(indexes.get(name) for name in (tenant.hnsw_index, tenant.words_index))
    if is_indexed and connection.scalar(text(_COUNTED_VERSION), key) == catalogue.version:
        return 0.0
    _flag_rows(connection, tenant.user_id, ann=True)
    if not is_indexed:
        logger.info("building the indexes of a large user", extra={"tools": catalogue.tool_count})
        ensure_indexes(connection, tenant, catalogue.tool_count)
        connection.exec_driver_sql("ANALYZE large_tenant_tools")
    started = time.perf_counter()
    connection.execute(text(_COUNT_TERMS), key)
    projects = list(connection.scalars(text("SELECT id FROM projects WHERE user_id = :user_id"), key))
    scopes = {"ids": ["", *projects], "numbers": [0, *map(project_number, projects)]}
    connection.execute(text(_COUNT_TOOLS), key | scopes | {"version": catalogue.version})
    return time.perf_counter() - started


def _flag_rows(connection: Connection, user_id: str, *, ann: bool) -> None:
    """Set `ann` of the user's rows in short transactions; triggers copy or delete what the indexes need."""
    parameters = {"user_id": user_id, "ann": ann, "size": _FLAGGED_AT_ONCE}
    while connection.execute(text(_FLAG_ROWS), parameters).rowcount == _FLAGGED_AT_ONCE:
        pass

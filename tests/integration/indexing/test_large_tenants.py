"""The indexes of large users: when they are built and dropped, and that their rows follow every change."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from app.container import Container
from app.db.engine import driver_url
from app.indexing import large_tenants
from app.indexing.large_tenants import maintain_large_tenants, run_pass
from app.search.hnsw import LargeTenant, list_indexes, quote_literal
from tests.support.clients import TestUser, new_user, open_client
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import ADMIN_KEY, OpenService, tool
from tests.support.large_tenants import update_large_tenants
from tests.support.seed_vectors import owner_connection, owner_url
from tests.support.worker_steps import until

ABOVE = 10
"""So many tools a user may have before the search needs indexes."""


@pytest.fixture
async def service(open_service: OpenService, embedding_server: FakeEmbeddingServer) -> AsyncIterator[Container]:
    async with open_service(**embedding_server.settings(search_ann_above=ABOVE)) as container:
        yield container


@pytest.fixture
async def ada(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as user:
        yield user


def make_tools(count: int) -> list[dict[str, object]]:
    return [tool(f"Tool_{number}", f"Reads thing{number}.") for number in range(count)]


def tenant_of(service: Container, user: TestUser) -> LargeTenant:
    return LargeTenant(user.id, service.model.id, service.model.dimension)


def read_indexes(service: Container) -> dict[str, bool]:
    engine = create_engine(driver_url(owner_url(service)), poolclass=NullPool)
    with engine.connect() as connection:
        return list_indexes(connection)


def query(service: Container, statement: str, *parameters: object) -> list[Any]:
    with owner_connection(service) as connection:
        cursor = connection.execute(statement, parameters)
        return [] if cursor.description is None else cursor.fetchall()


def read_state(service: Container, user: TestUser) -> tuple[bool, int, int, bool]:
    """Return whether the user is large, how many rows are flagged and copied, and whether they are counted."""
    [row] = query(
        service,
        "SELECT ann, (SELECT count(*) FROM mcp_tool_embeddings e WHERE e.user_id = u.id AND e.ann),"
        " (SELECT count(*) FROM large_tenant_tools l WHERE l.user_id = u.id),"
        " EXISTS (SELECT FROM large_tenant_stats s WHERE s.user_id = u.id) FROM users u WHERE id = %s",
        user.id,
    )
    return row  # type: ignore[no-any-return]


async def test_a_user_who_grows_gets_indexes_and_loses_them_well_below_the_limit(
    service: Container, ada: TestUser
) -> None:
    server_id = await ada.add_tools(*make_tools(ABOVE))
    tenant = tenant_of(service, ada)
    await update_large_tenants(service)
    assert read_state(service, ada) == (False, 0, 0, False)

    await ada.push(server_id, make_tools(ABOVE + 1))
    await update_large_tenants(service)
    assert read_state(service, ada) == (True, ABOVE + 1, ABOVE + 1, True)
    names = {tenant.hnsw_index, tenant.words_index}
    assert {name for name, valid in read_indexes(service).items() if valid} >= names

    await ada.push(server_id, make_tools(ABOVE - 1))  # a few tools fewer are no reason to build them again tomorrow
    await update_large_tenants(service)
    assert read_state(service, ada) == (True, ABOVE - 1, ABOVE - 1, True)

    await ada.push(server_id, make_tools(ABOVE // 2))
    await update_large_tenants(service)
    assert read_state(service, ada) == (False, 0, 0, False)
    assert not names & read_indexes(service).keys()


async def test_the_copied_rows_follow_every_change(service: Container, ada: TestUser) -> None:
    server_id = await ada.add_tools(*make_tools(ABOVE + 2))
    await update_large_tenants(service)
    unequal = """
        SELECT count(*) FROM (SELECT user_id, model, tool_id, lower(tool_name), sparsevec_indices(lexical), embedding
                              FROM mcp_tool_embeddings WHERE ann) v
        FULL JOIN large_tenant_tools l USING (user_id, model, tool_id)
        WHERE (v.lower, v.sparsevec_indices, v.embedding) IS DISTINCT FROM (l.name, l.terms, l.embedding)
    """
    copies = "SELECT name, array_length(terms, 1) FROM large_tenant_tools WHERE user_id = %s AND name = 'tool_1'"
    [(_, few)] = query(service, copies, ada.id)
    changed = [tool("Tool_1", "Reads many other things of a kind."), *make_tools(ABOVE + 4)[2:]]
    await ada.push(server_id, changed)
    [(_, more)] = query(service, copies, ada.id)
    assert more > few
    assert query(service, unequal) == [(0,)]
    assert read_state(service, ada)[1:3] == (ABOVE + 3, ABOVE + 3)
    assert (await ada.http.delete(f"/servers/{server_id}")).status_code == 204
    assert query(service, "SELECT count(*) FROM large_tenant_tools WHERE user_id = %s", ada.id) == [(0,)]


async def test_hiding_tools_does_not_touch_the_indexed_rows(service: Container, ada: TestUser) -> None:
    await ada.add_tools(*make_tools(ABOVE + 1))
    await update_large_tenants(service)
    versions = "SELECT tool_id, xmin::text, ctid::text FROM large_tenant_tools WHERE user_id = %s ORDER BY 1"
    before = query(service, versions, ada.id)
    rules = {"rules": [{"pattern": ["*"], "enabled": False}]}
    assert (await ada.http.put("/rules", json=rules)).status_code == 200
    assert query(service, versions, ada.id) == before
    assert query(service, "SELECT count(*) FROM mcp_tool_embeddings WHERE user_id = %s AND enabled", ada.id) == [(0,)]


async def test_counts_are_of_the_visible_tools_and_follow_the_catalogue(service: Container, ada: TestUser) -> None:
    await ada.add_tools(*make_tools(ABOVE + 2))
    await update_large_tenants(service)
    counts = "SELECT searched FROM large_tenant_stats WHERE user_id = %s AND project_id = ''"
    words = "SELECT max(tools), count(*) FROM large_tenant_terms WHERE user_id = %s"
    assert query(service, counts, ada.id) == [(ABOVE + 2,)]
    [(most, terms)] = query(service, words, ada.id)
    rules = {"rules": [{"pattern": ["Tool_1"], "enabled": False}]}
    assert (await ada.http.put("/rules", json=rules)).status_code == 200
    await update_large_tenants(service)
    assert query(service, counts, ada.id) == [(ABOVE + 1,)]
    [(most_visible, visible_terms)] = query(service, words, ada.id)
    assert (most, most_visible) == (ABOVE + 2, ABOVE + 1)
    assert visible_terms < terms


async def test_an_index_of_an_interrupted_build_is_built_again(service: Container, ada: TestUser) -> None:
    await ada.add_tools(*make_tools(ABOVE + 1))
    name = tenant_of(service, ada).hnsw_index
    query(service, f"CREATE INDEX {name} ON large_tenant_tools (tool_id)")
    query(service, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", name)
    await update_large_tenants(service)
    [(definition,)] = query(service, "SELECT pg_get_indexdef(%s::regclass)", name)
    assert read_indexes(service)[name]
    assert "hnsw" in definition


async def test_the_indexes_of_a_deleted_user_are_dropped(
    service: Container, ada: TestUser, embedding_server: FakeEmbeddingServer
) -> None:
    async with new_user(service) as bob:
        await bob.add_tools(*make_tools(ABOVE + 1))
        await ada.add_tools(*make_tools(ABOVE + 1))
        await update_large_tenants(service)
        async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin:
            assert (await admin.delete(f"/users/{bob.id}")).status_code == 204
    await update_large_tenants(service)
    names = read_indexes(service).keys()
    assert tenant_of(service, ada).hnsw_index in names
    assert tenant_of(service, bob).hnsw_index not in names
    for table in ("large_tenant_tools", "large_tenant_terms", "large_tenant_stats"):
        assert query(service, f"SELECT count(*) FROM {table} WHERE user_id = %s", bob.id) == [(0,)]


async def test_the_index_of_an_earlier_version_is_dropped(service: Container, ada: TestUser) -> None:
    """An upgrade: the rows are flagged, and one index of the model has them all."""
    earlier = "mcp_tool_embeddings_ann_0123456789ab"
    query(service, f"CREATE INDEX {earlier} ON mcp_tool_embeddings (tool_id) WHERE ann")
    await ada.add_tools(*make_tools(ABOVE + 1))
    await update_large_tenants(service)
    assert earlier not in read_indexes(service)
    assert read_state(service, ada) == (True, ABOVE + 1, ABOVE + 1, True)


async def test_the_service_builds_what_is_missing_by_itself(
    service: Container, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_tenants, "_INTERVAL_S", 0.05)
    monkeypatch.setattr(large_tenants, "_PAUSE_FACTOR", 0)
    task = asyncio.create_task(maintain_large_tenants(service.database, owner_url(service)))
    try:
        await ada.add_tools(*make_tools(ABOVE + 1))

        async def is_counted() -> bool:
            return read_state(service, ada) == (True, ABOVE + 1, ABOVE + 1, True)

        await until(is_counted)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_one_process_at_a_time_builds(service: Container, ada: TestUser) -> None:
    await ada.add_tools(*make_tools(ABOVE + 1))
    with owner_connection(service) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (large_tenants._LOCK,))
        assert await run_pass(owner_url(service)) == 0.0
        assert read_state(service, ada)[3] is False
    await update_large_tenants(service)
    assert read_state(service, ada)[3] is True


async def test_a_build_ends_when_the_service_stops_and_is_repeated_later(service: Container, ada: TestUser) -> None:
    await ada.add_tools(*make_tools(ABOVE + 1))
    name = tenant_of(service, ada).hnsw_index
    with owner_connection(service) as writer, writer.transaction():
        writer.execute("LOCK TABLE large_tenant_tools IN ROW EXCLUSIVE MODE")  # a build waits for all writers
        task = asyncio.create_task(run_pass(owner_url(service)))

        async def is_waiting() -> bool:
            waiting = "SELECT FROM pg_stat_activity WHERE query LIKE %s AND wait_event_type = 'Lock'"
            return bool(query(service, waiting, f"CREATE INDEX CONCURRENTLY%{name}%"))

        await until(is_waiting)
        task.cancel()
        [ended] = await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), timeout=30)
        assert isinstance(ended, asyncio.CancelledError)
    await update_large_tenants(service)
    assert read_indexes(service)[name]


@pytest.mark.parametrize("user_id", ["o'hara", "100%", "a\\b", "x'; DROP TABLE users; --", 'say "hi"'])
async def test_any_user_id_can_stand_in_the_condition_of_an_index(service: Container, user_id: str) -> None:
    engine = create_engine(driver_url(owner_url(service)), poolclass=NullPool)
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT {quote_literal(user_id)}".replace("%", "%%")).scalar() == user_id
    query(service, "INSERT INTO users (id, ann, tool_count) VALUES (%s, true, 11)", user_id)
    try:
        await update_large_tenants(service)
        [(valid,)] = query(
            service,
            "SELECT indisvalid FROM pg_index WHERE indexrelid = %s::regclass",
            LargeTenant(user_id, service.model.id, service.model.dimension).hnsw_index,
        )
        assert valid
    finally:
        query(service, "DELETE FROM users WHERE id = %s", user_id)
        await update_large_tenants(service)

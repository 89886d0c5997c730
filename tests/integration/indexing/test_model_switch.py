"""How one model takes the place of another: what is written for whom, what is made once, what goes when."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.catalog.visibility import Scope
from app.container import Container, make_embedder, open_container
from app.embeddings.models import LoadedModel
from app.embeddings.repository import register
from app.errors import Conflict, NotFound
from app.indexing.backfill import backfill_vectors, missing_vectors
from app.indexing.documents import content_hash
from app.indexing.model_switch import OwnerConnection, change_model, drop_model
from app.local_postgres.database import owner_connection
from app.search.hnsw import hnsw_indexes, hnsw_name
from tests.conftest import TestUser, client_of, make_settings, new_user, tool
from tests.support.embedding_server import FakeEmbeddingServer, running_embedding_server
from tests.support.worker_steps import finished, rows, send, server_of, until

ALPHA, BETA = "openai:alpha@64", "openai:beta@48"
READ, WRITE = tool("read", "Read a file."), tool("write", "Write a file.")


@dataclass(frozen=True)
class World:
    service: Container
    fake: FakeEmbeddingServer
    url: str

    @property
    def owner(self) -> OwnerConnection:
        return partial(owner_connection, self.url)

    async def register(self, model_id: str = BETA, dimension: int = 48) -> LoadedModel:
        with self.owner() as connection:
            register(connection, make_embedder(self.service.settings, model_id), dimension)
        await self.service.models.refresh()
        return self.service.models.named(model_id)

    async def change(self, model_id: str, **options: Any) -> None:
        kept = self.service.models.named(model_id)
        await change_model(self.service.indexer, self.owner, kept, _nobody, **options)
        await self.service.models.refresh()

    async def drop(self, model_id: str) -> None:
        await drop_model(self.owner, model_id, _nobody, grace_s=0)

    async def rows(self, user: TestUser, columns: str = "tool_name, embedding IS NOT NULL") -> dict[str, list[Any]]:
        """By model."""
        statement = f"SELECT model, {columns} FROM mcp_tool_embeddings WHERE user_id = %(u)s ORDER BY model, tool_name"
        found: dict[str, list[Any]] = {}
        for model, *rest in await rows(self.service, statement, u=user.id):
            found.setdefault(model, []).append(tuple(rest))
        return found

    async def is_asked(self) -> bool:
        return bool(self.embedded())

    def embedded(self) -> list[str]:
        """The documents that the endpoint was asked for."""
        return [text for texts in self.fake.requests for text in texts if text.startswith("Tool:")]


def _nobody(_done: int, _total: int) -> None: ...


@pytest.fixture
async def world(fresh_database: str, tmp_path: Path) -> AsyncIterator[World]:
    with running_embedding_server() as fake:
        settings = make_settings(tmp_path, **fake.settings(embedding_model="alpha@64", query_embed_budget_ms=20_000))
        async with open_container(settings, fresh_database) as service:
            yield World(service, fake, fresh_database)


@pytest.fixture
async def ada(world: World) -> AsyncIterator[TestUser]:
    async with new_user(world.service) as made:
        yield made


async def test_a_run_writes_rows_for_every_registered_model_and_vectors_that_are_known(
    world: World, ada: TestUser
) -> None:
    server_id = await ada.add_tools(READ)
    kept = await world.register()
    assert await world.rows(ada) == {ALPHA: [("read", True)]}
    await backfill_vectors(world.service.indexer, kept, _nobody)
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", True)]}

    await ada.push(server_id, [READ, WRITE])
    assert await world.rows(ada) == {
        ALPHA: [("read", True), ("write", True)],
        BETA: [("read", True), ("write", False)],
    }
    await ada.push(server_id, [tool("read", "Read it all, quite differently.")])
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", False)]}
    await ada.push(server_id, [READ])  # whose text somebody has had embedded
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", True)]}
    await ada.push(server_id, [], force=True)
    assert await world.rows(ada) == {}


async def test_an_unchanged_list_writes_nothing_also_while_another_model_has_no_vectors(
    world: World, ada: TestUser
) -> None:
    server_id = await ada.add_tools(READ)
    await world.register()
    await ada.push(server_id, [READ])  # makes the rows
    before = await world.rows(ada, "xmin::text")
    version = await rows(world.service, "SELECT catalog_version FROM users WHERE id = %(u)s", u=ada.id)
    await ada.push(server_id, [READ])
    assert await world.rows(ada, "xmin::text") == before
    assert await rows(world.service, "SELECT catalog_version FROM users WHERE id = %(u)s", u=ada.id) == version


async def test_what_decides_over_tools_decides_in_the_rows_of_every_model(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ, WRITE)
    kept = await world.register()
    rules = [{"pattern": ["write"], "enabled": False}, {"pattern": ["read"], "tags": ["reading"]}]
    assert (await ada.http.put("/rules", json={"rules": rules})).status_code == 200
    await backfill_vectors(world.service.indexer, kept, _nobody)
    decided = await world.rows(ada, "tool_name, enabled, tags")
    assert decided[BETA] == decided[ALPHA] == [("read", True, ["reading"]), ("write", False, [])]
    assert (await ada.http.put("/rules", json={"rules": []})).status_code == 200
    decided = await world.rows(ada, "tool_name, enabled, tags")
    assert decided[BETA] == decided[ALPHA] == [("read", True, []), ("write", True, [])]


async def test_a_text_that_many_users_have_is_embedded_once(world: World) -> None:
    async with new_user(world.service) as one, new_user(world.service) as two, new_user(world.service) as three:
        for user in (one, two, three):
            await user.add_tools(READ, WRITE)
        await world.register()
        world.fake.requests.clear()
        await world.change(BETA)
        assert len(world.embedded()) == len(set(world.embedded())) == 2
        for user in (one, two, three):
            assert (await world.rows(user))[BETA] == [("read", True), ("write", True)]
        assert world.service.model.id == BETA


async def test_who_was_broken_off_goes_on_where_it_stood(world: World, ada: TestUser) -> None:
    for number in range(3):
        await ada.add_tools(tool(f"tool_{number}", f"Does {number}."), server=f"server {number}")
    await world.register()
    world.fake.requests.clear()
    world.fake.mode = "hang"
    broken_off = asyncio.create_task(world.change(BETA))
    await until(world.is_asked)
    broken_off.cancel()
    await asyncio.gather(broken_off, return_exceptions=True)
    assert world.service.model.id == ALPHA
    world.fake.mode = "ok"
    kept = world.service.models.named(BETA)
    await backfill_vectors(world.service.indexer, kept, _nobody)
    world.fake.requests.clear()
    await rows(world.service, "DELETE FROM mcp_tool_embeddings WHERE model = %(m)s AND tool_name = 'tool_1'", m=BETA)
    assert await missing_vectors(world.service.indexer, BETA) == (1, 3)
    await world.change(BETA)
    assert world.embedded() == []  # its row was lost, its vector is known
    assert (await world.rows(ada))[BETA] == [("tool_0", True), ("tool_1", True), ("tool_2", True)]


async def test_progress_is_told_in_tools(world: World, ada: TestUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.indexing.backfill._SERVERS_AT_ONCE", 1)
    for number in range(3):
        await ada.add_tools(tool(f"tool_{number}"), server=f"server {number}")
    kept, told = await world.register(), list[tuple[int, int]]()
    await change_model(world.service.indexer, world.owner, kept, lambda *each: told.append(each))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


async def test_nothing_is_switched_while_vectors_are_missing_unless_one_says_so(world: World, ada: TestUser) -> None:
    server_id = await ada.add_tools(READ, WRITE)
    await world.register()
    world.fake.mode = "zeros"
    with pytest.raises(Conflict, match=r"2 of 2 tools have no vector of openai:beta@48.*no_direction.*nothing was"):
        await world.change(BETA)
    assert world.service.model.id == ALPHA
    await world.change(BETA, incomplete=True)
    assert world.service.model.id == BETA
    assert (await server_of(ada, server_id))["pending_count"] == 2
    found = await ada.discover("read a file")
    assert [each["source"] for each in found["tools"]] == ["lexical", "lexical"]

    world.fake.mode = "ok"

    async def followed() -> bool:
        return (await world.rows(ada))[BETA] == [("read", True), ("write", True)]

    await until(followed)  # as vectors do that were missing for any other reason
    assert (await ada.discover("read a file"))["tools"][0]["source"] == "semantic"


async def test_a_tool_that_changes_while_it_is_being_filled_gets_no_vector_of_what_it_was(
    world: World, ada: TestUser
) -> None:
    server_id = await ada.add_tools(READ)
    kept = await world.register()
    world.fake.requests.clear()
    world.fake.mode = "hang"
    filling = asyncio.create_task(backfill_vectors(world.service.indexer, kept, _nobody))
    await until(world.is_asked)
    world.fake.mode = "ok"
    await ada.push(server_id, [tool("read", "Read something else.")])
    world.fake.release()
    await filling
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", False)]}
    await backfill_vectors(world.service.indexer, kept, _nobody)
    [(index_hash,)] = await rows(world.service, "SELECT index_hash FROM mcp_tools WHERE user_id = %(u)s", u=ada.id)
    assert (await world.rows(ada, "content_hash"))[BETA] == [(content_hash(index_hash, BETA),)]


async def test_a_run_that_was_planned_before_a_switch_is_planned_anew(world: World, ada: TestUser) -> None:
    server_id = await ada.add_tools(READ)
    await world.register()
    await backfill_vectors(world.service.indexer, world.service.models.named(BETA), _nobody)
    world.fake.requests.clear()
    world.fake.models.clear()
    world.fake.mode = "hang"
    run = await send(ada, server_id, [READ, WRITE])
    await until(world.is_asked)
    world.fake.mode = "ok"
    await world.change(BETA)
    world.fake.release()
    assert (await finished(ada, run["id"]))["state"] == "succeeded"
    assert world.fake.models == ["alpha@64", "beta@48"]
    assert await missing_vectors(world.service.indexer, BETA) == (0, 2)
    assert await missing_vectors(world.service.indexer, ALPHA) == (0, 2)


async def test_a_dropped_models_rows_and_cache_and_index_go_and_the_others_stay(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ)
    await world.register()
    with pytest.raises(Conflict, match="is active"):
        await world.drop(ALPHA)
    with pytest.raises(NotFound, match="there is no model 'openai:unheard'"):
        await world.drop("openai:unheard")
    await world.change(BETA)
    with world.owner() as connection:
        assert set(hnsw_indexes(connection)) == {hnsw_name(ALPHA), hnsw_name(BETA)}
    await world.drop(ALPHA)
    assert await world.rows(ada) == {BETA: [("read", True)]}
    assert await rows(world.service, "SELECT DISTINCT model FROM embedding_cache") == [(BETA,)]
    with world.owner() as connection:
        assert hnsw_indexes(connection) == [hnsw_name(BETA)]
    assert (await ada.discover("read a file"))["tools"][0]["source"] == "semantic"


async def test_a_drop_that_was_broken_off_is_finished_by_dropping_again(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ)
    await world.register()
    await world.change(BETA)
    with world.owner() as connection:
        connection.execute(text("DELETE FROM embedding_models WHERE id = :id"), {"id": ALPHA})
    assert ALPHA in await world.rows(ada)
    await world.drop(ALPHA)
    assert await world.rows(ada) == {BETA: [("read", True)]}


async def test_a_request_that_began_with_a_model_ends_with_it(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ)
    await world.register()
    discoverer = world.service.discoverer
    scope = Scope(ada.id, discoverer.model.id)
    await world.change(BETA)
    assert discoverer.models.named(scope.model).queries is not discoverer.queries
    assert await rows(world.service, "SELECT count(*) FROM mcp_tool_embeddings WHERE model = %(m)s", m=scope.model) == [
        (1,)
    ]


async def test_half_an_index_of_somebody_who_was_killed_is_made_anew(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ)
    await world.register()
    with world.owner() as connection:
        connection.exec_driver_sql(f"CREATE INDEX {hnsw_name(BETA)} ON mcp_tool_embeddings (tool_id)")
        broken = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %(name)s::regclass"
        connection.exec_driver_sql(broken, {"name": hnsw_name(BETA)})
    await world.change(BETA)
    statement = "SELECT indisvalid, pg_get_indexdef(indexrelid) FROM pg_index WHERE indexrelid = %(name)s::regclass"
    [(valid, definition)] = await rows(world.service, statement, name=hnsw_name(BETA))
    assert valid
    assert "hnsw" in definition


async def readiness(service: Container) -> dict[str, Any]:
    async with client_of(service) as http:
        body: dict[str, Any] = (await http.get("/readyz")).json()
    return body


async def test_a_replica_that_cannot_embed_with_the_new_model_says_so_and_serves_the_old_one(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It embeds by itself, and has no key for the endpoint that takes over."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    keyed_settings = make_settings(tmp_path, **embedding_server.settings(embedding_model="beta@48"))
    async with (
        open_container(make_settings(tmp_path), fresh_database) as keyless,
        open_container(keyed_settings, fresh_database) as keyed,
        new_user(keyless) as user,
    ):
        world, local = World(keyed, embedding_server, fresh_database), keyless.model.id
        await user.add_tools(READ)
        await world.register()
        await world.change(BETA)
        await keyless.models.refresh()
        ready = await readiness(keyless)
        assert ready["model"] == local
        [warning] = ready["warnings"]
        assert "CANNOT SERVE the active model, openai:beta@48" in warning
        assert "OPENAI_API_KEY" in warning
        found = await user.discover("read a file")
        assert (found["degraded"], found["tools"][0]["source"]) == (False, "semantic")
        assert await readiness(keyed) == {"status": "ok", "model": BETA, "warnings": []}

        await world.drop(local)
        await keyless.models.refresh()
        ready = await readiness(keyless)
        assert ready["model"] == BETA
        assert "CANNOT EMBED with openai:beta@48" in ready["warnings"][0]
        found = await user.discover("read a file")
        assert (found["degraded_reason"], found["tools"][0]["source"]) == ("embedder_not_configured", "lexical")

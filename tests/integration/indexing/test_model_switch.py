"""Switching to another embedding model: which rows are written, what is embedded once, and what is deleted."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.catalog.visibility import Scope
from app.container import Container, open_container
from app.embeddings.factory import make_embedder
from app.embeddings.loaded_models import LoadedModel
from app.embeddings.repository import register
from app.errors import Conflict, NotFound
from app.indexing.backfill import backfill_vectors, count_missing_vectors
from app.indexing.documents import content_hash
from app.indexing.model_switch import OwnerConnection, change_model, drop_model
from app.indexing.tool_vectors import blend_examples
from app.local_postgres.database import owner_connection
from app.search.hnsw import LargeTenant, list_indexes
from tests.support.clients import TestUser, new_user, open_client
from tests.support.embedding_server import FakeEmbeddingServer, embed_by, running_embedding_server
from tests.support.factories import make_settings, tool
from tests.support.known_tools import document_of, measure_stored_similarity, pick_known_tools, unit_vector
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
        return self.service.models.get(model_id)

    async def change(self, model_id: str, **options: Any) -> int:
        loaded = self.service.models.get(model_id)
        ended = await change_model(self.service.indexer, self.owner, loaded, _ignore_progress, **options)
        await self.service.models.refresh()
        return ended

    async def drop(self, model_id: str) -> int:
        return await drop_model(self.owner, model_id, _ignore_progress, grace_s=0)

    async def rows(self, user: TestUser, columns: str = "tool_name, embedding IS NOT NULL") -> dict[str, list[Any]]:
        """Return the rows by model."""
        statement = f"SELECT model, {columns} FROM mcp_tool_embeddings WHERE user_id = %(u)s ORDER BY model, tool_name"
        found: dict[str, list[Any]] = {}
        for model, *rest in await rows(self.service, statement, u=user.id):
            found.setdefault(model, []).append(tuple(rest))
        return found

    async def list_indexes(self) -> dict[str, bool]:
        with self.owner() as connection:
            return list_indexes(connection)

    async def has_requests(self) -> bool:
        return bool(self.embedded_texts())

    def embedded_texts(self) -> list[str]:
        """Return the documents that the endpoint was asked to embed."""
        return [text for texts in self.fake.requests for text in texts if text.startswith("Tool:")]


def _ignore_progress(_done: int, _total: int) -> None: ...


@pytest.fixture
async def world(fresh_database: str, tmp_path: Path) -> AsyncIterator[World]:
    with running_embedding_server() as fake:
        settings = make_settings(tmp_path, **fake.settings(embedding_model="alpha@64", query_embed_budget_ms=20_000))
        async with open_container(settings, fresh_database) as service:
            yield World(service, fake, fresh_database)


@pytest.fixture
async def ada(world: World) -> AsyncIterator[TestUser]:
    async with new_user(world.service) as user:
        yield user


async def test_a_run_writes_rows_for_every_registered_model_and_cached_vectors(world: World, ada: TestUser) -> None:
    server_id = await ada.add_tools(READ)
    loaded = await world.register()
    assert await world.rows(ada) == {ALPHA: [("read", True)]}
    await backfill_vectors(world.service.indexer, loaded, _ignore_progress)
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", True)]}

    await ada.push(server_id, [READ, WRITE])
    assert await world.rows(ada) == {
        ALPHA: [("read", True), ("write", True)],
        BETA: [("read", True), ("write", False)],
    }
    await ada.push(server_id, [tool("read", "Read it all, quite differently.")])
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", False)]}
    await ada.push(server_id, [READ])  # its vector is cached
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", True)]}
    await ada.push(server_id, [], force=True)
    assert await world.rows(ada) == {}


async def test_an_unchanged_list_writes_nothing_while_another_model_has_no_vectors(world: World, ada: TestUser) -> None:
    server_id = await ada.add_tools(READ)
    await world.register()
    await ada.push(server_id, [READ])  # creates the rows
    before = await world.rows(ada, "xmin::text")
    version = await rows(world.service, "SELECT catalog_version FROM users WHERE id = %(u)s", u=ada.id)
    await ada.push(server_id, [READ])
    assert await world.rows(ada, "xmin::text") == before
    assert await rows(world.service, "SELECT catalog_version FROM users WHERE id = %(u)s", u=ada.id) == version


async def test_visibility_decisions_are_written_to_the_rows_of_every_model(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ, WRITE)
    loaded = await world.register()
    rules = [{"pattern": ["write"], "enabled": False}, {"pattern": ["read"], "tags": ["reading"]}]
    assert (await ada.http.put("/rules", json={"rules": rules})).status_code == 200
    await backfill_vectors(world.service.indexer, loaded, _ignore_progress)
    decisions = await world.rows(ada, "tool_name, enabled, tags")
    assert decisions[BETA] == decisions[ALPHA] == [("read", True, ["reading"]), ("write", False, [])]
    assert (await ada.http.put("/rules", json={"rules": []})).status_code == 200
    decisions = await world.rows(ada, "tool_name, enabled, tags")
    assert decisions[BETA] == decisions[ALPHA] == [("read", True, []), ("write", True, [])]


async def test_a_text_that_several_users_have_is_embedded_once(world: World) -> None:
    async with new_user(world.service) as one, new_user(world.service) as two, new_user(world.service) as three:
        for user in (one, two, three):
            await user.add_tools(READ, WRITE)
        await world.register()
        world.fake.requests.clear()
        await world.change(BETA)
        assert len(world.embedded_texts()) == len(set(world.embedded_texts())) == 2
        for user in (one, two, three):
            assert (await world.rows(user))[BETA] == [("read", True), ("write", True)]
        assert world.service.model.id == BETA


async def test_the_vectors_of_another_model_contain_known_examples_as_well(world: World, ada: TestUser) -> None:
    [known] = pick_known_tools(1)
    server_id = await ada.add_tools(tool(known.name, known.description), server="s")
    loaded = await world.register()
    await world.change(BETA)
    parts = [unit_vector(embed_by("beta@48", text)) for text in (document_of(known, "s"), *known.examples)]
    expected = blend_examples(parts[0], parts[1:], loaded.model.calibration.unrelated)
    assert await measure_stored_similarity(world.service, ada, BETA, expected) == pytest.approx(1, abs=1e-3)
    assert await measure_stored_similarity(world.service, ada, BETA, parts[0]) < 0.99
    await ada.push(server_id, [READ])
    world.fake.requests.clear()
    await ada.push(server_id, [tool(known.name, known.description)])
    assert world.embedded_texts() == [document_of(known, "s")], "the examples are cached for all users"
    for model in (ALPHA, BETA):
        assert (await world.rows(ada))[model] == [(known.name, True)]


async def test_an_interrupted_switch_continues_where_it_stopped(world: World, ada: TestUser) -> None:
    for number in range(3):
        await ada.add_tools(tool(f"tool_{number}", f"Does {number}."), server=f"server {number}")
    await world.register()
    world.fake.requests.clear()
    world.fake.mode = "hang"
    interrupted = asyncio.create_task(world.change(BETA))
    await until(world.has_requests)
    interrupted.cancel()
    await asyncio.gather(interrupted, return_exceptions=True)
    assert world.service.model.id == ALPHA
    world.fake.mode = "ok"
    loaded = world.service.models.get(BETA)
    await backfill_vectors(world.service.indexer, loaded, _ignore_progress)
    world.fake.requests.clear()
    await rows(world.service, "DELETE FROM mcp_tool_embeddings WHERE model = %(m)s AND tool_name = 'tool_1'", m=BETA)
    assert await count_missing_vectors(world.service.indexer, BETA) == (1, 3)
    await world.change(BETA)
    assert world.embedded_texts() == []  # the row was lost, but the vector is cached
    assert (await world.rows(ada))[BETA] == [("tool_0", True), ("tool_1", True), ("tool_2", True)]


async def test_progress_is_reported_in_tools(world: World, ada: TestUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.indexing.backfill.SERVERS_PER_BATCH", 1)
    for number in range(3):
        await ada.add_tools(tool(f"tool_{number}"), server=f"server {number}")
    loaded, reported = await world.register(), list[tuple[int, int]]()
    await change_model(world.service.indexer, world.owner, loaded, lambda *each: reported.append(each))
    assert reported == [(0, 3), (1, 3), (2, 3), (3, 3)]


async def test_a_model_with_missing_vectors_becomes_active_only_with_incomplete(world: World, ada: TestUser) -> None:
    server_id = await ada.add_tools(READ, WRITE)
    await world.register()
    world.fake.mode = "zeros"
    with pytest.raises(Conflict, match=r"2 of 2 tools have no vector of openai:beta@48.*no_direction.*is unchanged"):
        await world.change(BETA)
    assert world.service.model.id == ALPHA
    await world.change(BETA, incomplete=True)
    assert world.service.model.id == BETA
    assert (await server_of(ada, server_id))["pending_count"] == 2
    found = await ada.discover("read a file")
    assert [each["source"] for each in found["tools"]] == ["lexical", "lexical"]

    world.fake.mode = "ok"

    async def is_complete() -> bool:
        return (await world.rows(ada))[BETA] == [("read", True), ("write", True)]

    await until(is_complete)  # the worker adds missing vectors
    assert (await ada.discover("read a file"))["tools"][0]["source"] == "semantic"


async def test_a_tool_that_changes_during_the_backfill_gets_no_outdated_vector(world: World, ada: TestUser) -> None:
    server_id = await ada.add_tools(READ)
    loaded = await world.register()
    world.fake.requests.clear()
    world.fake.mode = "hang"
    backfill = asyncio.create_task(backfill_vectors(world.service.indexer, loaded, _ignore_progress))
    await until(world.has_requests)
    world.fake.mode = "ok"
    await ada.push(server_id, [tool("read", "Read something else.")])
    world.fake.release()
    await backfill
    assert await world.rows(ada) == {ALPHA: [("read", True)], BETA: [("read", False)]}
    await backfill_vectors(world.service.indexer, loaded, _ignore_progress)
    [(index_hash,)] = await rows(world.service, "SELECT index_hash FROM mcp_tools WHERE user_id = %(u)s", u=ada.id)
    assert (await world.rows(ada, "content_hash"))[BETA] == [(content_hash(index_hash, BETA),)]


async def test_a_run_planned_before_a_switch_is_planned_again(world: World, ada: TestUser) -> None:
    server_id = await ada.add_tools(READ)
    await world.register()
    await backfill_vectors(world.service.indexer, world.service.models.get(BETA), _ignore_progress)
    world.fake.requests.clear()
    world.fake.models.clear()
    world.fake.mode = "hang"
    run = await send(ada, server_id, [READ, WRITE])
    await until(world.has_requests)
    world.fake.mode = "ok"
    await world.change(BETA)
    world.fake.release()
    assert (await finished(ada, run["id"]))["state"] == "succeeded"
    assert world.fake.models == ["alpha@64", "beta@48"]
    assert await count_missing_vectors(world.service.indexer, BETA) == (0, 2)
    assert await count_missing_vectors(world.service.indexer, ALPHA) == (0, 2)


async def test_dropping_a_model_deletes_its_rows_and_cache(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ)
    await world.register()
    with pytest.raises(Conflict, match="is the active model"):
        await world.drop(ALPHA)
    with pytest.raises(NotFound, match="model 'openai:unheard' not found"):
        await world.drop("openai:unheard")
    await world.change(BETA)
    await world.drop(ALPHA)
    assert await world.rows(ada) == {BETA: [("read", True)]}
    assert await rows(world.service, "SELECT DISTINCT model FROM embedding_cache") == [(BETA,)]
    assert (await ada.discover("read a file"))["tools"][0]["source"] == "semantic"


async def test_an_interrupted_drop_is_completed_by_dropping_again(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ)
    await world.register()
    await world.change(BETA)
    with world.owner() as connection:
        connection.execute(text("DELETE FROM embedding_models WHERE id = :id"), {"id": ALPHA})
    assert ALPHA in await world.rows(ada)
    await world.drop(ALPHA)
    assert await world.rows(ada) == {BETA: [("read", True)]}


async def test_a_request_finishes_with_the_model_that_it_started_with(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ)
    await world.register()
    models = world.service.models
    scope = Scope(ada.id, models.current.model.id)
    await world.change(BETA)
    assert models.get(scope.model).queries is not models.current.queries
    assert await rows(world.service, "SELECT count(*) FROM mcp_tool_embeddings WHERE model = %(m)s", m=scope.model) == [
        (1,)
    ]


async def test_a_large_user_has_indexes_for_each_registered_model(world: World, ada: TestUser) -> None:
    await ada.add_tools(READ, WRITE)
    await world.register()
    await rows(world.service, "UPDATE users SET ann = true WHERE id = %(id)s", id=ada.id)
    of_alpha, of_beta = LargeTenant(ada.id, ALPHA, 64), LargeTenant(ada.id, BETA, 48)
    await world.change(BETA)
    assert await world.list_indexes() == {
        name: True for each in (of_alpha, of_beta) for name in (each.hnsw_index, each.words_index)
    }
    await world.drop(ALPHA)
    assert await world.list_indexes() == {of_beta.hnsw_index: True, of_beta.words_index: True}
    assert [found["tool"]["name"] for found in (await ada.discover("read a file", limit=1))["tools"]] == ["read"]


async def readiness(service: Container) -> dict[str, Any]:
    async with open_client(service) as http:
        body: dict[str, Any] = (await http.get("/readyz")).json()
    return body


async def test_a_replica_that_cannot_use_the_new_model_warns_and_serves_the_old_one(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses the local model and has no key for the endpoint of the new one."""
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
        assert "cannot load the active model openai:beta@48" in warning
        assert "OPENAI_API_KEY" in warning
        found = await user.discover("read a file")
        assert (found["degraded"], found["tools"][0]["source"]) == (False, "semantic")
        assert await readiness(keyed) == {"status": "ok", "model": BETA, "warnings": []}

        await world.drop(local)
        await keyless.models.refresh()
        ready = await readiness(keyless)
        assert ready["model"] == BETA
        assert "cannot embed with openai:beta@48" in ready["warnings"][0]
        found = await user.discover("read a file")
        assert (found["degraded_reason"], found["tools"][0]["source"]) == ("embedder_not_configured", "lexical")


async def test_learned_examples_stay_with_their_model_and_examples_in_words_are_embedded_again(world: World) -> None:
    async with new_user(world.service) as user:
        await user.add_tools(READ, WRITE)
        keys = {name: each["id"] for name, each in (await user.tools()).items()}
        body = {"messages": ["what is in there", "open it"]}
        assert (await user.http.put(f"/tools/{keys['read']}/examples", json=body)).status_code == 200
        answer = await user.discover("put it down in writing", similarity_threshold=0)
        feedback = {"discovery_id": answer["discovery_id"], "tool_key": keys["write"], "outcome": "succeeded"}
        assert (await user.http.post("/feedback", json=feedback)).status_code == 204
        await world.register()

        assert await world.change(BETA) == 1
        statement = (
            "SELECT model, source, count(*)::int FROM tool_examples WHERE user_id = %(u)s GROUP BY 1, 2 ORDER BY 1, 2"
        )
        both = [(ALPHA, "person", 2), (ALPHA, "use", 1), (BETA, "person", 2)]
        assert await rows(world.service, statement, u=user.id) == both
        shown = {name: (await user.http.get(f"/tools/{key}/examples")).json() for name, key in keys.items()}
        assert shown["read"] == {"messages": ["what is in there", "open it"], "learned": 0, "learned_against": 0}
        assert shown["write"] == {"messages": [], "learned": 0, "learned_against": 0}

        assert await world.change(ALPHA) == 0
        assert (await user.http.get(f"/tools/{keys['write']}/examples")).json()["learned"] == 1
        await world.change(BETA)
        assert await world.drop(ALPHA) == 1
        assert await rows(world.service, statement, u=user.id) == [(BETA, "person", 2)]

"""Failures of the embedder during indexing: lexical search finds the tools at once, and the vectors follow."""

from pathlib import Path
from typing import Any

import pytest

from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import FakeEmbeddingServer, Mode, embed, running_embedding_server
from tests.support.factories import OpenService, make_database, make_settings
from tests.support.flaky_embedder import ChangesAfter, Refuses
from tests.support.worker_steps import numbered, rows, server_of, unheard, until

FAILURES: list[tuple[Mode, int, str]] = [
    ("status", 500, "status_500"),
    ("status", 429, "status_429"),
    ("status", 401, "status_401"),
    ("wrong_dimension", 0, "wrong_dimension"),
    ("nan", 0, "not_finite"),
    ("zeros", 0, "no_direction"),
    ("short", 0, "wrong_count"),
    ("not_json", 0, "malformed"),
    ("wrong_shape", 0, "malformed"),
]


async def count_inconsistent_rows(container: Container, user: TestUser) -> int:
    """Count rows with only one of vector and hash, and tools without a search row."""
    [(count,)] = await rows(
        container,
        """
        SELECT count(*) FROM mcp_tools t LEFT JOIN mcp_tool_embeddings v ON v.user_id = t.user_id AND v.tool_id = t.id
        WHERE t.user_id = %(user)s
          AND (v.tool_id IS NULL OR (v.embedding IS NULL) <> (v.content_hash IS NULL))
        """,
        user=user.id,
    )
    return int(count)


async def count_cached_vectors(container: Container) -> int:
    [(count,)] = await rows(container, "SELECT count(*) FROM embedding_cache")
    return int(count)


async def embedded_flags(user: TestUser) -> set[bool]:
    return {tool["embedded"] for tool in (await user.tools()).values()}


async def pending_count(user: TestUser, server_id: str) -> int:
    return int((await server_of(user, server_id))["pending_count"])


async def wait_until_embedded(user: TestUser, server_id: str) -> None:
    """Wait until no vector is pending."""

    async def none_pending() -> bool:
        return await pending_count(user, server_id) == 0

    await until(none_pending)


async def assert_lexical_search_works(user: TestUser) -> None:
    answer = await user.discover("summarise quarterly invoices")
    assert answer["degraded"] is True
    assert answer["degraded_reason"].startswith("embedder_")
    assert answer["strategy"] == "bm25"
    assert [(each["tool"]["name"], each["source"]) for each in answer["tools"]] == [("summarise_invoices", "lexical")]


async def assert_semantic_search_works(user: TestUser) -> None:
    async def discover() -> dict[str, Any] | None:
        answer = await user.discover("summarise quarterly invoices", similarity_threshold=0.1)
        return None if answer["degraded"] else answer

    answer = await until(discover)
    assert answer["strategy"] == "hybrid"
    assert answer["tools"][0]["tool"]["name"] == "summarise_invoices"
    assert answer["tools"][0]["source"] == "semantic"


def make_tools() -> list[dict[str, Any]]:
    invoices = unheard("summarise_invoices")
    invoices["description"] = f"Summarise quarterly invoices. {invoices['description']}"
    return [invoices, unheard("other"), unheard("third")]


async def push_without_vectors(service: Container, user: TestUser, reason: str) -> str:
    """Push tools while the embedder fails, check the result and return the server id."""
    cached = await count_cached_vectors(service)
    server_id = await user.add_server()
    run = await user.push(server_id, make_tools())
    assert run["state"] == "succeeded"
    assert (run["counts"]["added"], run["counts"]["embedded"]) == (3, 0)
    assert run["warnings"]
    assert all(f"({reason})" in warning for warning in run["warnings"])
    assert await embedded_flags(user) == {False}
    assert await pending_count(user, server_id) == 3
    assert await count_inconsistent_rows(service, user) == 0
    assert await count_cached_vectors(service) == cached
    return server_id


async def assert_recovered(service: Container, user: TestUser, server_id: str) -> None:
    await wait_until_embedded(user, server_id)
    assert await embedded_flags(user) == {True}
    assert await count_inconsistent_rows(service, user) == 0
    await assert_semantic_search_works(user)


@pytest.mark.parametrize(("mode", "status", "reason"), FAILURES, ids=str)
async def test_a_failing_embedder_delays_only_the_vectors(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer, mode: Mode, status: int, reason: str
) -> None:
    fake.mode, fake.status = mode, status
    server_id = await push_without_vectors(service, carol, reason)
    await assert_lexical_search_works(carol)
    fake.mode = "ok"
    await assert_recovered(service, carol, server_id)


async def test_a_hanging_embedder_delays_only_the_vectors(open_service: OpenService, fake: FakeEmbeddingServer) -> None:
    options = fake.settings(index_embed_timeout_s=0.1, query_embed_budget_ms=2_000)
    async with open_service(**options) as service, new_user(service) as user:
        fake.mode = "hang"
        server_id = await push_without_vectors(service, user, "timeout")
        await assert_lexical_search_works(user)
        fake.mode = "ok"
        await assert_recovered(service, user, server_id)


async def test_texts_are_embedded_one_by_one_if_a_batch_fails(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    fake.mode = "doubled_index"
    run = await carol.push(await carol.add_server(), make_tools())
    assert (run["state"], run["counts"]["embedded"], run["warnings"]) == ("succeeded", 3, [])
    assert await embedded_flags(carol) == {True}
    await assert_semantic_search_works(carol)


async def test_a_text_that_the_embedder_refuses_does_not_affect_the_others(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    first, second, third = make_tools()
    fake.requests = Refuses(fake, second["description"])
    server_id = await carol.add_server()
    run = await carol.push(server_id, [first, second, third])
    assert (run["state"], run["counts"]["embedded"]) == ("succeeded", 2)
    [warning] = run["warnings"]
    assert "'other'" in warning
    assert {name for name, tool in (await carol.tools()).items() if not tool["embedded"]} == {"other"}
    assert await count_inconsistent_rows(service, carol) == 0
    fake.requests = []
    fake.mode = "ok"
    await assert_recovered(service, carol, server_id)


async def test_an_unreachable_embedder_delays_only_the_vectors(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    url = make_database(postgres)
    with running_embedding_server() as server:
        settings = make_settings(tmp_path, **server.settings())
        async with open_container(settings, url):
            pass  # the first start has to determine the model's dimension
    async with open_container(settings, url) as service, new_user(service) as user:
        server_id = await push_without_vectors(service, user, "unreachable")
        await assert_lexical_search_works(user)
        with running_embedding_server(server.port):
            await assert_recovered(service, user, server_id)


@pytest.mark.parametrize("mode", ["ok", "shuffled"])
async def test_vectors_are_assigned_correctly_if_the_response_is_reordered(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer, mode: Mode
) -> None:
    fake.mode = mode
    run = await carol.push(await carol.add_server("s"), made := make_tools())
    assert run["warnings"] == []
    assert run["counts"]["embedded"] == 3
    for tool in made:
        text = f"Tool: {tool['name'].replace('_', ' ')}. Server: s. Description: {tool['description']}"
        [(similarity,)] = await rows(
            service,
            "SELECT 1 - (embedding <=> %(vector)s::halfvec) FROM mcp_tool_embeddings"
            " WHERE user_id = %(user)s AND tool_name = %(name)s",
            user=carol.id,
            name=tool["name"],
            vector=str(embed(text)),
        )
        assert similarity == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("status", [429, 500])
async def test_a_temporary_failure_is_retried_within_the_run(
    carol: TestUser, fake: FakeEmbeddingServer, status: int
) -> None:
    fake.mode, fake.status, fake.requests = "status", status, ChangesAfter(fake, 2, "ok")
    run = await carol.push(await carol.add_server(), make_tools())
    assert run["warnings"] == []
    assert run["counts"]["embedded"] == 3
    assert len(fake.requests) == 3
    assert await embedded_flags(carol) == {True}


async def test_vectors_from_before_a_failure_are_kept_and_only_the_rest_is_embedded_later(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    fake.requests = ChangesAfter(fake, 1, "zeros")
    server_id = await carol.add_server()
    run = await carol.push(server_id, numbered(140, unheard("a")["description"]))
    assert (run["counts"]["added"], run["counts"]["embedded"]) == (140, 128)
    assert run["warnings"]
    assert await pending_count(carol, server_id) == 12
    assert await count_inconsistent_rows(service, carol) == 0
    fake.mode, fake.requests = "ok", []
    await wait_until_embedded(carol, server_id)
    assert [len(texts) for texts in fake.requests if texts != ["ping"]] == [12]


async def test_a_changed_tool_loses_its_old_vector_even_if_the_new_one_is_missing(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    """Lexical search alone is better than wrong matches."""
    first, second, third = make_tools()
    server_id = await carol.add_tools(first, second)
    fake.mode = "zeros"
    await carol.push(server_id, [first, {**second, "description": third["description"]}])
    assert {name: tool["embedded"] for name, tool in (await carol.tools()).items()} == {
        "summarise_invoices": True,
        "other": False,
    }
    fake.mode = "ok"
    await wait_until_embedded(carol, server_id)
    assert await embedded_flags(carol) == {True}


async def test_a_forced_run_that_fails_keeps_the_existing_vectors(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    server_id = await carol.add_tools(*(made := make_tools()))
    fake.mode = "zeros"
    run = await carol.push(server_id, made, force=True)
    assert (run["state"], run["counts"]["embedded"]) == ("succeeded", 0)
    assert run["warnings"]
    assert await embedded_flags(carol) == {True}
    assert await pending_count(carol, server_id) == 0
    fake.mode = "ok"
    assert (await carol.push(server_id, made, force=True))["counts"]["embedded"] == 3

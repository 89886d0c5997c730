"""An embedder that fails while tools are indexed: they are found by words at once, and their vectors follow."""

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


async def half_written(container: Container, user: TestUser) -> int:
    """Rows with a vector and no hash or a hash and no vector, and tools without a row to be searched."""
    [(torn,)] = await rows(
        container,
        """
        SELECT count(*) FROM mcp_tools t LEFT JOIN mcp_tool_embeddings v ON v.user_id = t.user_id AND v.tool_id = t.id
        WHERE t.user_id = %(user)s
          AND (v.tool_id IS NULL OR (v.embedding IS NULL) <> (v.content_hash IS NULL))
        """,
        user=user.id,
    )
    return int(torn)


async def remembered(container: Container) -> int:
    [(count,)] = await rows(container, "SELECT count(*) FROM embedding_cache")
    return int(count)


async def embedded(user: TestUser) -> set[bool]:
    return {tool["embedded"] for tool in (await user.tools()).values()}


async def pending(user: TestUser, server_id: str) -> int:
    return int((await server_of(user, server_id))["pending_count"])


async def follow(user: TestUser, server_id: str) -> None:
    """Returns when no vector is pending any more."""

    async def none_pending() -> bool:
        return await pending(user, server_id) == 0

    await until(none_pending)


async def found_by_words_alone(user: TestUser) -> None:
    answer = await user.discover("summarise quarterly invoices")
    assert answer["degraded"] is True
    assert answer["degraded_reason"].startswith("embedder_")
    assert answer["strategy"] == "bm25"
    assert [(each["tool"]["name"], each["source"]) for each in answer["tools"]] == [("summarise_invoices", "lexical")]


async def found_by_meaning(user: TestUser) -> None:
    async def answered() -> dict[str, Any] | None:
        answer = await user.discover("summarise quarterly invoices", similarity_threshold=0.1)
        return None if answer["degraded"] else answer

    answer = await until(answered)
    assert answer["strategy"] == "hybrid"
    assert answer["tools"][0]["tool"]["name"] == "summarise_invoices"
    assert answer["tools"][0]["source"] == "semantic"


def tools() -> list[dict[str, Any]]:
    invoices = unheard("summarise_invoices")
    invoices["description"] = f"Summarise quarterly invoices. {invoices['description']}"
    return [invoices, unheard("other"), unheard("third")]


async def pushed_without_vectors(service: Container, user: TestUser, reason: str) -> str:
    """The server's id."""
    known = await remembered(service)
    server_id = await user.add_server()
    run = await user.push(server_id, tools())
    assert run["state"] == "succeeded"
    assert (run["counts"]["added"], run["counts"]["embedded"]) == (3, 0)
    assert run["warnings"]
    assert all(f"({reason})" in warning for warning in run["warnings"])
    assert await embedded(user) == {False}
    assert await pending(user, server_id) == 3
    assert await half_written(service, user) == 0
    assert await remembered(service) == known
    return server_id


async def healed(service: Container, user: TestUser, server_id: str) -> None:
    await follow(user, server_id)
    assert await embedded(user) == {True}
    assert await half_written(service, user) == 0
    await found_by_meaning(user)


@pytest.mark.parametrize(("mode", "status", "reason"), FAILURES, ids=str)
async def test_a_failing_embedder_delays_the_vectors_and_nothing_else(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer, mode: Mode, status: int, reason: str
) -> None:
    fake.mode, fake.status = mode, status
    server_id = await pushed_without_vectors(service, carol, reason)
    await found_by_words_alone(carol)
    fake.mode = "ok"
    await healed(service, carol, server_id)


async def test_an_embedder_that_hangs_delays_the_vectors_and_nothing_else(
    open_service: OpenService, fake: FakeEmbeddingServer
) -> None:
    impatient = fake.settings(index_embed_timeout_s=0.1, query_embed_budget_ms=2_000)
    async with open_service(**impatient) as service, new_user(service) as user:
        fake.mode = "hang"
        server_id = await pushed_without_vectors(service, user, "timeout")
        await found_by_words_alone(user)
        fake.mode = "ok"
        await healed(service, user, server_id)


async def test_an_embedder_that_fails_with_many_texts_is_asked_for_one_at_a_time(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    fake.mode = "doubled_index"
    run = await carol.push(await carol.add_server(), tools())
    assert (run["state"], run["counts"]["embedded"], run["warnings"]) == ("succeeded", 3, [])
    assert await embedded(carol) == {True}
    await found_by_meaning(carol)


async def test_a_text_that_the_embedder_does_not_take_costs_the_others_nothing(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    first, second, third = tools()
    fake.requests = Refuses(fake, second["description"])
    server_id = await carol.add_server()
    run = await carol.push(server_id, [first, second, third])
    assert (run["state"], run["counts"]["embedded"]) == ("succeeded", 2)
    [warning] = run["warnings"]
    assert "'other'" in warning
    assert {name for name, tool in (await carol.tools()).items() if not tool["embedded"]} == {"other"}
    assert await half_written(service, carol) == 0
    fake.requests = []
    fake.mode = "ok"
    await healed(service, carol, server_id)


async def test_an_embedder_that_is_not_there_delays_the_vectors_too(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    url = make_database(postgres)
    with running_embedding_server() as server:
        settings = make_settings(tmp_path, **server.settings())
        async with open_container(settings, url):
            pass  # the first start has to learn the model's dimension
    async with open_container(settings, url) as service, new_user(service) as user:
        server_id = await pushed_without_vectors(service, user, "unreachable")
        await found_by_words_alone(user)
        with running_embedding_server(server.port):
            await healed(service, user, server_id)


@pytest.mark.parametrize("mode", ["ok", "shuffled"])
async def test_answers_in_any_order_are_put_in_ours(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer, mode: Mode
) -> None:
    fake.mode = mode
    run = await carol.push(await carol.add_server("s"), made := tools())
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
async def test_a_passing_trouble_is_outlasted_within_the_run(
    carol: TestUser, fake: FakeEmbeddingServer, status: int
) -> None:
    fake.mode, fake.status, fake.requests = "status", status, ChangesAfter(fake, 2, "ok")
    run = await carol.push(await carol.add_server(), tools())
    assert run["warnings"] == []
    assert run["counts"]["embedded"] == 3
    assert len(fake.requests) == 3
    assert await embedded(carol) == {True}


async def test_what_was_embedded_before_the_trouble_is_kept_and_only_the_rest_follows(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    fake.requests = ChangesAfter(fake, 1, "zeros")
    server_id = await carol.add_server()
    run = await carol.push(server_id, numbered(140, unheard("a")["description"]))
    assert (run["counts"]["added"], run["counts"]["embedded"]) == (140, 128)
    assert run["warnings"]
    assert await pending(carol, server_id) == 12
    assert await half_written(service, carol) == 0
    fake.mode, fake.requests = "ok", []
    await follow(carol, server_id)
    assert [len(texts) for texts in fake.requests if texts != ["ping"]] == [12]


async def test_a_changed_tool_loses_its_old_vector_even_before_the_new_one_is_there(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    """Better found by words than found wrongly."""
    first, second, third = tools()
    server_id = await carol.add_tools(first, second)
    fake.mode = "zeros"
    await carol.push(server_id, [first, {**second, "description": third["description"]}])
    assert {name: tool["embedded"] for name, tool in (await carol.tools()).items()} == {
        "summarise_invoices": True,
        "other": False,
    }
    fake.mode = "ok"
    await follow(carol, server_id)
    assert await embedded(carol) == {True}


async def test_a_forced_run_that_fails_leaves_the_vectors_that_were_there(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(*(made := tools()))
    fake.mode = "zeros"
    run = await carol.push(server_id, made, force=True)
    assert (run["state"], run["counts"]["embedded"]) == ("succeeded", 0)
    assert run["warnings"]
    assert await embedded(carol) == {True}
    assert await pending(carol, server_id) == 0
    fake.mode = "ok"
    assert (await carol.push(server_id, made, force=True))["counts"]["embedded"] == 3

"""Search in Postgres against an oracle: the answer does not depend on the plan."""

import random
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from app.catalog.visibility import Scope
from app.container import Container
from app.search import postgres
from app.search.postgres import SearchResult
from app.search.query import parse_query
from app.search.scoring import ScoringParams
from app.search.term_stats import TermStats
from tests.support.clients import TestUser, new_user, open_client
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import OpenService, tool
from tests.support.seed_vectors import KnownUser, Matrix, add_user, owner_connection

K = 8
SEMANTIC = ScoringParams(parse_query("anything"), "semantic", threshold=0.0)


@pytest.fixture
async def crowded(open_service: OpenService) -> AsyncIterator[tuple[Container, list[KnownUser]]]:
    """50 users of the same servers: the table is full of near-duplicate vectors."""
    generator = np.random.default_rng(7)
    shared = generator.standard_normal((150, 384)).astype(np.float32)
    async with open_service(index_concurrency=0) as container:
        yield container, [_add_user(container, generator, shared) for _ in range(50)]


def _add_user(container: Container, generator: np.random.Generator, shared: Matrix) -> KnownUser:
    chosen = generator.choice(len(shared), size=int(generator.integers(20, 120)), replace=False)
    noise = generator.standard_normal((len(chosen), 384)).astype(np.float32) * 0.01
    return add_user(container, [f"tool_{i:03}" for i in chosen], shared[chosen] + noise)


async def _search(container: Container, user: KnownUser, query: Matrix, *settings: str) -> SearchResult:
    async with container.database.transaction(user.id) as session:
        for setting in settings:
            await session.rows(f"SET LOCAL {setting}")
        scope = Scope(user.id, container.model.id)
        return await container.searcher.hybrid_search.find(session, scope, SEMANTIC, [query], limit=K)


@pytest.mark.parametrize("analyzed", [False, True], ids=["without ANALYZE", "with ANALYZE"])
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
async def test_every_user_gets_the_true_nearest_tools_under_every_plan(
    crowded: tuple[Container, list[KnownUser]], plan: str, analyzed: bool
) -> None:
    container, users = crowded
    if analyzed:
        with owner_connection(container) as connection:
            connection.execute("ANALYZE")
    generator = np.random.default_rng(11)
    for user in users:
        query = generator.standard_normal(384).astype(np.float32)
        result = await _search(container, user, query, f"plan_cache_mode = {plan}")
        assert _names(result) == user.nearest(query, K)
        assert result.searched == len(user.names)


def _names(result: SearchResult) -> list[str]:
    assert len({hit.tool_id for hit in result.hits}) == len(result.hits)
    return [hit.tool_name for hit in result.hits]


async def test_tools_with_equal_scores_are_sorted_by_name(open_service: OpenService) -> None:
    names = [f"tool_{i}" for i in random.Random(3).sample(range(100), 30)]
    vectors = np.ones((30, 384), np.float32)
    async with open_service(index_concurrency=0) as container:
        user = add_user(container, names, vectors)
        result = await _search(container, user, np.ones(384, np.float32))
    assert _names(result) == sorted(names)[:K]


def make_tools(count: int) -> list[dict[str, object]]:
    nouns = [f"noun{i}" for i in range(40)]
    chooser = random.Random(5)
    return [tool(f"tool_{i:03}", " ".join(chooser.sample(nouns, 6))) for i in range(count)]


@pytest.fixture
async def large(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> AsyncIterator[tuple[Container, TestUser]]:
    """A service that uses HNSW for users above 50 tools, and a user with 200 tools on two servers."""
    async with (
        open_service(snapshot_mb=0, **embedding_server.settings(search_ann_above=50)) as container,
        new_user(container) as user,
    ):
        await user.add_tools(*make_tools(190), server="big")
        await user.add_tools(*make_tools(10), server="small")
        yield container, user


QUERIES = ["noun1 noun7 noun30", "noun3", "noun12 noun13 noun14 noun15"]


async def _search_by_meaning(user: TestUser, query: str, **fields: object) -> list[str]:
    answer = await user.discover(query, strategy="semantic", similarity_threshold=0, **fields)
    return [found["tool_key"] for found in answer["tools"]]


async def test_a_large_user_is_searched_through_hnsw_with_the_same_answers(
    large: tuple[Container, TestUser],
) -> None:
    container, user = large
    with owner_connection(container) as connection:
        assert connection.execute("SELECT ann FROM users WHERE id = %s", (user.id,)).fetchone() == (True,)
        through_hnsw = [await _search_by_meaning(user, query) for query in QUERIES]
        connection.execute("UPDATE users SET ann = false WHERE id = %s", (user.id,))
    assert through_hnsw == [await _search_by_meaning(user, query) for query in QUERIES]


async def test_the_hnsw_statement_can_use_the_partial_index(large: tuple[Container, TestUser]) -> None:
    container, user = large
    shape = postgres.StatementShape(
        1,
        has_context=False,
        has_center=True,
        with_tags=False,
        with_named_tags=False,
        with_calls=False,
        with_examples=False,
    )
    statement = postgres._hnsw_statement(container.model.id, container.model.dimension, shape)
    vectors = [np.ones(container.model.dimension, np.float32)]
    search = postgres._make_search_parameters(SEMANTIC, TermStats(0, 0, 0, {}), vectors, {})
    parameters = Scope(user.id, container.model.id).parameters() | search | {"pool_size": 8}
    async with container.database.transaction(user.id) as session:
        await session.rows("SET LOCAL enable_seqscan = off")
        await session.rows("SET LOCAL enable_sort = off")
        plan = await session.rows(f"EXPLAIN {statement}", parameters)
    assert "mcp_tool_embeddings_ann_" in "\n".join(str(line[0]) for line in plan)


async def test_rows_that_hnsw_misses_are_found_by_the_exact_search(large: tuple[Container, TestUser]) -> None:
    container, user = large
    complete = [await _search_by_meaning(user, query) for query in QUERIES]
    with owner_connection(container) as connection:
        connection.execute("UPDATE mcp_tool_embeddings SET ann = false WHERE user_id = %s", (user.id,))
    assert [await _search_by_meaning(user, query) for query in QUERIES] == complete


async def test_a_filtered_search_of_a_large_user_is_complete(large: tuple[Container, TestUser]) -> None:
    _, user = large
    servers = (await user.http.get("/servers")).json()["items"]
    small = next(server["id"] for server in servers if server["name"] == "small")
    assert len(await _search_by_meaning(user, QUERIES[0], server_ids=[small], limit=10)) == 10


async def test_a_user_who_falls_below_the_limit_is_searched_exactly_again(large: tuple[Container, TestUser]) -> None:
    container, user = large
    servers = (await user.http.get("/servers")).json()["items"]
    big = next(server["id"] for server in servers if server["name"] == "big")
    assert (await user.http.delete(f"/servers/{big}")).status_code == 204
    with owner_connection(container) as connection:
        rows = connection.execute(
            "SELECT u.ann, bool_or(e.ann), u.tool_count FROM users u JOIN mcp_tool_embeddings e ON e.user_id = u.id"
            " WHERE u.id = %s GROUP BY u.id",
            (user.id,),
        ).fetchall()
    assert rows == [(False, False, 10)]


async def test_two_replicas_return_the_same_answer(container: Container, user: TestUser) -> None:
    await user.add_tools(*make_tools(60))
    async with open_client(container, Authorization=f"Bearer {user.key}") as other_replica:
        request = {"query": "noun1 noun2", "format": "openai", "similarity_threshold": 0}
        here = (await user.http.post("/discover", json=request)).json()
        there = (await other_replica.post("/discover", json=request)).json()
    varying = ("discovery_id", "search_duration_ms", "embedding_generated")
    assert _without(here, varying) == _without(there, varying)


def _without(answer: dict[str, object], keys: Sequence[str]) -> dict[str, object]:
    return {key: value for key, value in answer.items() if key not in keys}


async def test_a_changed_catalogue_changes_the_next_answer(user: TestUser) -> None:
    server_id = await user.add_tools(tool("count_llamas", "Counts the llamas of a farm."))
    question = "how many llamas and alpacas are there?"
    assert [found["tool"]["name"] for found in (await user.discover(question))["tools"]] == ["count_llamas"]
    await user.push(
        server_id, [tool("count_llamas", "Counts llamas."), tool("count_alpacas", "Counts the alpacas of a farm.")]
    )
    answer = await user.discover(question)
    assert {found["tool"]["name"] for found in answer["tools"]} == {"count_llamas", "count_alpacas"}
    assert answer["total_searched"] == 2
    descriptions = {found["tool"]["description"] for found in answer["tools"]}
    assert "Counts llamas." in descriptions

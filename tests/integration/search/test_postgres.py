"""Search in Postgres against an oracle: the answer does not depend on the plan."""

import random
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from app.catalog.visibility import Scope
from app.container import Container
from app.search.postgres import SearchResult
from app.search.query import parse_query
from app.search.scoring import ScoringParams
from tests.support.clients import TestUser, open_client
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

"""Search against an oracle: what it answers is what there is, whatever the plan."""

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.catalog.visibility import Scope
from app.container import Container
from app.search import postgres
from app.search.postgres import SearchResult
from app.search.query import read_query
from app.search.scoring import ScoringParams, boost
from app.search.term_stats import Counts
from tests.conftest import OpenService, TestUser, client_of, new_user, tool
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.seed_vectors import KnownUser, Matrix, add_user, owner_connection

K = 8
SEMANTIC = ScoringParams(read_query("anything"), "semantic", threshold=0.0)


@pytest.fixture
async def crowded(open_service: OpenService) -> AsyncIterator[tuple[Container, list[KnownUser]]]:
    """50 users who share the same servers: near-duplicate vectors all over the table."""
    generator = np.random.default_rng(7)
    shared = generator.standard_normal((150, 384)).astype(np.float32)
    async with open_service(index_concurrency=0) as container:
        yield container, [_user(container, generator, shared) for _ in range(50)]


def _user(container: Container, generator: np.random.Generator, shared: Matrix) -> KnownUser:
    chosen = generator.choice(len(shared), size=int(generator.integers(20, 120)), replace=False)
    noise = generator.standard_normal((len(chosen), 384)).astype(np.float32) * 0.01
    return add_user(container, [f"tool_{i:03}" for i in chosen], shared[chosen] + noise)


async def _search(container: Container, user: KnownUser, query: Matrix, *settings: str) -> SearchResult:
    async with container.database.transaction(user.id) as session:
        for setting in settings:
            await session.rows(f"SET LOCAL {setting}")
        scope = Scope(user.id, container.model.id)
        return await container.discoverer.search.find(session, scope, SEMANTIC, [query], limit=K)


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
        found = await _search(container, user, query, f"plan_cache_mode = {plan}")
        assert _names(user, found) == user.nearest(query, K)
        assert found.searched == len(user.names)


def _names(user: KnownUser, found: SearchResult) -> list[str]:
    assert len({hit.tool_id for hit in found.hits}) == len(found.hits)
    return [hit.tool_name for hit in found.hits]


async def test_equal_scores_stand_in_the_order_of_their_names(open_service: OpenService) -> None:
    names = [f"tool_{i}" for i in random.Random(3).sample(range(100), 30)]
    vectors = np.ones((30, 384), np.float32)
    async with open_service(index_concurrency=0) as container:
        user = add_user(container, names, vectors)
        found = await _search(container, user, np.ones(384, np.float32))
    assert _names(user, found) == sorted(names)[:K]


def words(count: int) -> list[dict[str, object]]:
    nouns = [f"noun{i}" for i in range(40)]
    chooser = random.Random(5)
    return [tool(f"tool_{i:03}", " ".join(chooser.sample(nouns, 6))) for i in range(count)]


@pytest.fixture
async def large(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> AsyncIterator[tuple[Container, TestUser]]:
    """A service that calls a user large from 50 tools on, and a user with 200 on two servers."""
    async with (
        open_service(**embedding_server.settings(search_ann_above=50)) as container,
        new_user(container) as user,
    ):
        await user.add_tools(*words(190), server="big")
        await user.add_tools(*words(10), server="small")
        yield container, user


QUERIES = ["noun1 noun7 noun30", "noun3", "noun12 noun13 noun14 noun15"]


async def _semantic(user: TestUser, query: str, **fields: object) -> list[str]:
    answer = await user.discover(query, strategy="semantic", similarity_threshold=0, **fields)
    return [found["tool_key"] for found in answer["tools"]]


async def test_a_user_above_the_line_is_searched_through_hnsw_with_the_same_answers(
    large: tuple[Container, TestUser],
) -> None:
    container, user = large
    with owner_connection(container) as connection:
        assert connection.execute("SELECT ann FROM users WHERE id = %s", (user.id,)).fetchone() == (True,)
        through_hnsw = [await _semantic(user, query) for query in QUERIES]
        connection.execute("UPDATE users SET ann = false WHERE id = %s", (user.id,))
    container.authenticator.clear_cache()
    assert through_hnsw == [await _semantic(user, query) for query in QUERIES]


async def test_the_hnsw_route_can_use_the_partial_index(large: tuple[Container, TestUser]) -> None:
    container, user = large
    statement = postgres._through_hnsw(container.model.id, container.model.dimension, 1, tagged=False)
    vectors, nothing = [np.ones(container.model.dimension, np.float32)], Counts(0, 0, 0, {})
    asked = postgres._asked(nothing, [[]], vectors) | postgres._weighed(SEMANTIC, nothing)
    parameters = Scope(user.id, container.model.id).parameters() | asked | {"pool": 8}
    async with container.database.transaction(user.id) as session:
        await session.rows("SET LOCAL enable_seqscan = off")
        await session.rows("SET LOCAL enable_sort = off")
        plan = await session.rows(f"EXPLAIN {statement}", parameters)
    assert "mcp_tool_embeddings_ann_" in "\n".join(str(line[0]) for line in plan)


async def test_rows_that_hnsw_has_lost_are_found_by_the_exact_route(large: tuple[Container, TestUser]) -> None:
    container, user = large
    complete = [await _semantic(user, query) for query in QUERIES]
    with owner_connection(container) as connection:
        connection.execute("UPDATE mcp_tool_embeddings SET ann = false WHERE user_id = %s", (user.id,))
    assert [await _semantic(user, query) for query in QUERIES] == complete


async def test_a_narrow_scope_of_a_large_user_is_answered_in_full(large: tuple[Container, TestUser]) -> None:
    _, user = large
    servers = (await user.http.get("/servers")).json()["items"]
    small = next(server["id"] for server in servers if server["name"] == "small")
    assert len(await _semantic(user, QUERIES[0], server_ids=[small], limit=10)) == 10


async def test_a_user_who_shrinks_leaves_hnsw(large: tuple[Container, TestUser]) -> None:
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


async def test_postgres_adds_up_what_the_ranking_adds_up(container: Container, user: TestUser) -> None:
    """A boost that only the ranking knew would come too late: the tool would not be among those that it looks at."""
    things = ("invoice", "order", "ticket", "parcel", "branch", "event", "contact", "file", "page", "photo")
    await user.add_tools(
        *(tool(f"{verb}_{thing}") for verb in ("show", "create", "rename", "delete") for thing in things)
    )
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    assert (await user.http.patch(f"/tools/{keys['rename_photo']}", json={"tags": ["wanted"]})).status_code == 200
    with owner_connection(container) as connection:
        connection.execute("UPDATE mcp_tool_embeddings SET prior = 0.02 WHERE tool_id = %s", (keys["create_page"],))
    query = replace(read_query("delete the invoice and show the order"), called=frozenset({"create_event"}))
    question = ScoringParams(query, "hybrid", 0.0, ("wanted",), container.discoverer.model.calibration)
    vectors = (await container.discoverer.queries.embed(user.id, query.texts)).vectors
    search, scope = container.discoverer.search, Scope(user.id, container.model.id)
    async with container.database.snapshot(user.id) as session:
        counts = await search._lexicon.counts(session, scope, question.places[0])
        everything, first = [
            [postgres._candidate(row) for row in await search._rows(session, scope, question, counts, vectors, **how)]
            for how in ({"limit": None, "ann": False}, {"limit": K, "ann": False})
        ]
    scale = postgres._scale(question, counts)
    boosts = {each.tool_name: boost(each, question) for each in everything}
    assert [boosts[name] for name in ("rename_photo", "create_page", "create_event", "delete_file")] == pytest.approx(
        [0.2 - 0.03, 0.02 - 0.03, 0.03 - 0.03, 0.03]
    )
    ordered = sorted(everything, key=lambda each: -scale.fused(each) - boosts[each.tool_name])
    assert len(first) < len(everything) == 40
    assert everything == ordered
    assert first == ordered[: len(first)]


async def test_two_replicas_give_the_same_bytes(container: Container, user: TestUser) -> None:
    await user.add_tools(*words(60))
    async with client_of(container, Authorization=f"Bearer {user.key}") as other_replica:
        request = {"query": "noun1 noun2", "format": "openai", "similarity_threshold": 0}
        here = (await user.http.post("/discover", json=request)).json()
        there = (await other_replica.post("/discover", json=request)).json()
    varying = ("discovery_id", "search_duration_ms", "embedding_generated")
    assert _without(here, varying) == _without(there, varying)


def _without(answer: dict[str, object], keys: Sequence[str]) -> dict[str, object]:
    return {key: value for key, value in answer.items() if key not in keys}


async def test_a_changed_catalogue_changes_the_next_answer_at_once(user: TestUser) -> None:
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

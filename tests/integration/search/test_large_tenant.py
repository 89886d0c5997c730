"""The search of very large tenants: the plans that Postgres really uses, and the same answers as the exact search."""

import random
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pgvector import HalfVector, SparseVector

from app.catalog.visibility import Scope
from app.container import Container
from app.db.engine import Session
from app.db.tables import TERM_SPACE
from app.search import large_tenant
from app.search.hnsw import LargeTenant
from app.search.large_tenant import choose_rare_terms
from app.search.learned import read_learned
from app.search.postgres import SearchResult
from app.search.query import parse_query
from app.search.scoring import SIBLING_BOOST, ScoringParams
from app.search.term_stats import TermStats
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import OpenService, tool
from tests.support.large_tenants import update_large_tenants
from tests.support.seed_vectors import KnownUser, Matrix, add_user, owner_connection
from tests.support.sql_statements import recorded_statements

K = 8
HYBRID = ScoringParams(parse_query("show me the open invoices"), "hybrid", threshold=0.0)
SEMANTIC = replace(HYBRID, strategy="semantic")
NOUNS = [f"noun{i}" for i in range(40)]
QUERIES = ["noun1 noun7 noun30", "noun3", "noun12 and noun13 then noun14", "call `tool_017` please", "tool_101"]


def make_tools(count: int) -> list[dict[str, object]]:
    chooser = random.Random(5)
    return [tool(f"tool_{i:03}", " ".join(chooser.sample(NOUNS, 6))) for i in range(count)]


@pytest.fixture
async def large(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> AsyncIterator[tuple[Container, TestUser]]:
    """A service that builds indexes for users above 50 tools, and a user with 200 tools on two servers."""
    async with (
        open_service(snapshot_mb=0, **embedding_server.settings(search_ann_above=50)) as container,
        new_user(container) as user,
    ):
        await user.add_tools(*make_tools(190), server="big")
        await user.add_tools(*make_tools(10), server="small")
        await update_large_tenants(container)
        yield container, user


async def _discover(user: TestUser, query: str, **fields: object) -> dict[str, object]:
    answer = await user.discover(query, similarity_threshold=0, **fields)
    varying = ("discovery_id", "search_duration_ms", "embedding_generated")
    return {key: value for key, value in answer.items() if key not in varying}


async def _discover_exactly(container: Container, user: TestUser, *queries: str) -> list[dict[str, object]]:
    """Without its counts, a large user is searched exactly."""
    with owner_connection(container) as connection:
        connection.execute("DELETE FROM large_tenant_stats WHERE user_id = %s", (user.id,))
    return [await _discover(user, query) for query in queries]


async def test_a_large_user_gets_the_answers_of_the_exact_search(large: tuple[Container, TestUser]) -> None:
    container, user = large
    with recorded_statements() as statements:
        through_indexes = [await _discover(user, query) for query in QUERIES]
    assert sum("large_tenant_words" in statement for statement in statements) == len(QUERIES)
    with recorded_statements() as statements:
        exact = await _discover_exactly(container, user, *QUERIES)
    assert not any("large_tenant_words" in statement for statement in statements)
    assert through_indexes == exact


async def test_a_project_of_a_large_user_is_counted_for_itself(large: tuple[Container, TestUser]) -> None:
    container, user = large
    servers = {server["name"]: server["id"] for server in (await user.http.get("/servers")).json()["items"]}
    created = await user.http.post("/projects", json={"name": "few", "server_ids": [servers["small"]]})
    project = created.json()["id"]
    before = await _discover(user, QUERIES[0], project_id=project, limit=10)
    await update_large_tenants(container)
    after = await _discover(user, QUERIES[0], project_id=project, limit=10)
    assert before["total_searched"] == after["total_searched"] == 10
    assert len(after["tools"]) == 10  # type: ignore[arg-type]


async def test_a_filtered_search_of_a_large_user_is_complete(large: tuple[Container, TestUser]) -> None:
    _, user = large
    servers = (await user.http.get("/servers")).json()["items"]
    small = next(server["id"] for server in servers if server["name"] == "small")
    answer = await _discover(user, QUERIES[0], server_ids=[small], limit=10, strategy="semantic")
    assert len(answer["tools"]) == 10  # type: ignore[arg-type]


async def test_a_change_is_found_before_anything_is_counted_again(large: tuple[Container, TestUser]) -> None:
    _, user = large
    server_id = await user.add_tools(tool("count_llamas", "Counts the llamas of a farm."), server="farm")
    [found, *_] = (await user.discover("count the llamas"))["tools"]
    assert found["tool"]["name"] == "count_llamas"
    assert (await user.http.delete(f"/servers/{server_id}")).status_code == 204
    names = [found["tool"]["name"] for found in (await user.discover("count the llamas"))["tools"]]
    assert "count_llamas" not in names


async def test_hidden_tools_are_skipped_and_the_scan_goes_on(large: tuple[Container, TestUser]) -> None:
    _, user = large
    hide_all = {"pattern": ["*"], "enabled": False}
    assert (await user.http.put("/rules", json={"rules": [hide_all]})).status_code == 200
    assert (await _discover(user, QUERIES[0]))["tools"] == []
    rules = [{"pattern": ["tool_10*"], "enabled": True}, hide_all]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
    answer = await _discover(user, "noun1 noun2", limit=10)
    assert {found["tool"]["name"] for found in answer["tools"]} == {f"tool_10{i}" for i in range(10)}  # type: ignore[attr-defined]


# --- plans, with so many rows that only an index is quick ---


@pytest.fixture
async def crowded(open_service: OpenService) -> AsyncIterator[tuple[Container, KnownUser, KnownUser]]:
    """Two large users and a small one; the planner chooses without any hint."""
    generator = np.random.default_rng(7)
    async with open_service(index_concurrency=0) as container:
        first, second, _ = (_add_user(container, generator, count) for count in (2_000, 1_500, 40))
        with owner_connection(container) as connection:
            connection.execute("UPDATE users SET ann = true WHERE id = ANY(%s)", ([first.id, second.id],))
        await update_large_tenants(container)
        with owner_connection(container) as connection:
            connection.execute("ANALYZE")
        yield container, first, second


def _add_user(container: Container, generator: np.random.Generator, count: int) -> KnownUser:
    """Insert a user whose tools have vectors in clusters, as tools have, and a few words each."""
    centers = generator.standard_normal((60, 384)).astype(np.float32)
    vectors = centers[generator.integers(60, size=count)] + generator.standard_normal((count, 384)).astype(np.float32)
    user = add_user(container, [f"tool_{i:04}" for i in range(count)], vectors)
    with owner_connection(container) as connection, connection.cursor() as cursor:
        words = generator.integers(1_000, size=(count, 5))
        cursor.executemany(
            "UPDATE mcp_tool_embeddings SET lexical = %s WHERE user_id = %s AND tool_name = %s",
            [
                (SparseVector({int(word): 1.0 for word in of_tool}, TERM_SPACE), user.id, name)
                for of_tool, name in zip(words, user.names, strict=True)
            ],
        )
    return user


async def _search(
    container: Container, session: Session, user: KnownUser, query: Matrix, params: ScoringParams, limit: int = K
) -> SearchResult | None:
    scope = Scope(user.id, container.model.id)
    learned = await read_learned(session, scope)
    search = container.searcher.large_tenant_search
    return await search.find(session, scope, params, [query], limit=limit, learned=learned)


async def _read_plan(session: Session) -> str:
    """Return the plan with which this session has executed the statement of a search."""
    [(name, types, generic, custom)] = await session.rows(
        "SELECT name, cardinality(parameter_types), generic_plans, custom_plans FROM pg_prepared_statements"
        " WHERE statement LIKE 'WITH evidence%'"
    )
    assert (generic, custom) == (1, 0)
    plan = await session.rows(f'EXPLAIN EXECUTE "{name}" ({", ".join(["NULL"] * types)})')
    return "\n".join(str(line) for (line,) in plan)


async def test_the_statement_that_is_sent_uses_the_indexes_under_row_level_security(
    crowded: tuple[Container, KnownUser, KnownUser],
) -> None:
    container, *users = crowded
    for user in users:
        tenant = LargeTenant(user.id, container.model.id, container.model.dimension)
        async with container.database.snapshot(user.id) as session:
            session._driver.prepare_threshold = 0  # prepared at once, and not only when it is sent for the sixth time
            assert await _search(container, session, user, user.vectors[0], HYBRID) is not None
            assert await session.rows("SELECT current_user::text, row_security_active('large_tenant_tools')") == [
                ("toolscout_app", True)
            ]
            plan = await _read_plan(session)
            await session.rows("DEALLOCATE ALL")
        assert f"Index Scan using {tenant.hnsw_index}" in plan
        assert f"Bitmap Index Scan on {tenant.words_index}" in plan
        assert "large_tenant_tools_name" in plan
        assert "Seq Scan on large_tenant_tools" not in plan
        assert "Seq Scan on mcp_tool_embeddings" not in plan


async def test_the_nearest_tools_are_found_through_the_index(crowded: tuple[Container, KnownUser, KnownUser]) -> None:
    container, *users = crowded
    found = expected = 0
    for user in users:
        async with container.database.snapshot(user.id) as session:
            for position in range(0, 1_000, 100):
                result = await _search(container, session, user, user.vectors[position], SEMANTIC)
                assert result is not None
                nearest = set(user.nearest(user.vectors[position], K))
                expected += K
                found += len(nearest.intersection(hit.tool_name for hit in result.ranking.hits))
                assert result.searched == len(user.names)
    assert found / expected >= 0.98


async def test_a_user_finds_nothing_of_another_large_user(crowded: tuple[Container, KnownUser, KnownUser]) -> None:
    container, first, second = crowded
    count = "SELECT count(*), count(*) FILTER (WHERE user_id = %(other)s) FROM {table}"
    async with container.database.snapshot(first.id) as session:
        for table in ("large_tenant_tools", "large_tenant_words"):
            assert await session.rows(count.format(table=table), {"other": second.id}) == [(2_000, 0)]
        for table in ("large_tenant_terms", "large_tenant_stats"):
            [(own, others)] = await session.rows(count.format(table=table), {"other": second.id})
            assert own > 0
            assert others == 0
    async with container.database.system_transaction() as session:
        assert await session.rows("SELECT count(*) FROM large_tenant_words") == [(0,)]


async def test_a_tool_is_found_by_its_examples_however_far_its_description_is(
    crowded: tuple[Container, KnownUser, KnownUser],
) -> None:
    container, user, _ = crowded
    message = user.vectors[0] / np.linalg.norm(user.vectors[0])
    farthest = user.nearest(message, len(user.names))[-1]

    async def find() -> Sequence[str]:
        async with container.database.snapshot(user.id) as session:
            result = await _search(container, session, user, message, HYBRID, limit=100)
        assert result is not None
        return [hit.tool_name for hit in result.ranking.hits]

    assert farthest not in await find()
    with owner_connection(container) as connection:
        connection.execute(
            "INSERT INTO tool_examples (user_id, model, tool_id, id, vector, weight, source)"
            " SELECT user_id, %s, id, %s, %s, 5, 'person' FROM mcp_tools WHERE user_id = %s AND name = %s",
            (container.model.id, str(uuid.uuid4()), HalfVector(message), user.id, farthest),
        )
    assert farthest in await find()


async def test_a_tool_of_the_server_of_a_called_tool_ranks_higher(
    crowded: tuple[Container, KnownUser, KnownUser],
) -> None:
    container, user, _ = crowded
    called = replace(HYBRID, query=replace(HYBRID.query, called=frozenset({"tool_0042"})))
    scores = []
    for params in (HYBRID, called):
        async with container.database.snapshot(user.id) as session:
            result = await _search(container, session, user, user.vectors[0], params)
        assert result is not None
        scores.append({hit.tool_name: hit.score for hit in result.ranking.hits})
    name = next(name for name, score in scores[0].items() if score < 1 - SIBLING_BOOST)
    assert scores[1][name] == pytest.approx(scores[0][name] + SIBLING_BOOST)


def test_rare_terms_are_chosen_before_common_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_tenant, "_MAX_BY_WORDS", 100)
    assert choose_rare_terms(TermStats(1, 1_000, 0, {1: 500, 2: 60, 3: 0, 4: 30, 5: 90})) == [3, 4, 2]
    assert choose_rare_terms(TermStats(1, 1_000, 0, {1: 500})) == []

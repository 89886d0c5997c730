"""What examples add to a score, computed in Postgres and in numpy."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pgvector import HalfVector

from app.catalog.visibility import Scope
from app.container import Container
from app.embeddings.calibration import UNCALIBRATED
from app.search import postgres
from app.search.examples import CLOSENESS_POWER, MAX_BOOST, MAX_PENALTY, SCALE
from app.search.learned import read_learned
from app.search.query import parse_query
from app.search.scoring import ScoringParams
from app.usage.examples import DECAYED_WEIGHT, HALF_LIFE_DAYS
from tests.support.factories import OpenService
from tests.support.seed_vectors import KnownUser, Matrix, add_user, owner_connection

FLOOR = 0.2
TOOLS = [f"tool_{number}" for number in range(12)]
PARAMS = ScoringParams(parse_query("anything"), "hybrid", 0.0, calibration=replace(UNCALIBRATED, example_floor=FLOOR))
TWO_TEXTS = replace(PARAMS, query=replace(PARAMS.query, subqueries=("one", "another")))


class Example:
    def __init__(self, tool: str, vector: Matrix, weight: float = 1.0, days: int = 0, source: str = "use") -> None:
        self.tool, self.vector, self.weight, self.days, self.source = tool, vector, weight, days, source


@pytest.fixture
async def service(open_service: OpenService) -> AsyncIterator[Container]:
    async with open_service(index_concurrency=0) as container:
        yield container


def make_unit_vectors(generator: np.random.Generator, count: int) -> Matrix:
    vectors = generator.standard_normal((count, 384)).astype(np.float32) + 0.8  # a common part, as messages have
    unit: Matrix = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def store(container: Container, user: KnownUser, examples: Sequence[Example], model: str | None = None) -> None:
    with owner_connection(container) as connection:
        for each in examples:
            connection.execute(
                "INSERT INTO tool_examples (user_id, model, tool_id, id, vector, weight, source, used_on)"
                " SELECT user_id, %s, id, %s, %s, %s, %s, CURRENT_DATE - %s"
                " FROM mcp_tools WHERE user_id = %s AND name = %s",
                (
                    model or container.model.id,
                    str(uuid.uuid4()),
                    HalfVector(each.vector),
                    each.weight,
                    each.source,
                    each.days,
                    user.id,
                    each.tool,
                ),
            )


def compute_boosts(examples: Sequence[Example], vectors: Matrix) -> dict[str, float]:
    evidence: dict[str, float] = {}
    for each in examples:
        half = each.vector.astype(np.float16).astype(np.float64)
        queries = vectors.astype(np.float16).astype(np.float64)
        cosine = max(queries @ half / np.linalg.norm(queries, axis=1) / np.linalg.norm(half))
        closeness = max(0.0, (cosine - FLOOR) / (1 - FLOOR)) ** CLOSENESS_POWER
        fading = 0.5 ** (each.days / HALF_LIFE_DAYS) if each.source == "use" else 1.0
        evidence[each.tool] = evidence.get(each.tool, 0.0) + each.weight * fading * closeness
    total = sum(value for value in evidence.values() if value > 0)
    return {
        name: float(MAX_BOOST * (1 - np.exp(-value / SCALE)) * value / total)
        if value > 0
        else float(-MAX_PENALTY * (1 - np.exp(value / SCALE)))
        for name, value in evidence.items()
    }


async def read_boosts(
    container: Container, user: KnownUser, params: ScoringParams, vectors: Matrix
) -> dict[str, float]:
    """Return what examples add to each tool that a search in Postgres finds."""
    search, scope = container.searcher.hybrid_search, Scope(user.id, container.model.id)
    async with container.database.snapshot(user.id) as session:
        stats = await search._term_stats.get(session, scope, params.all_term_ids)
        learned = await read_learned(session, scope)
        boosts = learned.compute_boosts(list(vectors), params, postgres.compute_weights(params, stats))
        rows = await search._read_rows(session, scope, params, stats, list(vectors), boosts, limit=None)
        candidates = postgres.make_candidates(rows, params, stats, list(vectors), boosts)
    return {each.tool_name: each.example_boost for each in candidates}


@pytest.mark.parametrize("params", [PARAMS, TWO_TEXTS], ids=["one text", "subqueries"])
async def test_the_boost_of_stored_examples_follows_the_formula(service: Container, params: ScoringParams) -> None:
    generator = np.random.default_rng(3)
    user = add_user(service, TOOLS, make_unit_vectors(generator, len(TOOLS)))
    examples = [
        Example(
            TOOLS[int(generator.integers(8))],
            vector,
            float(generator.choice([-2.0, -1.0, 1.0, 1.0, 3.5])),
            int(generator.integers(200)),
            str(generator.choice(["use", "person"])),
        )
        for vector in make_unit_vectors(generator, 60)
    ]
    store(service, user, examples)
    vectors = make_unit_vectors(generator, len(params.query.texts))
    expected = dict.fromkeys(TOOLS, 0.0) | compute_boosts(examples, vectors)
    assert await read_boosts(service, user, params, vectors) == pytest.approx(expected, abs=1e-4)
    assert min(expected.values()) < 0 < max(expected.values()) <= MAX_BOOST


async def test_weights_fade_in_python_as_they_do_in_sql(service: Container) -> None:
    generator = np.random.default_rng(7)
    user = add_user(service, TOOLS, make_unit_vectors(generator, len(TOOLS)))
    weights, days = (1.0, -2.0, 3.5), (0, 1, 59, 60, 200, 364)
    examples = [
        Example(TOOLS[number], vector, weights[number % 3], days[number % 6], ("use", "person")[number % 2])
        for number, vector in enumerate(make_unit_vectors(generator, len(TOOLS)))
    ]
    store(service, user, examples)
    scope = Scope(user.id, service.model.id)
    async with service.database.snapshot(user.id) as session:
        stored = (await read_learned(session, scope)).examples
        by_sql = await session.rows(
            f"SELECT {DECAYED_WEIGHT} FROM tool_examples e WHERE e.user_id = %(user_id)s ORDER BY e.tool_id, e.id",
            {"user_id": user.id},
        )
    assert stored is not None
    in_python = stored._weigh(np.arange(len(examples)), time.time(), learned=True)
    assert in_python.tolist() == pytest.approx([weight for (weight,) in by_sql])
    assert len(set(in_python.tolist())) == 5


async def test_examples_of_another_model_do_not_count(service: Container) -> None:
    generator = np.random.default_rng(4)
    user, [message] = add_user(service, TOOLS, make_unit_vectors(generator, 12)), make_unit_vectors(generator, 1)
    store(service, user, [Example("tool_1", message)], model="another")
    assert set((await read_boosts(service, user, PARAMS, message[None])).values()) == {0.0}
    store(service, user, [Example("tool_1", message)])
    assert (await read_boosts(service, user, PARAMS, message[None]))["tool_1"] > 0.4


async def test_learned_examples_do_not_count_while_learning_is_off_but_those_of_a_person_do(service: Container) -> None:
    generator = np.random.default_rng(5)
    user, [message] = add_user(service, TOOLS, make_unit_vectors(generator, 12)), make_unit_vectors(generator, 1)
    store(service, user, [Example("tool_1", message), Example("tool_2", message, source="person")])
    boosts = await read_boosts(service, user, replace(PARAMS, learned=False), message[None])
    assert (boosts["tool_1"], boosts["tool_2"] > 0.4) == (0.0, True)

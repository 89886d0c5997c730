"""The score in SQL, on a real Postgres, and the score in numpy equal the score in Python."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from app.catalog.visibility import Scope
from app.container import Container
from app.embeddings.calibration import Calibration
from app.search import postgres
from app.search.examples import MAX_BOOST, MAX_PENALTY, MIN_BOOST_TO_PASS
from app.search.intents import Action
from app.search.query import Query, parse_query
from app.search.scoring import (
    Candidate,
    EvidenceColumns,
    Rows,
    ScoringParams,
    Strategy,
    Weights,
    boost_sql,
    compute_boost,
    compute_boost_columns,
    make_sql_parameters,
    make_weights,
    passes_threshold,
    passes_threshold_columns,
    passes_threshold_sql,
    score_alone_columns,
    score_texts,
    score_texts_columns,
    score_texts_sql,
)
from app.usage.priors import MAX_PRIOR
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.seed_vectors import owner_connection

CALIBRATION = Calibration(0.2, 0.8, 0.4, center=(1.0,), center_unrelated=0.1, center_weight=0.5)
QUERIES = [
    "show the invoices",
    "the weather",
    "find the paper about bees and mail it to Ann",
    "delete the old branch, then create a ticket about it, and show the open builds",
]
TAGS = ["blue", "green", "red"]
MAX_BM25 = 12.0


def make_candidates(texts: int, chooser: random.Random) -> list[Candidate]:
    """Return tools with every kind of evidence: missing embeddings, cosines below zero, priors beyond the maximum."""
    edge_cases = [(None, 0.0), (-0.3, 0.0), (0.4, 0.0), (0.2, MAX_BM25 / 2), (1.0, MAX_BM25)]
    candidates = []
    for number in range(200):
        similarity, bm25 = (
            edge_cases[number] if number < len(edge_cases) else (chooser.uniform(-0.2, 1), chooser.uniform(0, 12))
        )
        has_vector = similarity is not None and chooser.random() < 0.9
        candidates.append(
            Candidate(
                tool_id=f"id-{number}",
                server_name="server",
                tool_name=f"tool_{number}",
                tags=chooser.sample([*TAGS, "other"], chooser.randint(0, 4)),
                similarities=[similarity if has_vector else None]
                + [chooser.uniform(-0.2, 1) if has_vector else None for _ in range(texts - 1)],
                bm25s=[bm25, *(chooser.uniform(0, bm25) for _ in range(texts - 1))],
                action=chooser.choice(list(Action)),
                prior=chooser.choice([0.0, MAX_PRIOR / 2, MAX_PRIOR, 2 * MAX_PRIOR]),
                center_cosine=chooser.uniform(-0.2, 0.8),
                is_sibling=chooser.random() < 0.2,
                example_boost=chooser.choice([0.0, 0.0, -MAX_PENALTY, MIN_BOOST_TO_PASS, MAX_BOOST]),
            )
        )
    return candidates


async def score_in_postgres(
    container: Container, candidates: Sequence[Candidate], params: ScoringParams, max_bm25s: Sequence[float]
) -> list[tuple[float, float, bool]]:
    texts = len(params.query.texts)
    columns = {"tool_name": "text", "tags": "text[]", "action": "smallint", "prior": "real"}
    columns |= {"center_cosine": "float8", "is_sibling": "boolean", "example_boost": "float8"}
    columns |= {f"similarity_{text}": "float8" for text in range(texts)}
    columns |= {f"bm25_{text}": "float8" for text in range(texts)}
    rows: dict[str, Any] = {}
    values = []
    for number, each in enumerate(candidates):
        fields = [each.tool_name, list(each.tags), int(each.action), each.prior, each.center_cosine, each.is_sibling]
        fields += [each.example_boost, *each.similarities, *each.bm25s]
        rows |= {f"{column}_{number}": field for column, field in zip(columns, fields, strict=True)}
        cells = ", ".join(f"%({column}_{number})s::{kind}" for column, kind in columns.items())
        values.append(f"({number}, {cells})")
    statement = f"""
        SELECT {score_texts_sql(texts, has_context=bool(params.query.context))},
               {boost_sql(with_tags=bool(params.tags), with_named_tags=bool(params.named_tags), with_calls=True)},
               {passes_threshold_sql(texts)}
        FROM (VALUES {", ".join(values)}) AS evidence (number, {", ".join(columns)}) ORDER BY number
    """
    parameters = make_sql_parameters(params, make_weights(params, max_bm25s, max_bm25s[0]))
    async with container.database.system_transaction() as session:
        return [(score, boost, passes) for score, boost, passes in await session.rows(statement, parameters | rows)]


class CandidateColumns:
    """The candidates as the columns that boosts depend on."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self.actions = np.array([each.action for each in candidates], np.int16)
        self.priors = np.array([each.prior for each in candidates])

    def find_tagged(self, tag: str) -> Rows:
        return np.flatnonzero([tag in each.tags for each in self._candidates])

    def find_called(self, query: Query) -> tuple[Rows, npt.NDArray[np.bool_]]:
        called = np.flatnonzero([each.tool_name in query.called for each in self._candidates])
        return called, np.array([each.is_sibling for each in self._candidates])


def score_in_numpy(
    candidates: Sequence[Candidate], params: ScoringParams, weights: Weights
) -> tuple[list[float], list[float], list[bool]]:
    texts = range(len(params.query.texts))
    boosts = np.array([each.example_boost for each in candidates])
    columns = EvidenceColumns(
        [np.array([each.similarities[text] or 0.0 for each in candidates]) for text in texts],
        np.array([each.similarity is not None for each in candidates]),
        [np.array([each.bm25s[text] for each in candidates]) for text in texts],
        np.array([each.center_cosine for each in candidates]),
        boosts,
    )
    scores = score_texts_columns(columns, weights, score_alone_columns(columns, weights))
    added = compute_boost_columns(CandidateColumns(candidates), params, boosts)
    return scores.tolist(), added.tolist(), passes_threshold_columns(columns, weights).tolist()


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("strategy", ["hybrid", "semantic", "bm25"])
@pytest.mark.parametrize("threshold", [None, 0.0, 0.4])
@pytest.mark.parametrize(
    ("tags", "named_tags"),
    [((), ()), (("blue", "red"), ()), ((), ("green", "unknown")), (("blue", "red"), ("blue", "green"))],
    ids=["no tags", "two tags", "named tags", "both"],
)
@pytest.mark.parametrize("context", ["", "the turns before"], ids=["no context", "context"])
async def test_the_score_in_sql_and_in_numpy_equals_the_score_in_python(
    container: Container,
    query: str,
    strategy: Strategy,
    threshold: float | None,
    tags: Sequence[str],
    named_tags: Sequence[str],
    context: str,
) -> None:
    parsed: Query = replace(parse_query(query), called=frozenset({"tool_7", "tool_11"}), context=context)
    params = ScoringParams(parsed, strategy, threshold, tags, CALIBRATION, named_tags=named_tags)
    max_bm25s = [MAX_BM25] * len(parsed.texts)
    weights = make_weights(params, max_bm25s, MAX_BM25)
    candidates = make_candidates(len(parsed.texts), random.Random(query))
    scored = await score_in_postgres(container, candidates, params, max_bm25s)
    assert [score for score, _, _ in scored] == pytest.approx(
        [score_texts(candidate, weights) for candidate in candidates], abs=1e-9
    )
    assert [boost for _, boost, _ in scored] == pytest.approx(
        [compute_boost(candidate, params) for candidate in candidates], abs=1e-8
    )
    in_numpy = score_in_numpy(candidates, params, weights)
    assert in_numpy[0] == pytest.approx([score_texts(candidate, weights) for candidate in candidates], abs=1e-9)
    assert in_numpy[1] == pytest.approx([compute_boost(candidate, params) for candidate in candidates], abs=1e-9)
    assert in_numpy[2] == [passes_threshold(candidate, weights) for candidate in candidates]
    passing = [passes for _, _, passes in scored]
    assert passing == [passes_threshold(candidate, weights) for candidate in candidates]
    assert threshold == 0.0 or len(set(passing)) == 2, "the threshold decides nothing"


def test_the_queries_cover_one_text_and_several() -> None:
    assert [len(parse_query(query).texts) for query in QUERIES] == [1, 1, 3, 4]


async def test_a_search_returns_its_candidates_in_the_order_of_the_score(container: Container, user: TestUser) -> None:
    """A boost that only Python knew would come too late: its tool would not be among the candidates."""
    things = ("invoice", "order", "ticket", "parcel", "branch", "event", "contact", "file", "page", "photo")
    await user.add_tools(
        *(tool(f"{verb}_{thing}") for verb in ("show", "create", "rename", "delete") for thing in things)
    )
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    assert (await user.http.patch(f"/tools/{keys['rename_photo']}", json={"tags": ["blue"]})).status_code == 200
    with owner_connection(container) as connection:
        connection.execute("UPDATE mcp_tool_embeddings SET prior = 0.02 WHERE tool_id = %s", (keys["create_page"],))
    query = replace(parse_query("delete the invoice and show the order"), called=frozenset({"create_event"}))
    params = ScoringParams(query, "hybrid", 0.0, ("blue",), container.model.calibration)
    vectors = (await container.models.current.queries.embed(user.id, query.texts)).vectors
    search, scope = container.searcher.hybrid_search, Scope(user.id, container.model.id)
    async with container.database.snapshot(user.id) as session:
        stats = await search._term_stats.get(session, scope, params.all_term_ids)
        everything, best = [
            postgres.make_candidates(
                await search._read_rows(session, scope, params, stats, vectors, {}, limit=limit),
                params,
                stats,
                vectors,
                {},
            )
            for limit in (None, 8)
        ]
    weights = postgres.compute_weights(params, stats)
    boosts = {each.tool_name: compute_boost(each, params) for each in everything}
    assert [boosts[name] for name in ("rename_photo", "create_page", "create_event", "delete_file")] == pytest.approx(
        [0.1 + 0.2 - 0.03, 0.1 + 0.02 - 0.03, 0.15 - 0.03, 0.1 + 0.03]
    )
    ordered = sorted(everything, key=lambda each: -score_texts(each, weights) - boosts[each.tool_name])
    assert len(best) < len(everything) == 40
    assert {each.tool_name for each in best} == {each.tool_name for each in ordered[: len(best)]}

"""Ranking of candidates."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embeddings.calibration import Calibration
from app.search.intents import Action
from app.search.query import Query, parse_query
from app.search.ranking import Hit, is_named, rank
from app.search.scoring import ACTION_BOOST, CALLED_BOOST, Candidate, ScoringParams, Strategy, make_weights
from app.usage.priors import MAX_PRIOR

MAX_BM25 = 10.0
CALIBRATION = Calibration(unrelated=0.2, span=0.8, threshold=0.4)


def make_candidate(
    name: str,
    similarity: float | None = 0.5,
    bm25: float = 0.0,
    *,
    server: str = "server",
    tags: tuple[str, ...] = (),
    subqueries: tuple[tuple[float, float], ...] = (),
) -> Candidate:
    similarities, bm25s = [similarity, *(each for each, _ in subqueries)], [bm25, *(each for _, each in subqueries)]
    return Candidate(f"id-{server}-{name}", server, name, tags, similarities, bm25s)


def make_params(
    strategy: Strategy, threshold: float | None = 0.0, query: str | Query = "x", **fields: Any
) -> ScoringParams:
    parsed = parse_query(query) if isinstance(query, str) else query
    return ScoringParams(parsed, strategy, threshold, calibration=CALIBRATION, **fields)


def rank_all(candidates: list[Candidate], params: ScoringParams, limit: int = 5) -> list[Hit]:
    weights = make_weights(params, [MAX_BM25] * len(params.query.texts), MAX_BM25)
    return list(rank(candidates, params, weights, None, limit).hits)


def names(hits: list[Hit]) -> list[str]:
    return [hit.tool_name for hit in hits]


def test_cosine_and_bm25_add_up() -> None:
    hits = rank_all(
        [make_candidate("both", 0.7, 9.0), make_candidate("meaning", 0.75), make_candidate("words", 0.3, 9.0)],
        make_params("hybrid", 0.4),
    )
    assert [(hit.tool_name, round(hit.score, 4), hit.source) for hit in hits] == [
        ("both", 0.625 + 0.099, "semantic"),
        ("meaning", 0.6875, "semantic"),
        ("words", 0.125 + 0.099, "lexical"),
    ]


def test_a_score_does_not_depend_on_the_other_candidates() -> None:
    alone = rank_all([make_candidate("a", 0.6, 3.0)], make_params("hybrid"))
    among = rank_all(
        [make_candidate("a", 0.6, 3.0), make_candidate("b", 0.9, 9.0), make_candidate("c", 0.1)], make_params("hybrid")
    )
    assert alone[0] in among


def test_the_threshold_applies_to_the_plain_cosine() -> None:
    candidates = [make_candidate("above", 0.61), make_candidate("below", 0.59, bm25=1.0)]
    assert names(rank_all(candidates, make_params("hybrid", 0.6))) == ["above"]
    assert len(rank_all(candidates, make_params("hybrid", 0.0))) == 2


def test_the_models_threshold_is_the_default() -> None:
    candidates = [make_candidate("above", 0.41), make_candidate("below", 0.39)]
    assert names(rank_all(candidates, make_params("hybrid", None))) == ["above"]


def test_a_strong_match_by_words_passes_below_the_threshold_and_a_weak_one_does_not() -> None:
    strong, weak = make_candidate("strong", 0.1, 5.0), make_candidate("weak", 0.1, 4.9)
    assert names(rank_all([strong, weak], make_params("hybrid", 0.6))) == ["strong"]
    assert rank_all([strong, weak], make_params("semantic", 0.6)) == []


def test_bm25_alone_lets_every_match_pass_and_scores_its_share() -> None:
    candidates = [make_candidate("a", None, 1.0), make_candidate("b", None, 2.0), make_candidate("c", None)]
    hits = rank_all(candidates, make_params("bm25", 0.9))
    assert [(hit.tool_name, hit.score) for hit in hits] == [("b", 0.2), ("a", 0.1)]


def test_a_tool_without_an_embedding_is_found_by_its_words() -> None:
    candidates = [make_candidate("pending", None, 6.0), make_candidate("embedded", 0.7)]
    assert set(names(rank_all(candidates, make_params("hybrid", 0.5)))) == {"pending", "embedded"}


def test_each_matching_tag_adds_a_fifth_and_the_score_is_clamped() -> None:
    hits = rank_all(
        [
            make_candidate("none", 0.7),
            make_candidate("one", 0.55, tags=("a",)),
            make_candidate("three", 0.6, tags=("a", "b", "c")),
        ],
        make_params("semantic", tags=("a", "b", "c")),
    )
    assert [(hit.tool_name, round(hit.score, 3), list(hit.matched_tags)) for hit in hits] == [
        ("three", 1.0, ["a", "b", "c"]),
        ("one", 0.75, ["a"]),
        ("none", 0.7, []),
    ]


def test_clamped_scores_are_ordered_by_their_unclamped_values() -> None:
    tags = ("a", "b")
    params = make_params("semantic", tags=tags)
    hits = rank_all([make_candidate("a_lower", 0.8, tags=tags), make_candidate("z_higher", 0.9, tags=tags)], params)
    assert names(hits) == ["z_higher", "a_lower"]


def test_ties_are_broken_by_server_then_by_tool() -> None:
    hits = rank_all(
        [make_candidate("b", server="two"), make_candidate("z", server="one"), make_candidate("a", server="two")],
        make_params("semantic"),
    )
    assert names(hits) == ["z", "a", "b"]


def test_a_tool_that_the_message_names_comes_first() -> None:
    hits = rank_all(
        [make_candidate("better", 0.9, 5.0), make_candidate("search_issues", 0.1)],
        make_params("hybrid", 0.5, "run search_issues for me"),
    )
    assert names(hits)[0] == "search_issues"
    assert hits[0].score == 1.0


def test_a_recently_called_tool_and_its_siblings_get_a_boost() -> None:
    query = Query("and Friday?", "and Friday?", called=frozenset({"get_forecast"}))
    close, far = make_candidate("a_other", 0.6 + CALLED_BOOST / 2), make_candidate("far", 0.6 + 2 * CALLED_BOOST)
    called = make_candidate("get_forecast", 0.6)
    sibling = make_candidate("get_alerts", 0.6)._replace(is_sibling=True)
    assert names(rank_all([close, far, called, sibling], make_params("semantic", query=query))) == [
        "far",
        "get_forecast",
        "get_alerts",
        "a_other",
    ]
    assert names(rank_all([close, called], make_params("semantic"))) == ["a_other", "get_forecast"]


IN_CONTEXT = Query("and there?", "and there?", context="The weather in Oslo?")


def test_the_reading_in_context_is_blended_with_the_message_alone() -> None:
    hits = rank_all(
        [
            make_candidate("alone", 0.8, subqueries=((0.3, 0.0),)),
            make_candidate("in_context", 0.3, subqueries=((0.8, 0.0),)),
            make_candidate("both", 0.7, subqueries=((0.7, 0.0),)),
        ],
        make_params("semantic", query=IN_CONTEXT),
    )
    assert [(hit.tool_name, round(hit.score, 3)) for hit in hits] == [
        ("both", 0.7),
        ("alone", 0.6),
        ("in_context", 0.5),
    ]


def test_a_tool_that_is_near_to_every_message_has_a_higher_baseline() -> None:
    calibration = Calibration(unrelated=0.2, span=0.8, threshold=0.4, center=(1.0,), center_weight=0.5)
    params = ScoringParams(parse_query("x"), "hybrid", 0.0, calibration=calibration)
    near, ordinary = make_candidate("near", 0.7)._replace(center_cosine=0.4), make_candidate("ordinary", 0.65)
    assert names(rank_all([near, ordinary], params)) == ["ordinary", "near"]
    assert names(rank_all([near, ordinary], make_params("hybrid"))) == ["near", "ordinary"]


TWO_SUBQUERIES = Query("find it and mail it", "find it and mail it", ("find it", "mail it"))


def test_a_subquery_lifts_its_best_tool_up_to_it_and_others_halfway() -> None:
    hits = rank_all(
        [
            make_candidate("mail", 0.5, subqueries=((0.3, 0.0), (0.8, 0.0))),
            make_candidate("letter", 0.5, subqueries=((0.3, 0.0), (0.7, 0.0))),
        ],
        make_params("semantic", query=TWO_SUBQUERIES),
    )
    assert [(hit.tool_name, round(hit.score, 3)) for hit in hits] == [("mail", 0.8), ("letter", 0.6)]
    assert hits[0].similarity == 0.5


def test_a_subquery_never_lowers_a_score() -> None:
    hits = rank_all(
        [make_candidate("both", 0.8, subqueries=((0.3, 0.0), (0.2, 0.0)))],
        make_params("semantic", query=TWO_SUBQUERIES),
    )
    assert hits[0].score == pytest.approx(0.8)


def test_each_subquery_keeps_its_best_tool_within_the_limit() -> None:
    finders = [
        make_candidate(f"find_{n}", 0.9 - n / 100, subqueries=((0.9 - n / 100, 0.0), (0.1, 0.0))) for n in range(9)
    ]
    mail = make_candidate("mail", 0.3, subqueries=((0.1, 0.0), (0.5, 0.0)))
    assert names(rank_all([*finders, mail], make_params("semantic", query=TWO_SUBQUERIES), limit=3)) == [
        "find_0",
        "find_1",
        "mail",
    ]
    assert names(rank_all([*finders, mail], make_params("semantic", query=TWO_SUBQUERIES), limit=1)) == ["find_0"]


def test_a_subquery_whose_best_tool_is_below_the_threshold_keeps_none() -> None:
    finders = [make_candidate(f"find_{n}", 0.9, subqueries=((0.9, 0.0), (0.1, 0.0))) for n in range(4)]
    mail = make_candidate("mail", 0.3, subqueries=((0.1, 0.0), (0.5, 0.0)))
    assert "mail" not in names(rank_all([*finders, mail], make_params("semantic", 0.6, TWO_SUBQUERIES), limit=3))


def test_the_requested_action_decides_between_equally_similar_tools() -> None:
    removing = make_candidate("purge", 0.701)._replace(action=Action.REMOVE)
    showing = make_candidate("shelf", 0.7)._replace(action=Action.LOOK)
    other = make_candidate("other", 0.7005)
    assert names(rank_all([removing, showing, other], make_params("hybrid", query="show the books"))) == [
        "shelf",
        "other",
        "purge",
    ]
    assert names(rank_all([removing, showing, other], make_params("hybrid", query="the books"))) == [
        "purge",
        "other",
        "shelf",
    ]


def test_the_requested_action_changes_a_score_by_its_boost_only() -> None:
    removing, showing = make_candidate("purge", 0.75)._replace(action=Action.REMOVE), make_candidate("shelf", 0.7)
    [first, second] = rank_all(
        [removing, showing._replace(action=Action.LOOK)], make_params("hybrid", query="show the books")
    )
    assert names([first, second]) == ["purge", "shelf"]
    assert first.score - second.score == pytest.approx(0.05 / CALIBRATION.span - 2 * ACTION_BOOST)


@pytest.mark.parametrize("strategy", ["semantic", "bm25"])
def test_a_strategy_with_one_kind_of_evidence_ignores_the_action(strategy: Strategy) -> None:
    tools = [make_candidate("purge", 0.7, 5.0), make_candidate("shelf", 0.7, 5.0)._replace(action=Action.LOOK)]
    first, second = rank_all(tools, make_params(strategy, query="show the books"))
    assert first.score == second.score


@pytest.mark.parametrize(
    ("message", "name", "named"),
    [
        ("use search_issues now", "search_issues", True),
        ("use Search_Issues now", "search_issues", True),
        ("use search_issues_all now", "search_issues", False),
        ("my-search_issues", "search_issues", False),
        ("call getUserData please", "getUserData", True),
        ("search the web", "search", False),
        ("search", "search", True),
        ("use `search` on it", "search", True),
        ('use "search" on it', "search", True),
        ("research", "search", False),
        ("run a.b.c", "a.b.c", True),
        ("the weather forecast for Oslo", "Weather forecast", False),
        ('run "Weather forecast" for Oslo', "Weather forecast", True),
        ("anything", "missing", False),
    ],
)
def test_whether_a_message_names_a_tool(message: str, name: str, named: bool) -> None:
    assert is_named(message.lower(), name) is named


PRIORS = st.one_of(st.floats(0, MAX_PRIOR), st.floats(0, 1, width=16))
"""Includes values beyond the maximum."""
EVIDENCE = st.tuples(st.floats(-1, 1) | st.none(), st.floats(0, 30), PRIORS)


@given(st.lists(EVIDENCE, max_size=8), st.sampled_from(["hybrid", "semantic", "bm25"]), st.sampled_from([0.0, 0.4]))
def test_past_use_never_outweighs_a_difference_above_its_maximum(
    evidence: list[tuple[float | None, float, float]], strategy: Strategy, threshold: float
) -> None:
    unused = [make_candidate(f"t_{n}", cosine, bm25) for n, (cosine, bm25, _) in enumerate(evidence)]
    used = [each._replace(prior=prior) for each, (*_, prior) in zip(unused, evidence, strict=True)]
    params = make_params(strategy, threshold, "also run t_0")
    before, after = (rank_all(candidates, params, limit=10) for candidates in (unused, used))
    position = {hit.tool_id: n for n, hit in enumerate(after)}
    assert position.keys() == {hit.tool_id for hit in before}
    for better, worse in combinations(before, 2):
        if better.score - worse.score > MAX_PRIOR + 1e-9:
            assert position[better.tool_id] < position[worse.tool_id]
    assert [hit.source for hit in sorted(before, key=lambda hit: position[hit.tool_id])] == [
        hit.source for hit in after
    ]
    if before:
        assert before[0] == after[0] or "t_0" not in (before[0].tool_name, after[0].tool_name)


def test_past_use_decides_between_similar_scores() -> None:
    params = make_params("semantic")
    close, well = make_candidate("close", 0.71), make_candidate("well", 0.70)._replace(prior=MAX_PRIOR)
    assert names(rank_all([close, well], params)) == ["well", "close"]
    clear = make_candidate("clear", 0.73)
    assert names(rank_all([clear, well], params)) == ["clear", "well"]


def test_past_use_lifts_no_tool_over_the_threshold() -> None:
    params = make_params("semantic", 0.71)
    below, above = make_candidate("below", 0.70)._replace(prior=MAX_PRIOR), make_candidate("above", 0.72)
    assert names(rank_all([below, above], params)) == ["above"]


def test_no_candidates_give_no_hits() -> None:
    assert rank_all([], make_params("hybrid", 0.5)) == []

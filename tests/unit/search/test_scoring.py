"""Ranking is pure: tables of candidates in, an order out."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embeddings.calibration import Calibration
from app.search.intents import Action
from app.search.query import Query, read_query
from app.search.scoring import (
    ACTION_BOOST,
    CALLED_BOOST,
    Candidate,
    Hit,
    ScoringParams,
    Strategy,
    is_named,
    make_weights,
    rank,
    should_abstain,
)
from app.usage.priors import MAX_PRIOR

MOST_BM25 = 10.0
CALIBRATION = Calibration(unrelated=0.2, span=0.8, threshold=0.4)


def candidate(
    name: str,
    similarity: float | None = 0.5,
    bm25: float = 0.0,
    *,
    server: str = "server",
    tags: tuple[str, ...] = (),
    aims: tuple[tuple[float, float], ...] = (),
) -> Candidate:
    similarities, bm25s = [similarity, *(each for each, _ in aims)], [bm25, *(each for _, each in aims)]
    return Candidate(f"id-{server}-{name}", server, name, tags, similarities, bm25s)


def asked(strategy: Strategy, threshold: float | None = 0.0, query: str | Query = "x", **more: Any) -> ScoringParams:
    read = read_query(query) if isinstance(query, str) else query
    return ScoringParams(read, strategy, threshold, calibration=CALIBRATION, **more)


def ranked(candidates: list[Candidate], question: ScoringParams, limit: int = 5) -> list[Hit]:
    return rank(candidates, question, make_weights(question, [MOST_BM25] * len(question.query.texts)), limit)


def names(hits: list[Hit]) -> list[str]:
    return [hit.tool_name for hit in hits]


def test_meaning_and_words_add_up() -> None:
    found = ranked(
        [candidate("both", 0.7, 9.0), candidate("meaning", 0.75), candidate("words", 0.3, 9.0)],
        asked("hybrid", 0.4),
    )
    assert [(hit.tool_name, round(hit.score, 4), hit.source) for hit in found] == [
        ("both", 0.625 + 0.099, "semantic"),
        ("meaning", 0.6875, "semantic"),
        ("words", 0.125 + 0.099, "lexical"),
    ]


def test_a_score_means_the_same_whoever_else_is_there() -> None:
    alone = ranked([candidate("a", 0.6, 3.0)], asked("hybrid"))
    among = ranked([candidate("a", 0.6, 3.0), candidate("b", 0.9, 9.0), candidate("c", 0.1)], asked("hybrid"))
    assert alone[0] in among


def test_the_threshold_applies_to_the_plain_cosine() -> None:
    candidates = [candidate("above", 0.61), candidate("below", 0.59, bm25=1.0)]
    assert names(ranked(candidates, asked("hybrid", 0.6))) == ["above"]
    assert len(ranked(candidates, asked("hybrid", 0.0))) == 2


def test_without_a_threshold_the_models_own_applies() -> None:
    candidates = [candidate("above", 0.41), candidate("below", 0.39)]
    assert names(ranked(candidates, asked("hybrid", None))) == ["above"]


def test_strong_words_pass_below_the_threshold_and_weak_ones_do_not() -> None:
    strong, weak = candidate("strong", 0.1, 5.0), candidate("weak", 0.1, 4.9)
    assert names(ranked([strong, weak], asked("hybrid", 0.6))) == ["strong"]
    assert ranked([strong, weak], asked("semantic", 0.6)) == []


def test_by_words_alone_whatever_matches_passes_and_scores_its_share() -> None:
    candidates = [candidate("a", None, 1.0), candidate("b", None, 2.0), candidate("c", None)]
    found = ranked(candidates, asked("bm25", 0.9))
    assert [(hit.tool_name, hit.score) for hit in found] == [("b", 0.2), ("a", 0.1)]


def test_a_tool_without_a_vector_is_still_found_by_its_words() -> None:
    candidates = [candidate("pending", None, 6.0), candidate("embedded", 0.7)]
    assert set(names(ranked(candidates, asked("hybrid", 0.5)))) == {"pending", "embedded"}


def test_each_matching_tag_adds_a_fifth_and_the_score_is_clamped() -> None:
    found = ranked(
        [candidate("none", 0.7), candidate("one", 0.55, tags=("a",)), candidate("three", 0.6, tags=("a", "b", "c"))],
        asked("semantic", tags=("a", "b", "c")),
    )
    assert [(hit.tool_name, round(hit.score, 3), list(hit.matched_tags)) for hit in found] == [
        ("three", 1.0, ["a", "b", "c"]),
        ("one", 0.75, ["a"]),
        ("none", 0.7, []),
    ]


def test_clamped_scores_are_told_apart_by_what_they_were_before() -> None:
    tags = ("a", "b")
    question = asked("semantic", tags=tags)
    found = ranked([candidate("a_lower", 0.8, tags=tags), candidate("z_higher", 0.9, tags=tags)], question)
    assert names(found) == ["z_higher", "a_lower"]


def test_ties_go_by_server_then_by_tool() -> None:
    found = ranked(
        [candidate("b", server="two"), candidate("z", server="one"), candidate("a", server="two")], asked("semantic")
    )
    assert names(found) == ["z", "a", "b"]


def test_a_tool_that_the_message_names_always_wins() -> None:
    found = ranked(
        [candidate("better", 0.9, 5.0), candidate("search_issues", 0.1)],
        asked("hybrid", 0.5, "run search_issues for me"),
    )
    assert names(found)[0] == "search_issues"
    assert found[0].score == 1.0


def test_a_tool_that_was_called_lately_gains_a_little() -> None:
    query = Query("and Friday?", "and Friday?", called=frozenset({"get_forecast"}))
    close, far = candidate("a_other", 0.6 + CALLED_BOOST / 2), candidate("far", 0.6 + 2 * CALLED_BOOST)
    called = candidate("get_forecast", 0.6)
    assert names(ranked([close, far, called], asked("semantic", query=query))) == ["far", "get_forecast", "a_other"]
    assert names(ranked([close, called], asked("semantic"))) == ["a_other", "get_forecast"]


TWO_AIMS = Query("find it and mail it", "find it and mail it", ("find it", "mail it"))


def test_an_aim_lifts_a_tool_half_of_the_way() -> None:
    found = ranked([candidate("mail", 0.5, aims=((0.3, 0.0), (0.8, 0.0)))], asked("semantic", query=TWO_AIMS))
    assert found[0].score == pytest.approx(0.65)
    assert found[0].similarity == 0.5


def test_an_aim_never_pulls_a_tool_down() -> None:
    found = ranked([candidate("both", 0.8, aims=((0.3, 0.0), (0.2, 0.0)))], asked("semantic", query=TWO_AIMS))
    assert found[0].score == pytest.approx(0.8)


def test_each_aim_keeps_its_best_tool_within_the_limit() -> None:
    finders = [candidate(f"find_{n}", 0.9 - n / 100, aims=((0.9 - n / 100, 0.0), (0.1, 0.0))) for n in range(9)]
    mail = candidate("mail", 0.3, aims=((0.1, 0.0), (0.5, 0.0)))
    assert names(ranked([*finders, mail], asked("semantic", query=TWO_AIMS), limit=3)) == ["find_0", "find_1", "mail"]
    assert names(ranked([*finders, mail], asked("semantic", query=TWO_AIMS), limit=1)) == ["find_0"]


def test_an_aim_whose_best_tool_is_below_the_threshold_keeps_none() -> None:
    finders = [candidate(f"find_{n}", 0.9, aims=((0.9, 0.0), (0.1, 0.0))) for n in range(4)]
    mail = candidate("mail", 0.3, aims=((0.1, 0.0), (0.5, 0.0)))
    assert "mail" not in names(ranked([*finders, mail], asked("semantic", 0.6, TWO_AIMS), limit=3))


def test_of_tools_that_fit_alike_the_one_that_does_what_is_wanted_comes_first() -> None:
    removing = candidate("purge", 0.701)._replace(action=Action.REMOVE)
    showing = candidate("shelf", 0.7)._replace(action=Action.LOOK)
    other = candidate("other", 0.7005)
    assert names(ranked([removing, showing, other], asked("hybrid", query="show the books"))) == [
        "shelf",
        "other",
        "purge",
    ]
    assert names(ranked([removing, showing, other], asked("hybrid", query="the books"))) == ["purge", "other", "shelf"]


def test_what_is_wanted_moves_no_tool_further_than_said() -> None:
    removing, showing = candidate("purge", 0.75)._replace(action=Action.REMOVE), candidate("shelf", 0.7)
    [first, second] = ranked([removing, showing._replace(action=Action.LOOK)], asked("hybrid", query="show the books"))
    assert names([first, second]) == ["purge", "shelf"]
    assert first.score - second.score == pytest.approx(0.05 / CALIBRATION.span - 2 * ACTION_BOOST)


@pytest.mark.parametrize("strategy", ["semantic", "bm25"])
def test_a_search_by_one_kind_of_evidence_looks_at_nothing_else(strategy: Strategy) -> None:
    tools = [candidate("purge", 0.7, 5.0), candidate("shelf", 0.7, 5.0)._replace(action=Action.LOOK)]
    first, second = ranked(tools, asked(strategy, query="show the books"))
    assert first.score == second.score


JUDGING = Calibration(0.2, 0.8, 0.3, direction=(1.0, 0.0), offset=0.0, weight=0.5, cut=0.5)
LIKE_A_TOOL, LIKE_TALK = np.array([1.0, 0.0], np.float32), np.array([-1.0, 0.0], np.float32)


def fits(similarity: float, vector: Any, *, threshold: float | None = None, message: str = "x") -> bool:
    question = ScoringParams(read_query(message), "hybrid", threshold, calibration=JUDGING)
    return not should_abstain([candidate("my_tool", similarity)], question, vector)


def test_whether_anything_fits_is_judged_by_the_best_tool_and_by_the_message() -> None:
    assert fits(0.3, LIKE_A_TOOL)
    assert not fits(0.3, LIKE_TALK)
    assert not fits(0.9, LIKE_TALK)
    assert fits(1.0, LIKE_TALK)


def test_a_threshold_of_the_request_or_a_named_tool_leaves_nothing_to_judge() -> None:
    assert fits(0.3, LIKE_TALK, threshold=0.0)
    assert fits(0.3, LIKE_TALK, message="call my_tool")


def test_a_model_that_was_never_calibrated_judges_by_its_threshold_alone() -> None:
    question = asked("hybrid", None)
    assert not should_abstain([candidate("a", 0.4)], question, LIKE_TALK)


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
def test_what_counts_as_naming_a_tool(message: str, name: str, named: bool) -> None:
    assert is_named(message.lower(), name) is named


PRIORS = st.one_of(st.floats(0, MAX_PRIOR), st.floats(0, 1, width=16))
"""Also more than there should ever be."""
SOME = st.tuples(st.floats(-1, 1) | st.none(), st.floats(0, 30), PRIORS)


@given(st.lists(SOME, max_size=8), st.sampled_from(["hybrid", "semantic", "bm25"]), st.sampled_from([0.0, 0.4]))
def test_past_use_lifts_no_tool_over_one_that_is_better_by_more_than_the_most_it_adds(
    some: list[tuple[float | None, float, float]], strategy: Strategy, threshold: float
) -> None:
    unused = [candidate(f"t_{n}", cosine, bm25) for n, (cosine, bm25, _) in enumerate(some)]
    used = [each._replace(prior=prior) for each, (*_, prior) in zip(unused, some, strict=True)]
    question = asked(strategy, threshold, "also run t_0")
    before, after = (ranked(candidates, question, limit=10) for candidates in (unused, used))
    place = {hit.tool_id: n for n, hit in enumerate(after)}
    assert place.keys() == {hit.tool_id for hit in before}
    for better, worse in combinations(before, 2):
        if better.score - worse.score > MAX_PRIOR + 1e-9:
            assert place[better.tool_id] < place[worse.tool_id]
    assert [hit.source for hit in sorted(before, key=lambda hit: place[hit.tool_id])] == [hit.source for hit in after]
    if before:
        assert before[0] == after[0] or "t_0" not in (before[0].tool_name, after[0].tool_name)


def test_of_two_that_fit_alike_the_one_that_went_well_comes_first() -> None:
    question = asked("semantic")
    close, well = candidate("close", 0.71), candidate("well", 0.70)._replace(prior=MAX_PRIOR)
    assert names(ranked([close, well], question)) == ["well", "close"]
    clear = candidate("clear", 0.73)
    assert names(ranked([clear, well], question)) == ["clear", "well"]


def test_past_use_brings_nothing_over_the_threshold() -> None:
    question = asked("semantic", 0.71)
    below, above = candidate("below", 0.70)._replace(prior=MAX_PRIOR), candidate("above", 0.72)
    assert names(ranked([below, above], question)) == ["above"]


def test_nothing_found_is_an_empty_list() -> None:
    assert ranked([], asked("hybrid", 0.5)) == []

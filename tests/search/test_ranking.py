"""Ranking is pure: tables of candidates in, an order out."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.ranking import Candidate, Hit, Question, Strategy, is_named, rank
from app.usage.prior import PRIOR_MOST


def candidate(
    name: str,
    similarity: float | None = 0.5,
    bm25: float = 0.0,
    *,
    share: float = 0.0,
    server: str = "server",
    tags: tuple[str, ...] = (),
) -> Candidate:
    return Candidate(f"id-{server}-{name}", server, name, tags, similarity, bm25, share)


def names(hits: list[Hit]) -> list[str]:
    return [hit.tool_name for hit in hits]


def test_meaning_and_words_are_fused_by_their_scores() -> None:
    found = rank(
        [candidate("both", 0.7, 4.0), candidate("meaning", 0.8), candidate("words", 0.3, 5.0, share=0.9)],
        Question("x", "hybrid", threshold=0.4),
        limit=3,
    )
    assert names(found) == ["both", "meaning", "words"]
    assert [hit.source for hit in found] == ["semantic", "semantic", "lexical"]


def test_the_threshold_applies_to_the_plain_cosine() -> None:
    candidates = [candidate("above", 0.61), candidate("below", 0.59, bm25=1.0, share=0.1)]
    assert names(rank(candidates, Question("x", "hybrid", threshold=0.6), limit=5)) == ["above"]
    assert len(rank(candidates, Question("x", "hybrid", threshold=0.0), limit=5)) == 2


def test_strong_words_pass_below_the_threshold_and_weak_ones_do_not() -> None:
    strong, weak = candidate("strong", 0.1, 3.0, share=0.5), candidate("weak", 0.1, 3.0, share=0.49)
    assert names(rank([strong, weak], Question("x", "hybrid", threshold=0.6), limit=5)) == ["strong"]
    assert rank([strong, weak], Question("x", "semantic", threshold=0.6), limit=5) == []


def test_by_words_alone_whatever_matches_passes() -> None:
    candidates = [candidate("a", None, 1.0), candidate("b", None, 2.0), candidate("c", None)]
    assert names(rank(candidates, Question("x", "bm25", threshold=0.9), limit=5)) == ["b", "a"]


def test_a_tool_without_a_vector_is_still_found_by_its_words() -> None:
    candidates = [candidate("pending", None, 3.0, share=0.8), candidate("embedded", 0.7)]
    assert set(names(rank(candidates, Question("x", "hybrid", threshold=0.5), limit=5))) == {"pending", "embedded"}


def test_each_matching_tag_adds_a_fifth_and_the_score_is_clamped() -> None:
    question = Question("x", "semantic", threshold=0.0, tags=("a", "b", "c"))
    found = rank(
        [candidate("none", 0.7), candidate("one", 0.55, tags=("a",)), candidate("three", 0.6, tags=("a", "b", "c"))],
        question,
        limit=3,
    )
    assert [(hit.tool_name, round(hit.score, 3), list(hit.matched_tags)) for hit in found] == [
        ("three", 1.0, ["a", "b", "c"]),
        ("one", 0.75, ["a"]),
        ("none", 0.7, []),
    ]


def test_clamped_scores_are_told_apart_by_what_they_were_before() -> None:
    question = Question("x", "semantic", threshold=0.0, tags=("a", "b"))
    tags = ("a", "b")
    found = rank([candidate("a_lower", 0.8, tags=tags), candidate("z_higher", 0.9, tags=tags)], question, limit=2)
    assert names(found) == ["z_higher", "a_lower"]


def test_ties_go_by_server_then_by_tool() -> None:
    found = rank(
        [candidate("b", server="two"), candidate("z", server="one"), candidate("a", server="two")],
        Question("x", "semantic", threshold=0.0),
        limit=3,
    )
    assert names(found) == ["z", "a", "b"]


def test_a_tool_that_the_message_names_always_wins() -> None:
    found = rank(
        [candidate("better", 0.9, 5.0), candidate("search_issues", 0.1)],
        Question("run search_issues for me", "hybrid", threshold=0.5),
        limit=2,
    )
    assert names(found)[0] == "search_issues"
    assert found[0].score == 1.0


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
        ("anything", "missing", False),
    ],
)
def test_what_counts_as_naming_a_tool(message: str, name: str, named: bool) -> None:
    assert is_named(message.lower(), name) is named


PRIORS = st.one_of(st.floats(0, PRIOR_MOST), st.floats(0, 1, width=16))
"""Also more than there should ever be."""
SOME = st.tuples(st.floats(-1, 1) | st.none(), st.floats(0, 30), st.floats(0, 1), PRIORS)


@given(st.lists(SOME, max_size=8), st.sampled_from(["hybrid", "semantic", "bm25"]), st.sampled_from([0.0, 0.4]))
def test_past_use_lifts_no_tool_over_one_that_is_better_by_more_than_the_most_it_adds(
    some: list[tuple[float | None, float, float, float]], strategy: Strategy, threshold: float
) -> None:
    unused = [candidate(f"t_{n}", cosine, bm25, share=share) for n, (cosine, bm25, share, _) in enumerate(some)]
    used = [each._replace(prior=prior) for each, (*_, prior) in zip(unused, some, strict=True)]
    question = Question("also run t_0", strategy, threshold)
    before, after = (rank(candidates, question, limit=10) for candidates in (unused, used))
    place = {hit.tool_id: n for n, hit in enumerate(after)}
    assert place.keys() == {hit.tool_id for hit in before}
    for better, worse in combinations(before, 2):
        if better.score - worse.score > PRIOR_MOST + 1e-9:
            assert place[better.tool_id] < place[worse.tool_id]
    assert [hit.source for hit in sorted(before, key=lambda hit: place[hit.tool_id])] == [hit.source for hit in after]
    if before:
        assert before[0] == after[0] or "t_0" not in (before[0].tool_name, after[0].tool_name)


def test_of_two_that_fit_alike_the_one_that_went_well_comes_first() -> None:
    question = Question("x", "semantic", threshold=0.0)
    close, well = candidate("close", 0.74), candidate("well", 0.70)._replace(prior=PRIOR_MOST)
    assert names(rank([close, well], question, limit=2)) == ["well", "close"]
    clear = candidate("clear", 0.76)
    assert names(rank([clear, well], question, limit=2)) == ["clear", "well"]


def test_past_use_brings_nothing_over_the_threshold() -> None:
    question = Question("x", "semantic", threshold=0.71)
    below, above = candidate("below", 0.70)._replace(prior=PRIOR_MOST), candidate("above", 0.72)
    assert names(rank([below, above], question, limit=2)) == ["above"]


def test_nothing_found_is_an_empty_list() -> None:
    assert rank([], Question("x", "hybrid", threshold=0.5), limit=5) == []

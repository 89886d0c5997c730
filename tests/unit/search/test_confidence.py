"""The confidence in an answer, and how many tools it has."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embeddings.base import Vector
from app.embeddings.calibration import UNCALIBRATED, Calibration
from app.search.confidence import MAX_LOW, SHARED_AMONG
from app.search.query import Query, parse_query
from app.search.ranking import Ranking, rank
from app.search.scoring import Candidate, ScoringParams, make_weights

# Evidence 0.5 is a chance of one half for a neutral message; a need of 1 or -1 moves it by 4 logits.
CALIBRATION = Calibration(
    unrelated=0.0,
    span=1.0,
    threshold=0.01,
    direction=(1.0, 0.0),
    evidence_weight=10.0,
    need_weight=4.0,
    bias=-5.0,
    min_low=0.1,
    min_high=0.5,
    temperature=0.05,
)
NEEDS_TOOL, NEUTRAL, NEEDS_NONE = (np.array(vector, np.float32) for vector in ([1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]))


def make_candidates(*cosines: float, texts: int = 1) -> list[Candidate]:
    return [
        Candidate(f"id-{n:02}", "server", f"my_tool_{n:02}", (), [cosine] * texts, [0.0] * texts)
        for n, cosine in enumerate(cosines)
    ]


def answer(
    *cosines: float,
    vector: Vector = NEUTRAL,
    query: Query | str = "x",
    limit: int = 8,
    calibration: Calibration = CALIBRATION,
    threshold: float | None = None,
    fill: bool = False,
) -> Ranking:
    parsed = parse_query(query) if isinstance(query, str) else query
    params = ScoringParams(parsed, "hybrid", threshold, (), calibration, fill)
    candidates = make_candidates(*cosines, texts=len(parsed.texts))
    weights = make_weights(params, [1.0] * len(parsed.texts), 1.0)
    return rank(candidates, params, weights, [vector] * len(parsed.texts), limit)


def test_confidence_depends_on_the_best_tool_and_on_the_message() -> None:
    assert answer(0.5, vector=NEEDS_TOOL).judgement.confidence == "high"
    assert answer(0.5, vector=NEEDS_NONE).judgement.confidence == "none"
    assert answer(0.4, vector=NEUTRAL).judgement.confidence == "low"
    assert answer(0.95, vector=NEEDS_NONE).judgement.confidence == "high"


def test_an_answer_without_confidence_is_empty_and_one_of_low_confidence_has_the_best_few() -> None:
    level = [0.4] * 8
    assert answer(*level, vector=NEEDS_NONE).size == 0
    assert answer(*level, vector=NEUTRAL).size == MAX_LOW
    assert answer(*level, vector=NEEDS_TOOL).size == 8


def test_an_answer_ends_where_a_further_tool_is_unlikely() -> None:
    assert answer(0.9, 0.4, 0.4, 0.4).size == 1
    assert answer(0.9, 0.89, 0.88, 0.4, 0.4).size == 3
    assert answer(0.9, 0.89, 0.88, 0.87, limit=2).size == 2


def test_fill_and_a_threshold_of_the_request_switch_the_cut_off() -> None:
    assert answer(0.9, 0.4, 0.4, fill=True).size == 3
    assert answer(0.9, 0.4, 0.4, threshold=0.0).size == 3
    assert answer(0.4, 0.4, vector=NEEDS_NONE, threshold=0.0).judgement.confidence == "low"
    assert answer(0.4, 0.4, vector=NEEDS_NONE, fill=True).size == 0


def test_a_message_that_names_a_tool_gets_it() -> None:
    found = answer(0.9, 0.1, query="call my_tool_01", vector=NEEDS_NONE)
    assert found.judgement.confidence == "high"
    assert found.hits[0].tool_name == "my_tool_01"
    assert found.size >= 1


def test_thanks_get_nothing_unless_the_request_has_a_threshold() -> None:
    assert answer(0.9, query="thanks!", vector=NEEDS_TOOL).judgement.confidence == "none"
    assert answer(0.9, query="thanks!", vector=NEEDS_TOOL, threshold=0.0).size == 1


def test_a_message_that_is_not_english_is_never_judged_to_need_none() -> None:
    query = Query("danke der Nachfrage", "danke der Nachfrage", language="de")
    found = answer(*[0.2] * 5, query=query, vector=NEEDS_NONE)
    assert (found.judgement.confidence, found.size) == ("low", MAX_LOW)


def test_a_recently_called_tool_passes() -> None:
    query = Query("and there?", "and there?", called=frozenset({"my_tool_00"}))
    assert answer(0.1, 0.1, query=query, vector=NEEDS_NONE).judgement.confidence == "low"
    assert answer(0.1, 0.1, vector=NEEDS_NONE).judgement.confidence == "none"


def test_an_accepted_offer_needs_what_was_offered() -> None:
    query = Query("yes please", "yes please", context="Shall I send it?")
    params = [replace(query, follows_offer=offer) for offer in (True, False)]
    weights = make_weights(ScoringParams(query, "hybrid", None, (), CALIBRATION), [1.0, 1.0], 1.0)
    levels = [
        rank(
            make_candidates(0.4, texts=2),
            ScoringParams(each, "hybrid", None, (), CALIBRATION),
            weights,
            [NEEDS_NONE, NEEDS_TOOL],
            8,
        ).judgement.confidence
        for each in params
    ]
    assert levels == ["high", "low"]


def test_an_uncalibrated_model_judges_by_its_threshold_alone() -> None:
    found = answer(0.9, 0.31, 0.29, vector=NEEDS_NONE, calibration=UNCALIBRATED)
    assert (found.judgement.confidence, found.size) == ("high", 2)
    assert answer(0.1, calibration=UNCALIBRATED).judgement.confidence == "none"


def test_a_search_by_words_is_confident_if_most_words_match() -> None:
    params = ScoringParams(parse_query("x"), "bm25", None, (), CALIBRATION)
    weights = make_weights(params, [10.0], 10.0)
    for bm25, confidence in ((6.0, "high"), (4.0, "low"), (0.0, "none")):
        candidate = Candidate("id", "server", "tool", (), [None], [bm25])
        assert rank([candidate], params, weights, None, 8).judgement.confidence == confidence


def test_each_subquery_that_needs_a_tool_keeps_its_best() -> None:
    query = Query("find it and mail it", "find it and mail it", ("find it", "mail it"))
    finders = [Candidate(f"f{n}", "s", f"find_{n}", (), [0.9, 0.9, 0.1], [0.0] * 3) for n in range(3)]
    mail = Candidate("m", "s", "mail", (), [0.5, 0.1, 0.6], [0.0] * 3)
    params = ScoringParams(query, "hybrid", None, (), CALIBRATION)
    weights = make_weights(params, [1.0] * 3, 1.0)
    for needs, expected in ((NEEDS_TOOL, True), (NEEDS_NONE, False)):
        found = rank([*finders, mail], params, weights, [NEEDS_TOOL, NEEDS_TOOL, needs], 8)
        assert ("mail" in [hit.tool_name for hit in found.hits[: found.size]]) is expected


@given(st.lists(st.floats(0.02, 1), min_size=1, max_size=60), st.integers(1, 50), st.integers(1, 50))
def test_the_answer_is_a_prefix_of_the_ranking_whatever_the_limit(cosines: list[float], low: int, high: int) -> None:
    low, high = sorted((low, high))
    short, long = answer(*cosines, limit=low), answer(*cosines, limit=high)
    filled = answer(*cosines, limit=high, fill=True)
    assert list(short.hits[: short.size]) == list(long.hits)[: short.size]
    assert list(long.hits[: long.size]) == list(filled.hits)[: long.size]
    assert short.size == min(long.size, low)
    assert long.size <= SHARED_AMONG or high > SHARED_AMONG


def test_the_chance_grows_with_the_evidence_and_is_bounded() -> None:
    chances = [CALIBRATION.estimate_match(evidence, 0.0) for evidence in (-100.0, 0.0, 0.5, 1.0, 100.0)]
    assert chances == sorted(chances)
    assert chances[2] == pytest.approx(0.5)
    assert 0 <= chances[0] < chances[-1] <= 1


def test_a_shift_moves_all_chances() -> None:
    assert CALIBRATION.shift(1.0).estimate_match(0.5, 0.0) > 0.5
    assert CALIBRATION.shift(0.0) is CALIBRATION


def test_a_stored_calibration_of_another_version_is_read_without_its_unknown_fields() -> None:
    old = {"unrelated": 0.4, "span": 0.6, "threshold": 0.5, "direction": [1.0], "offset": 0, "weight": 1, "cut": 2}
    assert not Calibration.from_json(old).is_fitted
    assert Calibration.from_json(CALIBRATION.to_json()) == CALIBRATION

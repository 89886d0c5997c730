"""The results of messages: scored, summarized, written, read, and compared between versions."""

from pathlib import Path

import pytest

from bench.relevance.messages import (
    MessageResult,
    Scores,
    compare_results,
    read_results,
    score_answer,
    summarize_results,
    write_results,
)

FOUND, MISSED = Scores(1, 1, 1, 1), Scores(0, 0, 0, 0)
RESULTS = {
    "found": MessageResult(4, "high", FOUND, FOUND),
    "unsure": MessageResult(2, "low", Scores(0, 1, 0.5, 0.25), FOUND),
    "empty": MessageResult(0, "none", MISSED, FOUND),
    "toolless": MessageResult(3, "low", None, None),
}


def test_an_answer_is_scored_by_the_ranks_of_the_relevant_tools() -> None:
    ranked = [*"abcdefghij"]
    assert score_answer(ranked, {"a"}) == FOUND
    assert score_answer(ranked, {"h", "e"}).hit_at_8 == 1
    assert score_answer(ranked, {"h", "e"}).recall_at_5 == 0.5
    ninth = score_answer(ranked, {"i"})
    assert (ninth.hit_at_1, ninth.hit_at_8, ninth.recall_at_5) == (0, 0, 0)
    assert ninth.ndcg_at_10 > 0


def test_messages_that_need_none_are_summarized_by_themselves() -> None:
    quality = summarize_results(list(RESULTS.values()))
    assert (quality.needing, quality.not_needing) == (3, 1)
    assert quality.shipped is not None
    assert quality.shipped.hit_at_8 == pytest.approx(2 / 3)
    assert (quality.size, quality.empty, quality.low) == pytest.approx((2, 1 / 3, 1 / 3))
    assert (quality.toolless_size, quality.toolless_empty) == (3, 0)


def test_a_summary_over_no_messages_has_no_means() -> None:
    quality = summarize_results([RESULTS["found"]])
    assert (quality.toolless_size, quality.toolless_empty) == (None, None)
    assert summarize_results([]).shipped is None
    assert summarize_results([MessageResult(8, None, FOUND, FOUND)]).low is None


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_results(tmp_path / "messages.json", {"mine": RESULTS})
    assert read_results(tmp_path / "messages.json") == {"mine": RESULTS}
    assert read_results(tmp_path / "missing.json") == {}


def test_two_versions_are_compared_over_the_messages_of_both() -> None:
    before = {"empty": RESULTS["found"], "toolless": MessageResult(0, "none", None, None), "gone": RESULTS["found"]}
    change = compare_results(RESULTS, before)
    assert change is not None
    assert (change.before.needing, change.before.not_needing) == (1, 1)
    differences = {name: interval.difference for name, interval in change.intervals.items()}
    assert (differences["hit_at_8"], differences["empty"], differences["size"]) == (-1, 1, -4)
    assert (differences["ranking_ndcg_at_10"], differences["toolless_size"]) == (0, 3)


def test_versions_without_common_messages_are_not_compared() -> None:
    assert compare_results(RESULTS, {}) is None

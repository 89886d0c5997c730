"""The adaptive cut: what the outcomes of answers add, and that the shift follows them within its bound."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.usage.adaptation import MAX_SHIFT, MIN_OUTCOMES, CutEvidence, weigh_answer

MIN_HIGH = 0.5
RIGHT, WRONG = ("called", "succeeded"), ("irrelevant",)


def add_answers(answers: Iterable[tuple[float, tuple[str, ...]]]) -> CutEvidence:
    evidence = CutEvidence()
    for chance, outcomes in answers:
        evidence = evidence.update(CutEvidence(), weigh_answer(chance, MIN_HIGH, outcomes))
    return evidence


def test_without_evidence_nothing_moves() -> None:
    assert CutEvidence().shift == 0


def test_low_answers_that_were_right_raise_the_chance_once_there_are_enough() -> None:
    assert add_answers([(0.2, RIGHT)] * (MIN_OUTCOMES - 1)).shift == 0
    assert add_answers([(0.2, RIGHT)] * MIN_OUTCOMES).shift > 0.5


@pytest.mark.parametrize("chance", [0.2, 0.45, 0.9])
def test_answers_that_were_wrong_lower_the_chance(chance: float) -> None:
    assert -MAX_SHIFT <= add_answers([(chance, WRONG)] * MIN_OUTCOMES).shift < -0.2


def test_more_evidence_moves_further() -> None:
    shifts = [add_answers([(0.1, WRONG)] * count).shift for count in (10, 30, 100)]
    assert shifts == sorted(shifts, reverse=True)
    assert len(set(shifts)) == 3


@pytest.mark.parametrize("failed", [("called",), ("called", "failed"), ("called", "irrelevant")])
def test_a_tool_that_was_called_makes_the_answer_right(failed: tuple[str, ...]) -> None:
    assert weigh_answer(0.2, MIN_HIGH, failed) == weigh_answer(0.2, MIN_HIGH, RIGHT)


def test_confident_answers_that_were_right_do_not_raise_the_chance() -> None:
    assert add_answers([(0.9, RIGHT)] * 1_000).shift == 0
    evidence = add_answers([(0.9, RIGHT)] * 1_000 + [(0.2, RIGHT)] * 5 + [(0.2, WRONG)] * 20)
    assert evidence.outcomes == 25
    assert evidence.shift == add_answers([(0.2, RIGHT)] * 5 + [(0.2, WRONG)] * 20).shift


def test_confident_answers_lower_the_chance_only_if_more_of_them_are_wrong_than_predicted() -> None:
    assert add_answers([(0.9, RIGHT)] * 900 + [(0.9, WRONG)] * 99).shift == 0
    assert add_answers([(0.9, RIGHT)] * 900 + [(0.9, WRONG)] * 300).shift < -0.5


def test_right_chances_stay() -> None:
    generator = random.Random(7)
    chances = [generator.uniform(0.03, 0.5) for _ in range(5_000)]
    answers = [(chance, RIGHT if generator.random() < chance else WRONG) for chance in chances]
    assert abs(add_answers(answers).shift) < 0.1


def test_a_later_outcome_replaces_the_evidence_of_its_answer() -> None:
    wrong, right = weigh_answer(0.2, MIN_HIGH, WRONG), weigh_answer(0.2, MIN_HIGH, (*WRONG, *RIGHT))
    assert CutEvidence().update(CutEvidence(), wrong).update(wrong, right) == right


answers = st.lists(
    st.tuples(st.floats(0.001, 0.999), st.sampled_from([RIGHT, WRONG, ("called", "failed"), ()])), max_size=60
)


@given(answers, st.integers(1, 1_000))
def test_the_shift_never_exceeds_its_bound(made: list[tuple[float, tuple[str, ...]]], repeated: int) -> None:
    evidence = add_answers(made)
    many = CutEvidence(*(value * repeated for value in vars(evidence).values()))
    assert abs(evidence.shift) <= MAX_SHIFT
    assert abs(many.shift) <= MAX_SHIFT


def test_sums_of_another_calibration_are_not_read() -> None:
    evidence = add_answers([(0.2, RIGHT)] * 12)
    stored = evidence.to_json("this")
    assert CutEvidence.from_json(stored, "this") == evidence
    assert CutEvidence.from_json(stored, "other") == CutEvidence()
    assert CutEvidence.from_json({}, "this") == CutEvidence()
    assert CutEvidence.from_json({"basis": "this", "outcomes": 3}, "this") == CutEvidence()

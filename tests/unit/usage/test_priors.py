"""What past use adds to a score: bounded, earned, and gone again when a tool disappoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.usage.prior import ENOUGH, PRIOR_MOST, Outcomes, compute_priors

COUNTS = st.integers(0, 10**6)
OUTCOMES = st.builds(Outcomes, COUNTS, COUNTS, COUNTS)
USERS = st.dictionaries(st.text(max_size=3), OUTCOMES, max_size=6)


@given(USERS)
def test_every_prior_lies_within_its_bounds(outcomes: dict[str, Outcomes]) -> None:
    learnt = compute_priors(outcomes)
    assert learnt.keys() == outcomes.keys()
    assert all(0 <= prior <= PRIOR_MOST for prior in learnt.values())


def test_nothing_is_added_until_there_is_enough_to_go_by() -> None:
    assert compute_priors({"a": Outcomes(ENOUGH - 1)}) == {"a": 0}
    assert compute_priors({"a": Outcomes(ENOUGH - 1), "b": Outcomes(irrelevant=1)})["a"] > 0
    assert compute_priors({}) == {}


def test_a_tool_that_went_well_most_often_gains_nearly_all_and_others_by_their_logarithm() -> None:
    learnt = compute_priors({"daily": Outcomes(100), "weekly": Outcomes(10), "never": Outcomes()})
    assert 0.95 * PRIOR_MOST < learnt["daily"] < PRIOR_MOST
    assert 0.4 < learnt["weekly"] / learnt["daily"] < 0.5
    assert learnt["never"] == 0


@pytest.mark.parametrize("disappointed", [Outcomes(10, failed=10), Outcomes(10, irrelevant=10), Outcomes(5, 3, 3)])
def test_a_tool_that_disappoints_as_often_as_it_helps_gains_nothing(disappointed: Outcomes) -> None:
    assert compute_priors({"good": Outcomes(30), "other": disappointed})["other"] == 0
    assert compute_priors({"good": Outcomes(30), "other": Outcomes(disappointed.succeeded)})["other"] > 0


@given(OUTCOMES, st.integers(1, 100))
def test_failure_and_irrelevance_never_lift_and_success_never_lowers(tool: Outcomes, more: int) -> None:
    def prior(changed: Outcomes) -> float:
        return compute_priors({"tool": changed, "most": Outcomes(2 * 10**6)})["tool"]

    now = prior(tool)
    assert prior(Outcomes(tool.succeeded, tool.failed + more, tool.irrelevant)) <= now
    assert prior(Outcomes(tool.succeeded, tool.failed, tool.irrelevant + more)) <= now
    assert prior(Outcomes(tool.succeeded + more, tool.failed, tool.irrelevant)) >= now

"""The priors: bounded, gained by successes and lost by failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.usage.priors import MAX_PRIOR, MIN_OUTCOMES, Outcomes, compute_priors

COUNTS = st.integers(0, 10**6)
OUTCOMES = st.builds(Outcomes, COUNTS, COUNTS, COUNTS)
USERS = st.dictionaries(st.text(max_size=3), OUTCOMES, max_size=6)


@given(USERS)
def test_every_prior_is_within_its_bounds(outcomes: dict[str, Outcomes]) -> None:
    priors = compute_priors(outcomes)
    assert priors.keys() == outcomes.keys()
    assert all(0 <= prior <= MAX_PRIOR for prior in priors.values())


def test_priors_are_zero_until_there_are_enough_outcomes() -> None:
    assert compute_priors({"a": Outcomes(MIN_OUTCOMES - 1)}) == {"a": 0}
    assert compute_priors({"a": Outcomes(MIN_OUTCOMES - 1), "b": Outcomes(irrelevant=1)})["a"] > 0
    assert compute_priors({}) == {}


def test_the_most_successful_tool_gets_nearly_the_maximum_and_others_by_logarithm() -> None:
    priors = compute_priors({"daily": Outcomes(100), "weekly": Outcomes(10), "never": Outcomes()})
    assert 0.95 * MAX_PRIOR < priors["daily"] < MAX_PRIOR
    assert 0.4 < priors["weekly"] / priors["daily"] < 0.5
    assert priors["never"] == 0


@pytest.mark.parametrize("mixed", [Outcomes(10, failed=10), Outcomes(10, irrelevant=10), Outcomes(5, 3, 3)])
def test_a_tool_that_fails_as_often_as_it_succeeds_gains_nothing(mixed: Outcomes) -> None:
    assert compute_priors({"good": Outcomes(30), "other": mixed})["other"] == 0
    assert compute_priors({"good": Outcomes(30), "other": Outcomes(mixed.succeeded)})["other"] > 0


@given(OUTCOMES, st.integers(1, 100))
def test_failures_never_raise_and_successes_never_lower_a_prior(tool: Outcomes, more: int) -> None:
    def prior(changed: Outcomes) -> float:
        return compute_priors({"tool": changed, "most": Outcomes(2 * 10**6)})["tool"]

    now = prior(tool)
    assert prior(Outcomes(tool.succeeded, tool.failed + more, tool.irrelevant)) <= now
    assert prior(Outcomes(tool.succeeded, tool.failed, tool.irrelevant + more)) <= now
    assert prior(Outcomes(tool.succeeded + more, tool.failed, tool.irrelevant)) >= now

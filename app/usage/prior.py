"""What a user's experience with a tool adds to its score. Pure.

A tool's share of good outcomes, smoothed by one good and one bad outcome that nobody had, (s + 1) / (s + f + i + 2) for
s successes, f failures and i times irrelevant, is one half where nothing is known. Only what lies above that half
counts, stretched to 0..1, so that a tool which disappoints as often as it helps gains nothing; and it counts in
proportion to the tool's successes among those of the user's most successful tool, both by their logarithms, so that a
hundred uses weigh twice as much as ten, not ten times. The product, times `PRIOR_MOST`, is added to the score: whatever
a tool's past, it passes another only where the two are less than `PRIOR_MOST` apart. Before there are `ENOUGH` outcomes
of all the user's tools together, nothing is added at all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

PRIOR_MOST = 0.02
"""The most that use can add to a score: about what lies between neighbours in an answer."""

ENOUGH = 30


@dataclass(frozen=True)
class Outcomes:
    succeeded: int = 0
    failed: int = 0
    irrelevant: int = 0

    @property
    def total(self) -> int:
        return self.succeeded + self.failed + self.irrelevant

    @property
    def merit(self) -> float:
        """0 to 1; 0 where no more than half of what is known speaks for the tool."""
        return max(0.0, 2 * (self.succeeded + 1) / (self.total + 2) - 1)


def compute_priors(outcomes: Mapping[str, Outcomes]) -> dict[str, float]:
    """For each of a user's tools, 0 to `PRIOR_MOST`."""
    most = max((each.succeeded for each in outcomes.values()), default=0)
    if most == 0 or sum(each.total for each in outcomes.values()) < ENOUGH:
        return dict.fromkeys(outcomes, 0.0)
    return {tool: PRIOR_MOST * each.merit * _reach(each.succeeded, most) for tool, each in outcomes.items()}


def _reach(succeeded: int, most: int) -> float:
    return math.log1p(succeeded) / math.log1p(most)

"""The adaptive cut: how far a user's own outcomes move the chance that any tool fits a message. Pure functions.

An answer proves right if one of its tools is called, and wrong if one is reported as irrelevant and none is called.
The evidence of an answer with the chance p is `y - p`, with y = 1 if it was right and 0 if it was wrong. The sum of the
evidence, divided by the sum of p(1 - p) and of a prior, is one step of Newton's method towards the shift in logits at
which this user's chances would be right.

- Answers of low confidence count whether they were right or wrong.
- Confident answers that were wrong lower the chances, but only as far as they are more than their chances predict:
  those that were right count against them and never raise anything. Otherwise one mistake in a hundred good answers,
  reported faithfully, would lower the chances of everybody who has enough answers.

Chances are those without the shift: a sum of residuals of chances that follow the sum would never settle.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any, Self

MAX_SHIFT = 1.0
"""In logits. It multiplies the odds by e at most, so that a chance of 5 % stays between 2 % and 12.5 %: outcomes decide
borderline messages, and no series of outcomes can turn discovery off or make every answer a full one."""

PRIOR = 4.0
"""Users are expected to differ from the calibration by half a logit (standard deviation), whose inverse square is this.
The maximum shift is then two standard deviations."""

MIN_OUTCOMES = 10
"""Before this many outcomes nothing moves: a single client that is being tried out must not change the answers."""


@dataclass(frozen=True)
class CutEvidence:
    """Sums over answers with outcomes."""

    outcomes: int = 0
    """How many answers count."""
    low_residual: float = 0.0
    low_information: float = 0.0
    high_residual: float = 0.0
    high_information: float = 0.0

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], basis: str) -> Self:
        """Read the stored sums, or start new ones if they were stored for another calibration."""
        names = [field.name for field in fields(cls)]
        is_known = stored.get("basis") == basis and all(name in stored for name in names)
        return cls(*(stored[name] for name in names)) if is_known else cls()

    def to_json(self, basis: str) -> dict[str, Any]:
        """`basis` is the hash of the calibration whose chances these are."""
        return {"basis": basis, **asdict(self)}

    @property
    def shift(self) -> float:
        """By how many logits the user's chances are raised; 0 without enough evidence."""
        if self.outcomes < MIN_OUTCOMES:
            return 0.0
        residual, information = self.low_residual, self.low_information
        if self.high_residual < 0:
            residual, information = residual + self.high_residual, information + self.high_information
        return max(-MAX_SHIFT, min(residual / (information + PRIOR), MAX_SHIFT))

    def update(self, before: "CutEvidence", after: "CutEvidence") -> Self:
        """Return the sums with one answer's evidence `after` a report in place of its evidence `before` it."""
        values = zip(astuple(self), astuple(before), astuple(after), strict=True)
        return type(self)(*(total - old + new for total, old, new in values))


def weigh_answer(chance: float, min_high: float, outcomes: Collection[str]) -> CutEvidence:
    """Return the evidence of one answer with this chance, given all outcomes of its tools."""
    is_right = "called" in outcomes  # a tool that succeeded or failed was called
    if not is_right and "irrelevant" not in outcomes:
        return CutEvidence()
    residual, information = is_right - chance, chance * (1 - chance)
    if chance < min_high:
        return CutEvidence(1, low_residual=residual, low_information=information)
    return CutEvidence(int(not is_right), high_residual=residual, high_information=information)

"""What the examples of a tool add to its score. Pure.

    evidence = sum over the tool's examples of weight * closeness ** CLOSENESS_POWER
    closeness = (cosine of message and example - floor) / (1 - floor), 0 below the floor
    boost = MAX_BOOST * (1 - exp(-evidence / SCALE)) * share    for evidence above 0
    boost = -MAX_PENALTY * (1 - exp(evidence / SCALE))          for evidence below 0

`floor` is part of the model's calibration: nearly all pairs of unrelated messages are below it. `share` is the tool's
part of the evidence of all tools, so that two tools which were used for the same kind of message compete, and a tool
that was used once by mistake gives way to the one that is used again and again. The weights fade with time
(`usage/examples.py`). The boost is bounded, and a message that is like none of the examples is not affected.

A user has few examples. They are held in memory (`learned.py`), and the boosts are computed here for searches in
Postgres and in memory alike.

The constants were chosen by simulation: `make bench-relevance ARGS="--feedback …"`.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.embeddings.base import Vector, Vectors
from app.search.candidates import COSINE_ERROR, compute_exact_cosines, round_to_half
from app.usage.examples import LEARNED_RETENTION, decay_weights

MAX_BOOST = 0.45
"""Nine of ten right tools that are not first are less than half of this behind the first."""
MAX_PENALTY = 0.15
"""A third of the boost: that a tool was irrelevant once says less than that it was right."""
SCALE = 0.2
CLOSENESS_POWER = 3

MIN_BOOST_TO_PASS = 0.1
"""A tool whose examples add this much passes, however far its description is from the message."""
MIN_BOOST_TO_ANSWER = 0.2
"""A message for which the examples of a tool add this much is not answered with nothing."""

_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class Examples:
    """The examples of a user's tools for one model, in arrays with an element for each example."""

    tool_ids: Sequence[str]
    vectors: Vectors
    """Of unit length."""
    weights: npt.NDArray[np.float64]
    is_use: npt.NDArray[np.bool_]
    used_on: npt.NDArray[np.int64]
    """The day on which it was last strengthened, since 1970."""
    utc_offset_s: int
    """Of the database's time zone, in which days are counted."""

    def compute_boosts(
        self, vectors: Sequence[Vector], floor: float, *, learned: bool, now: float | None = None
    ) -> dict[str, float]:
        """Return the boost of each tool that has any, by id, for a message with these vectors.

        A message is as close to an example as the closest of its texts. `learned`: examples that were learnt from
        uses count.
        """
        texts = round_to_half(np.stack(vectors))
        near = np.flatnonzero((self.vectors @ texts.T).max(axis=1) > floor - COSINE_ERROR)
        if not len(near):
            return {}
        closeness = (compute_exact_cosines(self.vectors[near], texts).max(axis=1) - floor) / (1 - floor)
        weighted = self._weigh(near, time.time() if now is None else now, learned=learned)
        evidence: dict[str, float] = {}
        for row, close, weight in zip(near.tolist(), closeness.tolist(), weighted.tolist(), strict=True):
            if close > 0 and weight:
                tool_id = self.tool_ids[row]
                evidence[tool_id] = evidence.get(tool_id, 0.0) + weight * close**CLOSENESS_POWER
        total = sum(each for each in evidence.values() if each > 0)
        return {tool_id: _to_boost(each, total) for tool_id, each in evidence.items()}

    def _weigh(self, rows: npt.NDArray[np.int64], now: float, *, learned: bool) -> npt.NDArray[np.float64]:
        """Return the weights today, 0 for those that do not count."""
        today = int((now + self.utc_offset_s) // _SECONDS_PER_DAY)
        days, is_use = today - self.used_on[rows], self.is_use[rows]
        weights = decay_weights(self.weights[rows], is_use, days)
        # expired examples are deleted some time later
        ignored = is_use & (days > LEARNED_RETENTION.days) if learned else is_use
        return np.where(ignored, 0.0, weights)


def _to_boost(evidence: float, total: float) -> float:
    if evidence > 0:
        return MAX_BOOST * (1 - math.exp(-evidence / SCALE)) * evidence / total
    return -MAX_PENALTY * (1 - math.exp(evidence / SCALE))

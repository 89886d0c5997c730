"""Many answers in a few figures. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from app.evaluation.run import EvalAnswer
from app.evaluation.scores import Measures, mean


@dataclass(frozen=True)
class Summary:
    """Shares and means are None over no messages."""

    messages: int
    measures: Measures | None
    """Over the messages that need tools."""
    abstained: float | None
    """Of the messages that need no tool: the share that rightly got none."""
    lost: float | None
    """Of the messages that need tools: the share that was told that nothing fits."""
    median_tokens: float | None
    median_saved_percent: float | None
    median_ms: float | None
    degraded: int


def summarize(answers: Sequence[EvalAnswer]) -> Summary:
    needing = [answer for answer in answers if answer.measures is not None]
    return Summary(
        messages=len(answers),
        measures=mean([answer.measures for answer in needing if answer.measures is not None]),
        abstained=_share_without([answer for answer in answers if answer.measures is None]),
        lost=_share_without(needing),
        median_tokens=_median([answer.tokens for answer in needing]),
        median_saved_percent=_median([answer.saved_percent for answer in needing]),
        median_ms=_median([answer.duration_ms for answer in answers]),
        degraded=sum(answer.degraded_reason is not None for answer in answers),
    )


def _share_without(answers: Sequence[EvalAnswer]) -> float | None:
    return sum(answer.no_match for answer in answers) / len(answers) if answers else None


def _median(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None

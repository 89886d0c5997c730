"""Summarize many answers in a few numbers. Pure functions."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from app.evaluation.run import EvalAnswer
from app.evaluation.scores import Measures, mean_measures
from app.search.confidence import Confidence


@dataclass(frozen=True)
class Summary:
    """Shares, means and medians are None over no messages."""

    messages: int
    measures: Measures | None
    """The means over the messages that need tools."""
    abstained: float | None
    """The share of the messages that need no tool which got a no-match, as they should."""
    lost: float | None
    """The share of the messages that need tools which got a no-match."""
    low_confidence: float | None
    """The share of all messages whose answer has low confidence."""
    mean_tools: float | None
    """The mean number of tools in the answers to messages that need tools."""
    mean_unneeded_tools: float | None
    """The mean number of tools in the answers to messages that need no tool."""
    median_tokens: float | None
    median_saved_percent: float | None
    median_ms: float | None
    degraded: int


def summarize(answers: Sequence[EvalAnswer]) -> Summary:
    needing = [answer for answer in answers if answer.measures is not None]
    not_needing = [answer for answer in answers if answer.measures is None]
    return Summary(
        messages=len(answers),
        measures=mean_measures([answer.measures for answer in needing if answer.measures is not None]),
        abstained=_confidence_share(not_needing, "none"),
        lost=_confidence_share(needing, "none"),
        low_confidence=_confidence_share(answers, "low"),
        mean_tools=_mean_size(needing),
        mean_unneeded_tools=_mean_size(not_needing),
        median_tokens=_median([answer.tokens for answer in needing]),
        median_saved_percent=_median([answer.saved_percent for answer in needing]),
        median_ms=_median([answer.duration_ms for answer in answers]),
        degraded=sum(answer.degraded_reason is not None for answer in answers),
    )


def _confidence_share(answers: Sequence[EvalAnswer], confidence: Confidence) -> float | None:
    return sum(answer.confidence == confidence for answer in answers) / len(answers) if answers else None


def _mean_size(answers: Sequence[EvalAnswer]) -> float | None:
    return statistics.fmean(len(answer.ranked) for answer in answers) if answers else None


def _median(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None

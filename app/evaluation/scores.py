"""Score rankings, and compare two of them. Pure functions."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

_BOOTSTRAP_SAMPLES = 2_000
_SEED = 20_261_117


@dataclass(frozen=True)
class Measures:
    """The scores of one message, or the means over many. All are 0..1, and 1 is best."""

    hit_at_1: float
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    reciprocal_rank: float


@dataclass(frozen=True)
class Interval:
    """A mean difference with its 95 % confidence interval."""

    difference: float
    low: float
    high: float


def score_ranking(ranked: Sequence[str], relevant: Collection[str]) -> Measures:
    """`ranked` holds each tool once, best first; `relevant` holds at least one tool."""
    targets = set(relevant)
    ranks = [rank for rank, tool in enumerate(ranked, start=1) if tool in targets]
    return Measures(
        hit_at_1=1.0 if ranks[:1] == [1] else 0.0,
        recall_at_5=_recall(ranks, 5, len(targets)),
        recall_at_10=_recall(ranks, 10, len(targets)),
        ndcg_at_10=_discounted_gain(rank for rank in ranks if rank <= 10)
        / _discounted_gain(range(1, min(len(targets), 10) + 1)),
        reciprocal_rank=1 / ranks[0] if ranks else 0.0,
    )


def mean_measures(measures: Sequence[Measures]) -> Measures | None:
    """Return the means, or None over no messages."""
    if not measures:
        return None
    return Measures(*(math.fsum(column) / len(measures) for column in zip(*map(astuple, measures), strict=True)))


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Bootstrap the mean of `theirs - ours` over the same messages, in the same order, at least one.

    Messages are resampled together with both of their values, so that messages that are hard for both do not blur the
    difference.
    """
    differences = np.subtract(theirs, ours, dtype=np.float64)
    resampled = np.random.default_rng(_SEED).integers(len(differences), size=(_BOOTSTRAP_SAMPLES, len(differences)))
    low, high = np.percentile(differences[resampled].mean(axis=1), [2.5, 97.5])
    return Interval(float(differences.mean()), float(low), float(high))


def _recall(ranks: Sequence[int], depth: int, relevant: int) -> float:
    return sum(rank <= depth for rank in ranks) / relevant


def _discounted_gain(ranks: Iterable[int]) -> float:
    return math.fsum(1 / math.log2(rank + 1) for rank in ranks)

"""How good a ranking is, and whether one is better than another. Pure."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

_SAMPLES = 2_000
_SEED = 20_261_117


@dataclass(frozen=True)
class Measures:
    """Of one message, or the means over many. All are 0..1, and 1 is best."""

    hit_at_1: float
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    reciprocal_rank: float


@dataclass(frozen=True)
class Interval:
    """Of a mean difference: between `low` and `high` in 95 of 100 worlds whose messages are like these."""

    difference: float
    low: float
    high: float


def measure(ranked: Sequence[str], relevant: Collection[str]) -> Measures:
    """`ranked`: each tool once, the best first. `relevant`: at least one."""
    wanted = set(relevant)
    places = [place for place, tool in enumerate(ranked, start=1) if tool in wanted]
    return Measures(
        hit_at_1=1.0 if places[:1] == [1] else 0.0,
        recall_at_5=_recall(places, 5, wanted),
        recall_at_10=_recall(places, 10, wanted),
        ndcg_at_10=_gain(place for place in places if place <= 10) / _gain(range(1, min(len(wanted), 10) + 1)),
        reciprocal_rank=1 / places[0] if places else 0.0,
    )


def mean(measures: Sequence[Measures]) -> Measures | None:
    """None over no messages: they have no mean."""
    if not measures:
        return None
    return Measures(*(math.fsum(column) / len(measures) for column in zip(*map(astuple, measures), strict=True)))


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of the mean of `theirs - ours` over the same messages, in the same order, at least one. Messages are drawn again
    and again, each with both its figures, so that what is hard for both does not blur what sets them apart."""
    differences = np.subtract(theirs, ours, dtype=np.float64)
    drawn = np.random.default_rng(_SEED).integers(len(differences), size=(_SAMPLES, len(differences)))
    low, high = np.percentile(differences[drawn].mean(axis=1), [2.5, 97.5])
    return Interval(float(differences.mean()), float(low), float(high))


def _recall(places: Sequence[int], depth: int, wanted: set[str]) -> float:
    return sum(place <= depth for place in places) / len(wanted)


def _gain(places: Iterable[int]) -> float:
    return math.fsum(1 / math.log2(place + 1) for place in places)

"""Fit a model's calibration to messages that need a tool or none, and to labelled messages over some tools.

1. The direction separates messages that need a tool from messages that need none: a logistic regression on their
   vectors.
2. The tools give the cosine of unrelated texts and the minimum cosine of relevant ones.
3. The weight of the direction is the one that rejects the most unanswerable messages. The cut is as high as possible
   while nearly all answerable messages still get tools.

All functions are pure.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from app.embeddings.base import Vector, Vectors
from app.embeddings.calibration import Calibration
from app.search.in_memory import TenantIndex
from app.search.query import Query
from app.search.ranking import is_named, should_abstain
from app.search.scoring import ScoringParams, score_texts

MAX_LOST = 0.049
"""The maximum share of the messages that need a tool which may get a no-match."""

WEIGHTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)

_RIDGE = 0.2
_STEPS = 30
_DIGITS = 3
_MIN_THRESHOLD = 0.01
"""Above zero, which would let every tool pass."""
_MIN_SPAN = 0.1
_NO_CUT = -1_000.0

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """A labelled message: its query, the vectors of the query's texts, and the keys of the relevant tools."""

    query: Query
    vectors: Sequence[Vector]
    relevant: Collection[str]


@dataclass(frozen=True)
class TrainingData:
    tools: TenantIndex
    needing: Vectors
    """Messages that need a tool, independent of the catalogue."""
    not_needing: Vectors
    answerable: Sequence[Sample]
    unanswerable: Sequence[Sample]


@dataclass(frozen=True)
class ErrorRates:
    lost: float
    """The share of the answerable messages that get no tool."""
    refused: float
    """The share of the unanswerable messages that get no tool, as they should."""


def fit_calibration(data: TrainingData) -> Calibration:
    direction, offset = fit_direction(data.needing, data.not_needing)
    unrelated = _fit_unrelated(data)
    calibration = Calibration(
        unrelated=unrelated,
        span=max(round(1 - unrelated, 2), _MIN_SPAN),
        threshold=_fit_threshold(data),
        direction=tuple(np.round(direction, _DIGITS).tolist()),
        offset=round(offset, _DIGITS),
    )
    groups = data.answerable, data.unanswerable
    answerable, unanswerable = (_best_evidence(data.tools, samples, calibration) for samples in groups)
    answerable_need, unanswerable_need = (_tool_needs(samples, calibration) for samples in groups)

    def rate(weight: float) -> tuple[float, float, float]:
        """Return the share of unanswerable messages that are rejected with this weight, the weight and its cut."""
        cut = _choose_cut(answerable + weight * answerable_need)
        return float(np.mean(unanswerable + weight * unanswerable_need < cut)), weight, cut

    _, weight, cut = max((rate(weight) for weight in WEIGHTS), key=lambda choice: choice[0])
    return replace(calibration, weight=weight, cut=cut)


def error_rates(data: TrainingData, calibration: Calibration) -> ErrorRates:
    return ErrorRates(
        lost=_no_match_rate(data.tools, data.answerable, calibration),
        refused=_no_match_rate(data.tools, data.unanswerable, calibration),
    )


def fit_direction(needing: Vectors, not_needing: Vectors) -> tuple[_Floats, float]:
    """Fit a logistic regression by Newton's method. Return the direction and the offset, which is not regularized."""
    vectors = np.vstack([needing, not_needing]).astype(np.float64)
    inputs = np.hstack([vectors, np.ones((len(vectors), 1))])
    targets = np.repeat([1.0, 0.0], [len(needing), len(not_needing)])
    ridge = np.full(inputs.shape[1], _RIDGE)
    ridge[-1] = 1e-6
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        probabilities = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        gradient = inputs.T @ (probabilities - targets) + ridge * weights
        hessian = (inputs * (probabilities * (1 - probabilities))[:, None]).T @ inputs + np.diag(ridge)
        weights -= np.linalg.solve(hessian, gradient)
    return weights[:-1], float(weights[-1])


def _fit_unrelated(data: TrainingData) -> float:
    cosines = data.tools.compute_cosines(data.not_needing)
    return 0.0 if cosines is None else round(float(np.nanmedian(cosines)), 2)


def _fit_threshold(data: TrainingData) -> float:
    """Return the threshold that 99 of 100 relevant tools reach."""
    positions = {tool.tool_id: position for position, tool in enumerate(data.tools.tools)}
    best: list[float] = []
    for sample in data.answerable:
        cosines = data.tools.compute_cosines(np.stack(sample.vectors))
        if cosines is not None:
            best += [float(cosines[positions[key]].max()) for key in sample.relevant]
    known = [cosine for cosine in best if not np.isnan(cosine)]
    lowest = float(np.percentile(known, 1, method="lower")) if known else _MIN_THRESHOLD
    return max(_round_down(lowest), _MIN_THRESHOLD)


def _best_evidence(tools: TenantIndex, samples: Sequence[Sample], calibration: Calibration) -> _Floats:
    """Return the evidence for the best tool of each sample: infinite for a named tool, minus infinity for none."""

    def best(sample: Sample) -> float:
        candidates, weights = tools.find_candidates(_scoring_params(sample, calibration), sample.vectors)
        if any(is_named(sample.query.user_text.lower(), each.tool_name) for each in candidates):
            return np.inf
        return max((score_texts(each, weights) for each in candidates), default=-np.inf)

    return np.array([best(sample) for sample in samples])


def _tool_needs(samples: Sequence[Sample], calibration: Calibration) -> _Floats:
    return np.array([calibration.score_tool_need(sample.vectors[0]) for sample in samples])


def _choose_cut(answerable: _Floats) -> float:
    """Return the highest cut that loses at most `MAX_LOST` of the answerable messages.

    Messages that name a tool (never lost) and messages without any candidate (always lost) count, too.
    """
    allowed = int(MAX_LOST * len(answerable))
    highest = float(np.sort(answerable)[allowed])
    return _round_down(highest) if np.isfinite(highest) else _NO_CUT


def _no_match_rate(tools: TenantIndex, samples: Sequence[Sample], calibration: Calibration) -> float:
    return float(np.mean([_is_no_match(tools, sample, calibration) for sample in samples])) if samples else 0.0


def _is_no_match(tools: TenantIndex, sample: Sample, calibration: Calibration) -> bool:
    params = _scoring_params(sample, calibration)
    candidates, _ = tools.find_candidates(params, sample.vectors)
    return not candidates or should_abstain(candidates, params, sample.vectors[0])


def _scoring_params(sample: Sample, calibration: Calibration) -> ScoringParams:
    return ScoringParams(sample.query, "hybrid", None, (), calibration)


def _round_down(value: float) -> float:
    factor = 10**_DIGITS
    return float(np.floor(value * factor) / factor)

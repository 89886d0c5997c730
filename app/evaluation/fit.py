"""Fits a model's calibration to messages of both kinds, and to labelled ones over some tools. Pure.

The direction is what tells messages that need a tool from those that need none: a logistic regression on their
vectors. From the tools come the cosine of what is unrelated, and the least cosine of what is right. With these in
place, the weight of the direction is the one that lets the fewest unanswerable messages through, and the cut is as high
as it can be while nearly all answerable ones still get their tools.
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

MOST_LOST = 0.049
"""Of the messages that need a tool, the most that may be told that nothing fits."""

WEIGHTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)

_RIDGE = 0.2
_STEPS = 30
_DIGITS = 3
_LEAST_THRESHOLD = 0.01
"""Zero would let everything pass."""
_LEAST_SPAN = 0.1
_NO_CUT = -1_000.0

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """A labelled message: its query, the vectors of the query's texts, and the keys of the tools that are right."""

    query: Query
    vectors: Sequence[Vector]
    relevant: Collection[str]


@dataclass(frozen=True)
class TrainingData:
    tools: TenantIndex
    needing: Vectors
    """Messages that need a tool, whatever the tools."""
    not_needing: Vectors
    answerable: Sequence[Sample]
    unanswerable: Sequence[Sample]


@dataclass(frozen=True)
class ErrorRates:
    lost: float
    """Of the answerable messages, those that get nothing."""
    refused: float
    """Of the unanswerable ones, the same."""


def fit_calibration(material: TrainingData) -> Calibration:
    direction, offset = separating(material.needing, material.not_needing)
    unrelated = _unrelated(material)
    found = Calibration(
        unrelated=unrelated,
        span=max(round(1 - unrelated, 2), _LEAST_SPAN),
        threshold=_threshold(material),
        direction=tuple(np.round(direction, _DIGITS).tolist()),
        offset=round(offset, _DIGITS),
    )
    evidence = _evidence(material, material.answerable, found), _evidence(material, material.unanswerable, found)
    needs = _needs(material.answerable, found), _needs(material.unanswerable, found)
    choices = [_choice(weight, evidence, needs) for weight in WEIGHTS]
    _, weight, cut = max(choices, key=lambda choice: choice[0])
    return replace(found, weight=weight, cut=cut)


def error_rates(material: TrainingData, calibration: Calibration) -> ErrorRates:
    return ErrorRates(
        lost=_without(material.tools, material.answerable, calibration),
        refused=_without(material.tools, material.unanswerable, calibration),
    )


def separating(needing: Vectors, not_needing: Vectors) -> tuple[_Floats, float]:
    """Logistic regression by Newton's method: a direction, and an offset that no ridge holds back."""
    vectors = np.vstack([needing, not_needing]).astype(np.float64)
    inputs = np.hstack([vectors, np.ones((len(vectors), 1))])
    wanted = np.repeat([1.0, 0.0], [len(needing), len(not_needing)])
    ridge = np.full(inputs.shape[1], _RIDGE)
    ridge[-1] = 1e-6
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        slope = inputs.T @ (chance - wanted) + ridge * weights
        bend = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + np.diag(ridge)
        weights -= np.linalg.solve(bend, slope)
    return weights[:-1], float(weights[-1])


def _unrelated(material: TrainingData) -> float:
    cosines = material.tools.compute_cosines(material.not_needing)
    return 0.0 if cosines is None else round(float(np.nanmedian(cosines)), 2)


def _threshold(material: TrainingData) -> float:
    """So that of a hundred right tools ninety-nine are near enough."""
    places = {tool.tool_id: place for place, tool in enumerate(material.tools.tools)}
    best = []
    for sample in material.answerable:
        cosines = material.tools.compute_cosines(np.stack(sample.vectors))
        best += [] if cosines is None else [float(cosines[places[key]].max()) for key in sample.relevant]
    known = [cosine for cosine in best if not np.isnan(cosine)]
    least = float(np.percentile(known, 1, method="lower")) if known else _LEAST_THRESHOLD
    return max(_rounded_down(least), _LEAST_THRESHOLD)


def _evidence(material: TrainingData, samples: Sequence[Sample], calibration: Calibration) -> _Floats:
    return np.array([_best(material.tools, sample, calibration) for sample in samples])


def _best(tools: TenantIndex, sample: Sample, calibration: Calibration) -> float:
    """What speaks for the best tool: endlessly much for one that is named, and nothing at all where none passes."""
    candidates, weights = tools.find_candidates(_question(sample, calibration), sample.vectors)
    if any(is_named(sample.query.user_text.lower(), each.tool_name) for each in candidates):
        return np.inf
    return max((score_texts(each, weights) for each in candidates), default=-np.inf)


def _needs(samples: Sequence[Sample], calibration: Calibration) -> _Floats:
    return np.array([calibration.needs_a_tool(sample.vectors[0]) for sample in samples])


def _choice(
    weight: float, evidence: tuple[_Floats, _Floats], needs: tuple[_Floats, _Floats]
) -> tuple[float, float, float]:
    """The share that is refused with this weight, the weight, and its cut."""
    answerable, unanswerable = (found + weight * need for found, need in zip(evidence, needs, strict=True))
    cut = _cut(answerable)
    return float(np.mean(unanswerable < cut)), weight, cut


def _cut(answerable: _Floats) -> float:
    """The highest that loses no more than may be lost, the named and those without any tool among them."""
    allowed = int(MOST_LOST * len(answerable))
    highest = float(np.sort(answerable)[allowed])
    return _rounded_down(highest) if np.isfinite(highest) else _NO_CUT


def _without(tools: TenantIndex, samples: Sequence[Sample], calibration: Calibration) -> float:
    return float(np.mean([_gets_nothing(tools, sample, calibration) for sample in samples])) if samples else 0.0


def _gets_nothing(tools: TenantIndex, sample: Sample, calibration: Calibration) -> bool:
    question = _question(sample, calibration)
    candidates, _ = tools.find_candidates(question, sample.vectors)
    return not candidates or should_abstain(candidates, question, sample.vectors[0])


def _question(sample: Sample, calibration: Calibration) -> ScoringParams:
    return ScoringParams(sample.query, "hybrid", None, (), calibration)


def _rounded_down(value: float) -> float:
    steps = 10**_DIGITS
    return float(np.floor(value * steps) / steps)

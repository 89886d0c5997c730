"""Fit a model's calibration to messages that need a tool or none, and to labelled messages over some tools.

1. The direction separates messages that need a tool from messages that need none: a logistic regression on their
   vectors. The center is the mean of the messages that need a tool.
2. The tools give the cosine of unrelated texts and the minimum cosine of relevant ones, the messages the cosine of
   messages that have nothing in common.
3. The chance that any tool fits is a logistic regression on the evidence for the best tool and the direction, over
   answerable and unanswerable messages. Nearly all answerable messages must reach `min_low`, and most `min_high`.
4. The temperature makes the chances of single tools most likely, given which tools are relevant.

A user's own calibration (`fit_user_calibration`) repeats 3 and 4 on the user's messages, beginning with the model's
values, which count like `PRIOR_MESSAGES` messages. So a few messages change little.

All functions are pure.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from app.embeddings.base import Vector, Vectors
from app.embeddings.calibration import SAFE_EXAMPLE_FLOOR, Calibration, UserCalibration
from app.search.confidence import SHARED_AMONG, RankedTool, measure_evidence, measure_need
from app.search.in_memory import TenantIndex
from app.search.query import Query
from app.search.ranking import sort_candidates
from app.search.scoring import ScoringParams

MAX_EMPTY = 0.0055
"""The maximum share of the messages that need a tool which may get an empty answer."""
MAX_LOW_SHARE = 0.087
"""The maximum share of the messages that need a tool which may get an answer of low confidence or an empty one."""

PRIOR_MESSAGES = 100
"""How many messages of a user weigh as much as the model's own calibration. About as many are needed to know the share
that gets no tool to a few percent."""

CENTER_SHRINKAGE = 0.6
"""How much of a tool's nearness to messages in general counts as its own."""

_TEMPERATURES: tuple[float, ...] = tuple(np.geomspace(0.02, 0.3, 40).tolist())
_RIDGE = 0.2
_STEPS = 30
_DIGITS = 3
_MIN_THRESHOLD = 0.01
"""Above zero, which would let every tool pass."""
_MIN_SPAN = 0.1
_HIGHEST_MIN_EVIDENCE, _HIGHEST_LOW, _HIGHEST_HIGH = 0.08, 0.3, 0.8
"""Upper bounds of what is fitted: where the messages at hand are easy to tell apart, others may not be."""
_MIN_EVIDENCE_WEIGHT = 0.1
"""Above zero, which would mean that the chance is not known."""
_GROUP_WEIGHT = 300.0
"""Each group of messages counts like this many, so that a large set does not outweigh a small one."""

_UNRELATED_PERCENTILE = 99
_MIN_PAIRED, _MAX_PAIRED = 20, 2_000
_HIGHEST_FLOOR = 0.95

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """A labelled message: its query, the vectors of the query's texts, and the keys of the relevant tools."""

    query: Query
    vectors: Sequence[Vector]
    relevant: Collection[str]


@dataclass(frozen=True)
class LabelledCatalog:
    """Tools, and messages about them that need some of them or none."""

    tools: TenantIndex
    answerable: Sequence[Sample]
    unanswerable: Sequence[Sample]


@dataclass(frozen=True)
class TrainingData:
    catalogs: Sequence[LabelledCatalog]
    needing: Vectors
    """Messages that need a tool, independent of the catalogue."""
    not_needing: Vectors


@dataclass(frozen=True)
class ErrorRates:
    lost: float
    """The share of the answerable messages that get no tool."""
    refused: float
    """The share of the unanswerable messages that get no tool, as they should."""


@dataclass(frozen=True)
class _Group:
    """The messages of one catalogue and kind, as points of the logistic regression."""

    is_answerable: bool
    evidence: _Floats
    need: _Floats


def fit_calibration(data: TrainingData) -> Calibration:
    calibration = fit_similarities(data)
    measured = [
        _measure_group(catalog.tools, samples, calibration, is_answerable=is_answerable)
        for catalog in data.catalogs
        for is_answerable, samples in ((True, catalog.answerable), (False, catalog.unanswerable))
    ]
    groups = [group for group in measured if len(group.need)]
    if {group.is_answerable for group in groups} != {True, False}:
        return calibration
    fitted = _fit_chance(groups, calibration)
    return replace(fitted, temperature=_fit_temperature(data.catalogs, calibration))


def fit_user_calibration(catalog: LabelledCatalog, calibration: Calibration, model: str) -> UserCalibration:
    """Fit the values of the chance to one user's messages, starting from the model's calibration."""
    answerable = _measure_group(catalog.tools, catalog.answerable, calibration, is_answerable=True)
    unanswerable = _measure_group(catalog.tools, catalog.unanswerable, calibration, is_answerable=False)
    weights = np.array([calibration.evidence_weight, calibration.need_weight, calibration.bias])
    # Both kinds weigh as much as the rarer one: the shares of the kinds in a file say nothing about real messages.
    if weight := min(len(answerable.need), len(unanswerable.need)):
        weights = _refit_logistic(*_stack_groups([answerable, unanswerable], weight), weights)
    evidence_weight, need_weight, bias = weights.tolist()
    fitted = replace(
        calibration,
        evidence_weight=round(max(evidence_weight, _MIN_EVIDENCE_WEIGHT), _DIGITS),
        need_weight=round(max(need_weight, 0.0), _DIGITS),
        bias=round(bias, _DIGITS),
    )
    chances = [fitted.estimate_match(*point) for point in zip(answerable.evidence, answerable.need, strict=True)]
    low, high = _quantiles(chances, calibration)
    count = len(catalog.answerable)
    return UserCalibration(
        model=model,
        evidence_weight=fitted.evidence_weight,
        need_weight=fitted.need_weight,
        bias=fitted.bias,
        min_low=_round_down(_blend(calibration.min_low, low, count)),
        min_high=_round_down(_blend(calibration.min_high, high, count)),
        temperature=round(_blend(calibration.temperature, _fit_temperature([catalog], fitted), count), _DIGITS),
    )


def _quantiles(chances: Sequence[float], calibration: Calibration) -> tuple[float, float]:
    """Return the chances below which the permitted shares of the answerable messages lie; the model's without any."""
    if not chances:
        return calibration.min_low, calibration.min_high
    values, weights = np.array(chances), np.ones(len(chances))
    return _weighted_quantile(values, weights, MAX_EMPTY), _weighted_quantile(values, weights, MAX_LOW_SHARE)


def _blend(known: float, found: float, count: int) -> float:
    """Return the geometric mean of the model's value and the user's, which is based on `count` messages."""
    share = count / (count + PRIOR_MESSAGES)
    return float(known ** (1 - share) * found**share) if known > 0 and found > 0 else known


def fit_similarities(data: TrainingData) -> Calibration:
    """Fit everything that depends on vectors alone."""
    direction, offset = fit_direction(data.needing, data.not_needing)
    center = data.needing.mean(axis=0)
    length = float(np.linalg.norm(center))
    unrelated = _fit_unrelated(data)
    return Calibration(
        unrelated=unrelated,
        span=max(round(1 - unrelated, 2), _MIN_SPAN),
        threshold=_fit_threshold(data.catalogs),
        center=_round_vector(center / length),
        center_unrelated=round(_median_cosine(data.catalogs, (center / length)[None]), _DIGITS),
        center_weight=round(CENTER_SHRINKAGE * length, _DIGITS),
        direction=_round_vector(direction),
        offset=round(offset, _DIGITS),
        example_floor=fit_example_floor(data.needing),
    )


def fit_example_floor(messages: Vectors) -> float:
    """Return the cosine that 99 of 100 pairs of messages do not reach; nearly all pairs are unrelated."""
    spaced = messages[:: max(1, len(messages) // _MAX_PAIRED)]
    if len(spaced) < _MIN_PAIRED:
        return SAFE_EXAMPLE_FLOOR
    cosines = (spaced @ spaced.T)[np.triu_indices(len(spaced), 1)]
    return round(min(max(float(np.percentile(cosines, _UNRELATED_PERCENTILE)), 0.0), _HIGHEST_FLOOR), 2)


def error_rates(data: TrainingData, calibration: Calibration) -> ErrorRates:
    def share_empty(choose: Callable[[LabelledCatalog], Sequence[Sample]]) -> float:
        empty = [_is_empty(each.tools, sample, calibration) for each in data.catalogs for sample in choose(each)]
        return float(np.mean(empty)) if empty else 0.0

    return ErrorRates(
        lost=share_empty(lambda catalog: catalog.answerable), refused=share_empty(lambda catalog: catalog.unanswerable)
    )


def fit_direction(needing: Vectors, not_needing: Vectors) -> tuple[_Floats, float]:
    """Return the direction that separates the two, and the offset, which is not regularized."""
    vectors = np.vstack([needing, not_needing]).astype(np.float64)
    targets = np.repeat([1.0, 0.0], [len(needing), len(not_needing)])
    sizes = np.array([len(needing), len(not_needing)])
    importance = np.repeat(sizes.mean() / sizes, sizes)  # both kinds count the same, however many there are of each
    weights = _fit_logistic(vectors, targets, importance)
    return weights[:-1], float(weights[-1])


def _fit_logistic(inputs: _Floats, targets: _Floats, importance: _Floats) -> _Floats:
    """Fit a logistic regression by Newton's method. The last weight is the offset, which is not regularized."""
    inputs = np.hstack([inputs, np.ones((len(inputs), 1))])
    ridge = np.full(inputs.shape[1], _RIDGE)
    ridge[-1] = 1e-6
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        probabilities = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        gradient = inputs.T @ (importance * (probabilities - targets)) + ridge * weights
        hessian = (inputs * (importance * probabilities * (1 - probabilities))[:, None]).T @ inputs + np.diag(ridge)
        weights -= np.linalg.solve(hessian, gradient)
    return weights


def _refit_logistic(inputs: _Floats, targets: _Floats, importance: _Floats, known: _Floats) -> _Floats:
    """Fit a logistic regression with a ridge towards known weights, the last of which is the offset.

    The ridge is the information that `PRIOR_MESSAGES` messages like these would give if the known weights were right,
    so that it is independent of the units of the inputs.
    """
    inputs = np.hstack([inputs, np.ones((len(inputs), 1))])

    def measure_information(probabilities: _Floats) -> _Floats:
        weighted: _Floats = (inputs * (importance * probabilities * (1 - probabilities))[:, None]).T @ inputs
        return weighted

    def predict(weights: _Floats) -> _Floats:
        predicted: _Floats = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        return predicted

    total = max(float(importance.sum()), 1e-6)
    ridge = measure_information(predict(known)) * (PRIOR_MESSAGES / total) + 1e-3 * np.eye(len(known))
    weights = known.copy()
    for _ in range(_STEPS):
        probabilities = predict(weights)
        gradient = inputs.T @ (importance * (probabilities - targets)) + ridge @ (weights - known)
        weights = weights - np.linalg.solve(measure_information(probabilities) + ridge, gradient)
    return weights


def _fit_unrelated(data: TrainingData) -> float:
    return round(_median_cosine(data.catalogs, data.not_needing), 2)


def _median_cosine(catalogs: Sequence[LabelledCatalog], vectors: Vectors) -> float:
    """Return the median over the catalogues of the median cosine of their tools with the vectors."""
    cosines = [catalog.tools.compute_cosines(vectors) for catalog in catalogs]
    medians = [float(np.nanmedian(each)) for each in cosines if each is not None]
    return float(np.median(medians)) if medians else 0.0


def _fit_threshold(catalogs: Sequence[LabelledCatalog]) -> float:
    """Return the threshold that 99 of 100 relevant tools reach."""
    best: list[float] = []
    for catalog in catalogs:
        positions = catalog.tools.names.rows
        for sample in catalog.answerable:
            cosines = catalog.tools.compute_cosines(np.stack(sample.vectors))
            if cosines is not None:
                best += [float(cosines[positions[key]].max()) for key in sample.relevant]
    known = [cosine for cosine in best if not np.isnan(cosine)]
    lowest = float(np.percentile(known, 1, method="lower")) if known else _MIN_THRESHOLD
    return max(_round_down(lowest), _MIN_THRESHOLD)


def _measure_group(
    tools: TenantIndex, samples: Sequence[Sample], calibration: Calibration, *, is_answerable: bool
) -> _Group:
    """Leave out messages that name a tool, since they are not judged by their chance."""
    points = []
    for sample in samples:
        params, ranking = _rank(tools, sample, calibration)
        if not any(tool.is_named for tool in ranking):
            points.append((measure_evidence(ranking[:SHARED_AMONG], params), measure_need(params, sample.vectors)))
    evidence, need = np.array(points, np.float64).reshape(-1, 2).T
    return _Group(is_answerable, evidence, need)


def _fit_chance(groups: Sequence[_Group], calibration: Calibration) -> Calibration:
    """Return the calibration with the chance that any tool fits."""
    inputs, targets, importance = _stack_groups(groups, _GROUP_WEIGHT)
    evidence_weight, need_weight, bias = _fit_logistic(inputs, targets, importance).tolist()
    chances = 1 / (1 + np.exp(-(inputs @ [evidence_weight, need_weight] + bias)))
    answerable = targets == 1
    min_evidence = _weighted_quantile(inputs[answerable, 0], importance[answerable], MAX_EMPTY / 2)
    quantiles = [
        _weighted_quantile(chances[answerable], importance[answerable], share) for share in (MAX_EMPTY, MAX_LOW_SHARE)
    ]
    return replace(
        calibration,
        evidence_weight=round(max(evidence_weight, 0.0), _DIGITS),
        need_weight=round(max(need_weight, 0.0), _DIGITS),
        bias=round(bias, _DIGITS),
        min_evidence=_round_down(min(min_evidence, _HIGHEST_MIN_EVIDENCE)),
        min_low=_round_down(min(quantiles[0], _HIGHEST_LOW)),
        min_high=_round_down(min(quantiles[1], _HIGHEST_HIGH)),
    )


def _stack_groups(groups: Sequence[_Group], weight: float) -> tuple[_Floats, _Floats, _Floats]:
    """Return the inputs, targets and importance of all messages. Each group has the same weight."""
    inputs = np.vstack([np.column_stack([group.evidence, group.need]) for group in groups])
    targets = np.concatenate([np.full(len(group.need), float(group.is_answerable)) for group in groups])
    importance = np.concatenate([np.full(len(group.need), weight / len(group.need)) for group in groups])
    return inputs, targets, importance


def _weighted_quantile(values: _Floats, weights: _Floats, share: float) -> float:
    """Return the highest value that at most this share of the weight lies below."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(below, share, side="right").clip(max=len(values) - 1)])


def _fit_temperature(catalogs: Sequence[LabelledCatalog], calibration: Calibration) -> float:
    """Return the temperature at which the relevant tools are most likely among the best."""
    rankings = [
        (np.array([tool.score for tool in ranking]), np.array([tool.candidate.tool_id in relevant for tool in ranking]))
        for catalog in catalogs
        for ranking, relevant in (
            (_rank(catalog.tools, sample, calibration)[1][:SHARED_AMONG], set(sample.relevant))
            for sample in catalog.answerable
        )
    ]
    informative = [(scores, is_relevant) for scores, is_relevant in rankings if is_relevant.any()]

    def measure_likelihood(temperature: float) -> float:
        return sum(_log_share(scores / temperature, is_relevant) for scores, is_relevant in informative)

    best: float = max(_TEMPERATURES, key=measure_likelihood)
    return round(best, _DIGITS)


def _log_share(logits: _Floats, is_relevant: npt.NDArray[np.bool_]) -> float:
    """Return the mean logarithm of the shares of the relevant tools."""
    shares = logits - np.logaddexp.reduce(logits)
    return float(shares[is_relevant].mean())


def _is_empty(tools: TenantIndex, sample: Sample, calibration: Calibration) -> bool:
    return not tools.find(_scoring_params(sample, calibration), sample.vectors, limit=1)


def _rank(tools: TenantIndex, sample: Sample, calibration: Calibration) -> tuple[ScoringParams, list[RankedTool]]:
    params = _scoring_params(sample, calibration)
    candidates, weights = tools.find_candidates(params, sample.vectors)
    return params, sort_candidates(candidates, params, weights, sample.vectors)


def _scoring_params(sample: Sample, calibration: Calibration) -> ScoringParams:
    return ScoringParams(sample.query, "hybrid", None, (), calibration)


def _round_vector(vector: npt.NDArray[np.floating]) -> tuple[float, ...]:
    return tuple(np.round(vector.astype(np.float64), _DIGITS).tolist())


def _round_down(value: float) -> float:
    factor = 10**_DIGITS
    return float(np.floor(value * factor) / factor)

"""Fit a calibration to a few constructed vectors, and with the real model to some of the shipped messages."""

from collections.abc import Sequence

import numpy as np
import pytest

from app.embeddings.base import Vector
from app.embeddings.calibration import SAFE_EXAMPLE_FLOOR, UNCALIBRATED
from app.evaluation.fit import (
    MAX_EMPTY,
    LabelledCatalog,
    Sample,
    TrainingData,
    error_rates,
    fit_calibration,
    fit_direction,
    fit_example_floor,
)
from app.search.bm25 import Field, build_document_vector
from app.search.in_memory import IndexedTool, TenantIndex
from app.search.intents import Action
from app.search.query import parse_query


def vectors_at(*angles: float) -> list[Vector]:
    """Return unit vectors of three dimensions at these angles to the tool."""
    return [np.array([np.cos(angle), np.sin(angle), 0], np.float32) for angle in angles]


def make_index(*names: str) -> TenantIndex:
    tools = [
        IndexedTool(name, "server", name, build_document_vector([Field(name, 1.0)]), Action.UNKNOWN) for name in names
    ]
    return TenantIndex.build(tools).with_vectors(list(np.eye(3, dtype=np.float32)[: len(names)]))


def make_samples(vectors: Sequence[Vector], *relevant: str) -> list[Sample]:
    return [Sample(parse_query("please"), [vector], relevant) for vector in vectors]


def test_the_direction_separates_two_kinds_and_is_bounded_by_the_ridge() -> None:
    random = np.random.default_rng(1)
    one, other = (
        random.normal(size=(50, 8)).astype(np.float32) + sign * np.eye(8, dtype=np.float32)[0] for sign in (2, -2)
    )
    direction, offset = fit_direction(one, other)
    assert (one @ direction + offset > 0).mean() > 0.95
    assert (other @ direction + offset < 0).mean() > 0.95
    assert np.argmax(np.abs(direction)) == 0
    assert np.linalg.norm(direction) < 50


def test_near_messages_keep_their_tool_and_far_messages_get_no_match() -> None:
    near, far = vectors_at(*np.linspace(0.1, 0.6, 40)), vectors_at(*np.linspace(1.2, 1.5, 40))
    catalog = LabelledCatalog(make_index("tool"), make_samples(near, "tool"), make_samples(far))
    data = TrainingData([catalog], np.stack(near), np.stack(far))
    calibration = fit_calibration(data)
    rates = error_rates(data, calibration)
    assert rates.lost <= MAX_EMPTY
    assert rates.refused == 1
    assert calibration.threshold <= np.cos(0.6) + 1e-3
    assert calibration.unrelated == pytest.approx(np.cos(1.35), abs=0.02)
    assert calibration.span == pytest.approx(1 - calibration.unrelated)


def test_the_direction_decides_if_cosines_do_not() -> None:
    """All messages are equally close to the tool; only the third dimension separates them."""
    needing = [np.array([0.6, 0.8 * np.cos(a), 0.8 * np.sin(a)], np.float32) for a in np.linspace(0.8, 1.2, 40)]
    not_needing = [vector * np.array([1, 1, -1], np.float32) for vector in needing]
    catalog = LabelledCatalog(make_index("tool"), make_samples(needing, "tool"), make_samples(not_needing))
    data = TrainingData([catalog], np.stack(needing), np.stack(not_needing))
    calibration = fit_calibration(data)
    assert calibration.need_weight > 0
    assert error_rates(data, calibration).refused == 1
    assert error_rates(data, calibration).lost <= MAX_EMPTY
    assert error_rates(data, UNCALIBRATED).refused == 0


def test_a_named_tool_is_never_lost() -> None:
    far = vectors_at(1.5)
    named = [Sample(parse_query("use my_tool"), far, ["my_tool"])]
    catalog = LabelledCatalog(make_index("my_tool"), named, make_samples(far))
    data = TrainingData([catalog], np.stack(vectors_at(0.1)), np.stack(far))
    assert error_rates(data, fit_calibration(data)).lost == 0


def test_most_pairs_of_messages_are_below_the_floor_of_examples() -> None:
    messages = np.random.default_rng(2).normal(size=(200, 16)).astype(np.float32) + 0.5
    messages /= np.linalg.norm(messages, axis=1, keepdims=True)
    floor = fit_example_floor(messages)
    below = (messages @ messages.T)[np.triu_indices(200, 1)] < floor
    assert below.mean() == pytest.approx(0.99, abs=0.003)


def test_too_few_messages_give_a_floor_that_is_safe() -> None:
    assert fit_example_floor(np.eye(3, dtype=np.float32)) == SAFE_EXAMPLE_FLOOR == UNCALIBRATED.example_floor

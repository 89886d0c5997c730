"""The calibration of one user: it starts from the model's, and follows the user's messages as far as there are many."""

from dataclasses import replace

import numpy as np
import pytest

from app.embeddings.base import Vector
from app.embeddings.calibration import Calibration
from app.evaluation.fit import LabelledCatalog, Sample, fit_user_calibration
from app.search.bm25 import Field, build_document_vector
from app.search.in_memory import IndexedTool, TenantIndex
from app.search.intents import Action
from app.search.query import parse_query

MODEL = "local:test"
CALIBRATION = Calibration(
    unrelated=0.1,
    span=0.9,
    threshold=0.2,
    direction=(0.0, 0.0, 1.0),
    evidence_weight=6.0,
    need_weight=1.0,
    bias=-3.0,
    min_low=0.05,
    min_high=0.5,
    temperature=0.05,
)


def make_vector(*values: float) -> Vector:
    vector = np.array(values, np.float32)
    return vector / np.float32(np.linalg.norm(vector))


@pytest.fixture(scope="module")
def tools() -> TenantIndex:
    indexed = [
        IndexedTool(name, "server", name, build_document_vector([Field(name, 1.0)]), Action.UNKNOWN)
        for name in ("first", "second")
    ]
    return TenantIndex.build(indexed).with_vectors([make_vector(1, 0, 0), make_vector(0, 1, 0)])


def make_catalog(tools: TenantIndex, answerable: int, unanswerable: int, evidence: float) -> LabelledCatalog:
    """Messages that need the first tool have this cosine with it, and messages that need none a third of it."""

    def make_sample(cosine: float, *relevant: str) -> Sample:
        return Sample(parse_query("words"), [make_vector(cosine, 0, (1 - cosine**2) ** 0.5 - 0.5)], relevant)

    return LabelledCatalog(
        tools,
        [make_sample(evidence + 0.001 * n, "first") for n in range(answerable)],
        [make_sample(evidence / 3 + 0.001 * n) for n in range(unanswerable)],
    )


def test_few_messages_change_little_and_many_change_more(tools: TenantIndex) -> None:
    biases = [fit_user_calibration(make_catalog(tools, n, n, 0.3), CALIBRATION, MODEL).bias for n in (1, 10, 100)]
    changes = [abs(bias - CALIBRATION.bias) for bias in biases]
    assert changes == sorted(changes)
    assert changes[0] < 0.1 < changes[2]


def test_right_messages_with_weak_evidence_get_a_higher_chance(tools: TenantIndex) -> None:
    catalog = make_catalog(tools, 100, 100, 0.4)
    own = fit_user_calibration(catalog, CALIBRATION, MODEL)
    fitted = CALIBRATION.personalize(own)
    assert fitted.estimate_match(0.35, 0.4) > CALIBRATION.estimate_match(0.35, 0.4)
    assert own.evidence_weight > 0
    assert 0 < own.min_low <= own.min_high < 1
    assert own.model == MODEL


def test_a_file_without_both_kinds_of_messages_keeps_the_weights(tools: TenantIndex) -> None:
    own = fit_user_calibration(make_catalog(tools, 20, 0, 0.4), CALIBRATION, MODEL)
    assert (own.evidence_weight, own.need_weight, own.bias) == (6.0, 1.0, -3.0)
    empty = fit_user_calibration(make_catalog(tools, 0, 0, 0.4), CALIBRATION, MODEL)
    assert CALIBRATION.personalize(empty) == replace(CALIBRATION, temperature=empty.temperature)

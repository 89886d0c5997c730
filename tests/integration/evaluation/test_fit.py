"""A calibration fitted by hand to a handful of vectors, and by the real model to some of our own messages."""

from collections.abc import Sequence

import numpy as np
import pytest

from app.container import Container
from app.discovery.inline.documents import InlineTool
from app.embeddings.base import Vector
from app.embeddings.calibration import UNCALIBRATED
from app.evaluation.calibrate import Messages, calibrate, shipped_labelled, shipped_messages, tools_in_memory
from app.evaluation.fit import MOST_LOST, Sample, TrainingData, error_rates, fit_calibration, separating
from app.search.bm25 import Field, build_document_vector
from app.search.in_memory import IndexedTool, TenantIndex
from app.search.intents import Action
from app.search.query import parse_query

FEW = 40


def at(*angles: float) -> list[Vector]:
    """Unit vectors of three dimensions: the angle to the one tool, and a little of what tells messages apart."""
    return [np.array([np.cos(angle), np.sin(angle), 0], np.float32) for angle in angles]


def held(*names: str) -> TenantIndex:
    tools = [
        IndexedTool(name, "server", name, build_document_vector([Field(name, 1.0)]), Action.UNKNOWN) for name in names
    ]
    return TenantIndex.build(tools).with_vectors(list(np.eye(3, dtype=np.float32)[: len(names)]))


def samples(vectors: Sequence[Vector], *relevant: str) -> list[Sample]:
    return [Sample(parse_query("please"), [vector], relevant) for vector in vectors]


def test_a_direction_tells_two_kinds_apart_and_the_ridge_bounds_it() -> None:
    random = np.random.default_rng(1)
    one, other = (
        random.normal(size=(50, 8)).astype(np.float32) + sign * np.eye(8, dtype=np.float32)[0] for sign in (2, -2)
    )
    direction, offset = separating(one, other)
    assert (one @ direction + offset > 0).mean() > 0.95
    assert (other @ direction + offset < 0).mean() > 0.95
    assert np.argmax(np.abs(direction)) == 0
    assert np.linalg.norm(direction) < 50


def test_near_messages_keep_their_tool_and_far_ones_get_none() -> None:
    near, far = at(*np.linspace(0.1, 0.6, 40)), at(*np.linspace(1.2, 1.5, 40))
    material = TrainingData(held("tool"), np.stack(near), np.stack(far), samples(near, "tool"), samples(far))
    calibration = fit_calibration(material)
    found = error_rates(material, calibration)
    assert found.lost <= MOST_LOST
    assert found.refused == 1
    assert calibration.threshold <= np.cos(0.6) + 1e-3
    assert calibration.unrelated == pytest.approx(np.cos(1.35), abs=0.02)
    assert calibration.span == pytest.approx(1 - calibration.unrelated)


def test_where_cosines_tell_nothing_the_messages_themselves_do() -> None:
    """All stand alike to the tool; only the third dimension tells them apart."""
    needing = [np.array([0.6, 0.8 * np.cos(a), 0.8 * np.sin(a)], np.float32) for a in np.linspace(0.8, 1.2, 40)]
    needless = [vector * np.array([1, 1, -1], np.float32) for vector in needing]
    material = TrainingData(
        held("tool"), np.stack(needing), np.stack(needless), samples(needing, "tool"), samples(needless)
    )
    calibration = fit_calibration(material)
    assert calibration.weight > 0
    assert error_rates(material, calibration).refused == 1
    assert error_rates(material, calibration).lost <= MOST_LOST
    assert error_rates(material, UNCALIBRATED).refused == 0


def test_a_tool_that_is_named_is_never_lost() -> None:
    far = at(1.5)
    named = [Sample(parse_query("use my_tool"), far, ["my_tool"])]
    material = TrainingData(held("my_tool"), np.stack(at(0.1)), np.stack(far), named, samples(far))
    assert error_rates(material, fit_calibration(material)).lost == 0


async def test_the_real_model_is_calibrated_on_a_few_messages(container: Container) -> None:
    everything = shipped_messages()
    few = Messages(everything.needing[:: 800 // FEW], everything.not_needing[:: 800 // FEW])
    tools = [
        InlineTool(
            "weather/get_forecast", "get_forecast", "weather", "The weather forecast for a city: rain and wind."
        ),
        InlineTool("files/read_file", "read_file", "files", "Read a text file from the disk."),
        InlineTool("mail/send_email", "send_email", "mail", "Send an e-mail to somebody."),
    ]
    names = {tool.tool_key for tool in tools}
    items = [item for item in shipped_labelled() if set(item.tools) <= names]
    fit = await calibrate(
        container.searcher, await tools_in_memory(container.inline_searcher, tools), items, few, lambda *_: None
    )
    assert fit.skipped == []
    assert fit.answerable > 5
    assert fit.after.lost <= MOST_LOST
    assert fit.after.refused > 0.5
    assert 0.3 < fit.calibration.unrelated < 0.6
    assert fit.calibration.unrelated < fit.calibration.threshold + 0.1

    embedder = container.models.serving.embedder
    unseen = [everything.needing[5 :: 800 // FEW], everything.not_needing[5 :: 800 // FEW]]
    needing, needless = [await embedder.embed_queries(texts) for texts in unseen]
    assert np.mean([fit.calibration.needs_a_tool(vector) > 0 for vector in needing]) > 0.75
    assert np.mean([fit.calibration.needs_a_tool(vector) < 0 for vector in needless]) > 0.75

"""The calibration that ships is fitted to several sets together."""

from app.container import Container
from app.evaluation.calibrate import Messages
from app.evaluation.labelled_messages import LabelledMessage
from bench.calibrate import fit_sets
from bench.relevance.sets import BenchSet, BenchTool

WEATHER = BenchTool("w", "weather", {"name": "get_forecast", "description": "The weather forecast for a city."})
FILES = BenchTool("f", "files", {"name": "delete_file", "description": "Delete a file for ever."})
MESSAGES = Messages(["weather in Oslo", "remove old files"], ["thank you!", "who are you?"])


async def test_a_calibration_is_fitted_to_several_sets(container: Container) -> None:
    sets = [
        BenchSet("one", [WEATHER], [LabelledMessage("1", ["w"], "forecast for Oslo"), LabelledMessage("2", [], "hi")]),
        BenchSet("two", [FILES], [LabelledMessage("3", ["f"], "delete this file"), LabelledMessage("4", [], "thanks")]),
    ]
    calibration = await fit_sets(container, sets, MESSAGES)
    assert len(calibration.direction) == len(calibration.center) == container.model.dimension
    assert 0 < calibration.min_low <= calibration.min_high <= 1

"""`toolscout calibrate`, with an embedder whose vectors are bags of words."""

from pathlib import Path

import pytest

from app.embeddings.calibration import UNCALIBRATED, Calibration
from app.embeddings.repository import read_active_model
from tests.integration.cli.conftest import Command
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer


@pytest.fixture(autouse=True)
def _use_bag_of_words_embedder(embedding_server: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TOOLSCOUT_EMBEDDING_PROVIDER": "openai",
        "TOOLSCOUT_EMBEDDING_MODEL": "fake-words",
        "OPENAI_BASE_URL": embedding_server.base_url,
    }.items():
        monkeypatch.setenv(name, value)


def read_calibration(database: str) -> Calibration:
    model = read_active_model(database)
    assert model is not None
    return model.calibration


def read_rates(output: str, name: str) -> tuple[float, float]:
    """Return the percentages of lost and of refused messages in the line with this name."""
    [line] = [line for line in output.splitlines() if line.startswith(name)]
    lost, refused = line.split()[1:]
    return float(lost.rstrip("%")), float(refused.rstrip("%"))


def test_an_uncalibrated_model_is_calibrated_and_reset(command: Command, database: str) -> None:
    command("calibrate", "--reset")
    output = command("calibrate", "--dry-run")
    assert "243 messages that need one of 62 tools, 45 that need none" in output
    assert read_calibration(database) == UNCALIBRATED

    output = command("calibrate")
    assert "stored with openai:fake-words" in output
    assert "running services apply it" in output
    fitted = read_calibration(database)
    assert len(fitted.direction) == DIMENSION
    assert read_rates(output, "after")[0] <= 4.9
    assert read_rates(output, "after")[1] > read_rates(output, "before")[1]

    assert "is back to the calibration that ships with it" in command("calibrate", "--reset")
    assert read_calibration(database) == UNCALIBRATED


def test_messages_in_a_file_are_about_the_tools_of_the_user(
    command: Command, database: str, mcp: FakeMcpServer, tmp_path: Path
) -> None:
    command("calibrate", "--reset")
    command("key", "create", "--user", "lin")
    mcp.tools = [tool("get_forecast", "Weather forecast for a city."), tool("read_file", "Read a text file.")]
    command("server", "add", "things", mcp.url, "--user", "lin")
    labelled = tmp_path / "labelled.jsonl"
    few = """{"message": "weather forecast for Oslo", "tools": ["things.get_forecast"]}
        {"message": "read a text file", "tools": ["read_file"]}
        {"message": "fly to the moon", "tools": ["no_such_tool"], "id": "moon"}"""
    labelled.write_text(few)
    assert "too few to calibrate on" in command("calibrate", str(labelled), "--user", "lin", status=1)
    assert "nothing was stored" in command("calibrate", str(labelled), "--user", "lin", "--dry-run")
    assert read_calibration(database) == UNCALIBRATED

    cities = (f'{{"message": "weather forecast for city {n}", "tools": ["get_forecast"]}}' for n in range(48))
    labelled.write_text("\n".join([few, *cities]))
    output = command("calibrate", str(labelled), "--user", "lin")
    assert "skipped, because the tools in their labels do not exist: moon" in output
    assert "50 messages that need one of 2 tools, 800 that need none" in output
    assert read_rates(output, "after")[0] <= 4.9
    assert read_calibration(database) != UNCALIBRATED
    assert "get_forecast" in command("discover", "weather forecast for city 7", "--user", "lin")

    labelled.write_text('{"message": "fly to the moon", "tools": ["no_such_tool"]}')
    error = command("calibrate", str(labelled), "--user", "lin", "--dry-run", status=1)
    assert "none of the messages needs a tool of this catalogue" in error


def test_the_calibration_stays_if_the_embedder_fails(
    command: Command, database: str, embedding_server: FakeEmbeddingServer
) -> None:
    command("calibrate", "--reset")
    embedding_server.mode = "zeros"
    assert "zero vector" in command("calibrate", status=1)
    assert read_calibration(database) == UNCALIBRATED

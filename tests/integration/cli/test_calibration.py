"""`toolscout calibrate`, with an embedder whose vectors are bags of words."""

from pathlib import Path

import pytest

from app.embeddings.calibration import UNCALIBRATED, Calibration
from app.embeddings.repository import read_active_model
from tests.conftest import tool
from tests.integration.cli.conftest import Command
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer
from tests.support.mcp_server import FakeMcpServer


@pytest.fixture(autouse=True)
def _bags_of_words(embedding_server: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TOOLSCOUT_EMBEDDING_PROVIDER": "openai",
        "TOOLSCOUT_EMBEDDING_MODEL": "fake-words",
        "OPENAI_BASE_URL": embedding_server.base_url,
    }.items():
        monkeypatch.setenv(name, value)


def stored(database: str) -> Calibration:
    model = read_active_model(database)
    assert model is not None
    return model.calibration


def shares(told: str, when: str) -> tuple[float, float]:
    [line] = [line for line in told.splitlines() if line.startswith(when)]
    lost, refused = line.split()[1:]
    return float(lost.rstrip("%")), float(refused.rstrip("%"))


def test_a_model_that_nobody_has_measured_learns_when_nothing_fits(command: Command, database: str) -> None:
    command("calibrate", "--reset")
    told = command("calibrate", "--dry-run")
    assert "243 messages that need one of 62 tools, 45 that need none" in told
    assert stored(database) == UNCALIBRATED

    told = command("calibrate")
    assert "stored with openai:fake-words" in told
    assert "notice it" in told
    fitted = stored(database)
    assert len(fitted.direction) == DIMENSION
    assert shares(told, "after")[0] <= 4.9
    assert shares(told, "after")[1] > shares(told, "before")[1]

    assert "is back to what ships" in command("calibrate", "--reset")
    assert stored(database) == UNCALIBRATED


def test_ones_own_messages_are_about_ones_own_tools(
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
    assert "too few to fit to" in command("calibrate", str(labelled), "--user", "lin", status=1)
    assert "nothing was stored" in command("calibrate", str(labelled), "--user", "lin", "--dry-run")
    assert stored(database) == UNCALIBRATED

    cities = (f'{{"message": "weather forecast for city {n}", "tools": ["get_forecast"]}}' for n in range(48))
    labelled.write_text("\n".join([few, *cities]))
    told = command("calibrate", str(labelled), "--user", "lin")
    assert "left out, since the tools that they name are not there: moon" in told
    assert "50 messages that need one of 2 tools, 800 that need none" in told
    assert shares(told, "after")[0] <= 4.9
    assert stored(database) != UNCALIBRATED
    assert "get_forecast" in command("discover", "weather forecast for city 7", "--user", "lin")

    labelled.write_text('{"message": "fly to the moon", "tools": ["no_such_tool"]}')
    refused = command("calibrate", str(labelled), "--user", "lin", "--dry-run", status=1)
    assert "none of the messages needs a tool of this catalogue" in refused


def test_an_embedder_that_fails_leaves_things_as_they_are(
    command: Command, database: str, embedding_server: FakeEmbeddingServer
) -> None:
    command("calibrate", "--reset")
    embedding_server.mode = "zeros"
    assert "zero vector" in command("calibrate", status=1)
    assert stored(database) == UNCALIBRATED

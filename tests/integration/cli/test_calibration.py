"""`toolscout calibrate`, with an embedder whose vectors are bags of words."""

import re
from pathlib import Path

import psycopg
import pytest

from app.embeddings.calibration import UNCALIBRATED, Calibration, UserCalibration
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
    assert read_rates(output, "after")[0] <= 1
    assert read_rates(output, "after")[1] >= read_rates(output, "before")[1]
    assert fitted.is_fitted

    assert "takes neither a FILE nor --dry-run" in command("calibrate", "--reset", "--dry-run", status=1)
    assert read_calibration(database) != UNCALIBRATED
    assert "is back to the calibration that ships with it" in command("calibrate", "--reset")
    assert read_calibration(database) == UNCALIBRATED


@pytest.fixture
def labelled(command: Command, mcp: FakeMcpServer, tmp_path: Path) -> Path:
    """A file with three messages about the tools of the user lin, one of which needs a tool that does not exist."""
    command("calibrate", "--reset")
    command("key", "create", "--user", "lin")
    command("calibrate", "--reset", "--user", "lin")
    mcp.tools = [tool("get_forecast", "Weather forecast for a city."), tool("read_file", "Read a text file.")]
    if "things" not in command("server", "list", "--user", "lin"):
        command("server", "add", "things", mcp.url, "--user", "lin")
    file = tmp_path / "labelled.jsonl"
    file.write_text(
        """{"message": "weather forecast for Oslo", "tools": ["things.get_forecast"]}
        {"message": "read a text file", "tools": ["read_file"]}
        {"message": "fly to the moon", "tools": ["no_such_tool"], "id": "moon"}"""
    )
    return file


def add_messages(file: Path, count: int) -> None:
    cities = (f'{{"message": "weather forecast for city {n}", "tools": ["get_forecast"]}}' for n in range(count))
    file.write_text("\n".join([file.read_text(), *cities]))


def read_user_calibration(database: str, user_id: str) -> UserCalibration | None:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT calibration FROM users WHERE id = %s", (user_id,)).fetchone()
    assert row is not None
    return UserCalibration.from_json(row[0], "openai:fake-words")


def test_messages_in_a_file_are_about_the_tools_of_the_user(command: Command, database: str, labelled: Path) -> None:
    for_all = "--for-all", "--user", "lin"
    assert "too few to calibrate on: give at least 50" in command("calibrate", str(labelled), *for_all, status=1)
    assert "nothing was stored" in command("calibrate", str(labelled), *for_all, "--dry-run")
    assert read_calibration(database) == UNCALIBRATED

    add_messages(labelled, 48)
    output = command("calibrate", str(labelled), *for_all)
    assert "skipped, because the tools in their labels do not exist: moon" in output
    assert re.search(r"50 messages that need one of 2 tools, \d+ that need none", output)
    assert "stored with openai:fake-words" in output
    assert read_calibration(database) != UNCALIBRATED
    assert read_user_calibration(database, "lin") is None
    assert "get_forecast" in command("discover", "weather forecast for city 7", "--user", "lin")

    labelled.write_text('{"message": "fly to the moon", "tools": ["no_such_tool"]}')
    error = command("calibrate", str(labelled), *for_all, "--dry-run", status=1)
    assert "none of the messages needs a tool of this catalogue" in error


def test_a_user_is_calibrated_and_reset_alone(command: Command, database: str, labelled: Path) -> None:
    command("key", "create", "--user", "kim")
    lin = "--user", "lin"
    add_messages(labelled, 20)
    assert "run `toolscout calibrate` for all users first" in command("calibrate", str(labelled), *lin, status=1)
    command("calibrate")
    for_all = read_calibration(database)

    assert "--user needs a FILE" in command("calibrate", *lin, status=1)
    assert "nothing was stored" in command("calibrate", str(labelled), *lin, "--dry-run")
    assert read_user_calibration(database, "lin") is None
    assert "stored for the user lin with openai:fake-words" in command("calibrate", str(labelled), *lin)
    own = read_user_calibration(database, "lin")
    assert own is not None
    assert for_all.personalize(own) != for_all
    assert read_calibration(database) == for_all
    assert read_user_calibration(database, "kim") is None
    assert "get_forecast" in command("discover", "weather forecast for city 7", *lin)

    assert "the user lin is back to the calibration of all users" in command("calibrate", "--reset", *lin)
    assert read_user_calibration(database, "lin") is None
    assert read_calibration(database) == for_all
    assert "there is no user 'nobody'" in command("calibrate", "--reset", "--user", "nobody", status=1)
    events = "SELECT user_id, target FROM audit_events WHERE action = 'user.calibrate' ORDER BY at DESC LIMIT 2"
    with psycopg.connect(database) as connection:
        assert connection.execute(events).fetchall() == [("lin", "lin")] * 2


def test_a_user_needs_fewer_messages_than_everybody(command: Command, labelled: Path) -> None:
    command("calibrate")
    assert "too few to calibrate on: give at least 10" in command("calibrate", str(labelled), "--user", "lin", status=1)
    add_messages(labelled, 10)
    assert "stored for the user lin" in command("calibrate", str(labelled), "--user", "lin")


def test_the_calibration_stays_if_the_embedder_fails(
    command: Command, database: str, embedding_server: FakeEmbeddingServer
) -> None:
    command("calibrate", "--reset")
    embedding_server.mode = "zeros"
    assert "zero vector" in command("calibrate", status=1)
    assert read_calibration(database) == UNCALIBRATED

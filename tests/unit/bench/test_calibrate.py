"""The messages that the shipped calibration is fitted to."""

import json
from pathlib import Path

from bench.calibrate import read_needing


def write_messages(path: Path, *messages: str) -> Path:
    path.write_text("".join(f"{json.dumps({'q': message, 'tool': 'x'})}\n" for message in messages))
    return path


def test_messages_are_read_from_all_files(tmp_path: Path) -> None:
    paths = [write_messages(tmp_path / "one", "a", "b"), write_messages(tmp_path / "two", "c")]
    assert read_needing(paths, None) == ["a", "b", "c"]


def test_a_large_file_gives_the_same_sample_of_short_messages_each_time(tmp_path: Path) -> None:
    small = write_messages(tmp_path / "small", "a" * 400)
    large = write_messages(tmp_path / "large", *(f"message {number}" for number in range(20)), "b" * 400)
    messages = read_needing([small, large], 10)
    assert len(messages) == 11
    assert messages[0] == "a" * 400
    assert "b" * 400 not in messages
    assert messages == read_needing([small, large], 10)

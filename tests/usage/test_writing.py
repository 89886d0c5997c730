"""What is gathered in memory is written again and again, and once more at the end."""

import asyncio

import pytest

from app.usage import writing
from app.usage.writing import Scribe
from tests.indexing.by_hand import until

Log = pytest.LogCaptureFixture


async def test_it_writes_again_and_again_and_once_more_at_the_end(monkeypatch: pytest.MonkeyPatch, caplog: Log) -> None:
    monkeypatch.setattr(writing, "_WRITE_EVERY_S", 0)
    done: list[str] = []

    async def turn() -> None:
        done.append("turn")

    async def last() -> None:
        done.append("last")

    async def has_gone_round() -> bool:
        return len(done) >= 3

    scribe = Scribe("usage", turn, last, dict)
    scribe.start()
    await until(has_gone_round)
    await scribe.stop()
    assert done.count("last") == 1
    assert done[-1] == "last"
    ended = len(done)
    await asyncio.sleep(0)
    assert len(done) == ended
    assert "could not be written down" not in caplog.text


async def test_a_last_write_that_takes_too_long_is_given_up_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    monkeypatch.setattr(writing, "_LAST_WRITE_S", 0.01)
    scribe = Scribe("usage", asyncio.Event().wait, asyncio.Event().wait, lambda: {"counters": 7})
    scribe.start()
    await scribe.stop()
    [warning] = [record for record in caplog.records if record.message == "usage could not be written down in time"]
    assert warning.__dict__["counters"] == 7

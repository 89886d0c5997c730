"""What is gathered in memory is written again and again, and once more at the end."""

import asyncio

import pytest

from app.usage import flusher as flusher_module
from app.usage.flusher import PeriodicFlusher
from tests.support.worker_steps import until

Log = pytest.LogCaptureFixture


async def test_it_writes_again_and_again_and_once_more_at_the_end(monkeypatch: pytest.MonkeyPatch, caplog: Log) -> None:
    monkeypatch.setattr(flusher_module, "_WRITE_EVERY_S", 0)
    done: list[str] = []

    async def turn() -> None:
        done.append("turn")

    async def last() -> None:
        done.append("last")

    async def has_gone_round() -> bool:
        return len(done) >= 3

    flusher = PeriodicFlusher("usage", turn, last, dict)
    flusher.start()
    await until(has_gone_round)
    await flusher.stop()
    assert done.count("last") == 1
    assert done[-1] == "last"
    ended = len(done)
    await asyncio.sleep(0)
    assert len(done) == ended
    assert "could not be written down" not in caplog.text


async def test_a_last_write_that_takes_too_long_is_given_up_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    monkeypatch.setattr(flusher_module, "_LAST_WRITE_S", 0.01)
    flusher = PeriodicFlusher("usage", asyncio.Event().wait, asyncio.Event().wait, lambda: {"counters": 7})
    flusher.start()
    await flusher.stop()
    [warning] = [record for record in caplog.records if record.message == "usage could not be written down in time"]
    assert warning.__dict__["counters"] == 7

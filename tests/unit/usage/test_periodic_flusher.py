"""The periodic flusher: it flushes repeatedly, and once more at the end."""

import asyncio

import pytest

from app.usage import periodic_flusher as flusher_module
from app.usage.periodic_flusher import PeriodicFlusher
from tests.support.worker_steps import until

Log = pytest.LogCaptureFixture


async def test_it_flushes_periodically_and_once_more_when_stopped(monkeypatch: pytest.MonkeyPatch, caplog: Log) -> None:
    monkeypatch.setattr(flusher_module, "_FLUSH_EVERY_S", 0)
    calls: list[str] = []

    async def flush() -> None:
        calls.append("periodic")

    async def final_flush() -> None:
        calls.append("final")

    async def has_flushed() -> bool:
        return len(calls) >= 3

    flusher = PeriodicFlusher("usage", flush, final_flush, dict)
    flusher.start()
    await until(has_flushed)
    await flusher.stop()
    assert calls.count("final") == 1
    assert calls[-1] == "final"
    count = len(calls)
    await asyncio.sleep(0)
    assert len(calls) == count
    assert "timed out" not in caplog.text


async def test_a_final_flush_that_takes_too_long_is_cancelled_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    monkeypatch.setattr(flusher_module, "_FINAL_FLUSH_S", 0.01)
    flusher = PeriodicFlusher("usage", asyncio.Event().wait, asyncio.Event().wait, lambda: {"counters": 7})
    flusher.start()
    await flusher.stop()
    [warning] = [record for record in caplog.records if record.message == "final flush of usage timed out"]
    assert warning.__dict__["counters"] == 7

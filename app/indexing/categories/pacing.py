"""Computing in a thread beside the event loop: with pauses, and only as long as somebody waits for the result."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Checkpoint = Callable[[], None]
"""Called again and again by a long computation. It may pause, and it raises an exception that ends the computation."""

_WORK_S = 0.005
_PAUSE_S = 0.005


class Stopped(Exception):
    """Nobody waits for the result any more."""


def never_pause() -> None:
    """The checkpoint of a short computation."""


class Pacer:
    """A checkpoint that pauses as long as was computed: Python code in another thread delays every request."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._resumed = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def __call__(self) -> None:
        if time.monotonic() - self._resumed >= _WORK_S:
            self._stopped.wait(_PAUSE_S)
            self._resumed = time.monotonic()
        if self._stopped.is_set():
            raise Stopped


async def run_paced(work: Callable[Concatenate[Checkpoint, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread. It ends at its next checkpoint if the task is cancelled."""
    pacer = Pacer()
    try:
        return await asyncio.to_thread(work, pacer, *args, **kwargs)
    finally:
        pacer.stop()

"""What a program of the operator's writes beside its answers. The end of it is kept for one who wants to know why the
program does not start; once it has, it may hold what it was sent, and nobody ever sees it."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TextIO

from app.text.invisible import remove_hidden

_KEPT_BYTES = 2_000
_READ_BYTES = 65_536


@dataclass
class StderrTail:
    stream: TextIO
    """What the program gets to write to."""
    said: bytes = b""

    @property
    def text(self) -> str:
        return remove_hidden(self.said.decode(errors="replace").strip())


@contextmanager
def capture_stderr() -> Iterator[StderrTail]:
    """A pipe and not a file, which would grow for as long as the program runs."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()
    with os.fdopen(writing, "w") as stream:
        words = StderrTail(stream)

        def hear() -> None:
            with suppress(BlockingIOError):
                while said := os.read(reading, _READ_BYTES):
                    words.said = (words.said + said)[-_KEPT_BYTES:]

        loop.add_reader(reading, hear)
        try:
            yield words
        finally:
            loop.remove_reader(reading)
            hear()
            os.close(reading)

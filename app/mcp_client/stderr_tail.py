"""The end of a stdio server's stderr, which explains why the program does not start.

Once the program has started, its stderr may contain data that it was sent, and is never shown.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from app.text.invisible import remove_hidden

_MAX_BYTES = 2_000
_READ_BYTES = 65_536


class StderrTail:
    def __init__(self) -> None:
        self._tail = b""

    @property
    def text(self) -> str:
        return remove_hidden(self._tail.decode(errors="replace").strip())

    @contextmanager
    def capture(self) -> Iterator[TextIO]:
        """Yield a stream for the program to write to, and keep the end of what it writes.

        The stream is a pipe and not a file, which would grow for as long as the program runs.
        """
        self._tail = b""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        loop = asyncio.get_running_loop()
        with os.fdopen(write_end, "w") as stream:
            loop.add_reader(read_end, self._read, read_end)
            try:
                yield stream
            finally:
                loop.remove_reader(read_end)
                self._read(read_end)
                os.close(read_end)

    def _read(self, read_end: int) -> None:
        with suppress(BlockingIOError):
            while chunk := os.read(read_end, _READ_BYTES):
                self._tail = (self._tail + chunk)[-_MAX_BYTES:]

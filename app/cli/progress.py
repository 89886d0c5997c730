"""A bar while something long runs; plain lines where nobody is watching a terminal."""

import sys

_WIDTH = 30


class ProgressBar:
    def __init__(self, title: str) -> None:
        self._title = title
        self._moving = sys.stderr.isatty()
        self._last = ""

    def show(self, done: int, total: int, state: str) -> None:
        filled = _WIDTH * done // total if total else 0
        count = f"{done}/{total}" if total else state
        line = f"{self._title}  [{'#' * filled}{'.' * (_WIDTH - filled)}]  {count}"
        if line == self._last:
            return
        self._last = line
        print(
            f"\r\033[K{line}" if self._moving else line, end="" if self._moving else "\n", file=sys.stderr, flush=True
        )

    def end(self) -> None:
        if self._moving and self._last:
            print(file=sys.stderr)

"""A bar while something long runs; where nobody watches a terminal, a line for the start, each quarter and the end."""

import sys

_WIDTH = 30


class ProgressBar:
    def __init__(self, title: str) -> None:
        self._title = title
        self._moving = sys.stderr.isatty()
        self._line = ""
        self._drawn = ""
        self._quarters = -1

    def show(self, done: int, total: int, state: str) -> None:
        filled = _WIDTH * done // total if total else 0
        count = f"{done}/{total}" if total else state
        self._line = f"{self._title}  [{'#' * filled}{'.' * (_WIDTH - filled)}]  {count}"
        quarters = 4 * done // total if total else 0
        if self._moving or quarters > self._quarters:
            self._quarters = quarters
            self._draw()

    def end(self) -> None:
        self._draw()
        if self._moving and self._drawn:
            print(file=sys.stderr)

    def _draw(self) -> None:
        if self._line == self._drawn:
            return
        self._drawn = self._line
        before, after = ("\r\033[K", "") if self._moving else ("", "\n")
        print(f"{before}{self._line}", end=after, file=sys.stderr, flush=True)

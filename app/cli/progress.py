"""Progress of a long task, on stderr."""

import sys
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn

from app.cli.output import is_terminal, make_console
from app.cli.text import make_printable

_WIDTH = 30


class ProgressBar:
    """On a terminal, a bar that is redrawn in place; elsewhere, a line for the start, for each quarter and the end.

    Use it as a context manager, or call `end()`: until then the terminal's cursor is hidden.
    """

    def __init__(self, title: str) -> None:
        self._title = make_printable(title)
        self._live = _make_live_progress() if is_terminal(sys.stderr) else None
        self._line = ""
        self._printed_line = ""
        self._quarters = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def show(self, done: int, total: int, state: str) -> None:
        """Show `done` of `total`, or the state while the total is not known."""
        count = f"{done}/{total}" if total else state
        if self._live is not None:
            self._redraw(self._live, done, total, count)
            return
        filled = _WIDTH * done // total if total else 0
        self._line = f"{self._title}  [{'#' * filled}{'.' * (_WIDTH - filled)}]  {count}"
        quarters = 4 * done // total if total else 0
        if quarters > self._quarters:
            self._quarters = quarters
            self._print_line()

    def end(self) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()
        else:
            self._print_line()

    def _redraw(self, live: Progress, done: int, total: int, count: str) -> None:
        if not live.tasks:
            live.start()
            live.add_task(self._title, total=None, count="")
        live.update(live.task_ids[0], completed=done, total=total or None, count=count)

    def _print_line(self) -> None:
        if self._line != self._printed_line:
            self._printed_line = self._line
            print(self._line, file=sys.stderr, flush=True)


def _make_live_progress() -> Progress:
    """Neither stream is redirected through the bar: stdout may be a file while stderr is a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(_WIDTH),
        TextColumn("{task.fields[count]}", markup=False),
        console=make_console(sys.stderr),
        redirect_stdout=False,
        redirect_stderr=False,
    )

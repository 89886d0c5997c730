"""Output of the commands: styled on a terminal, plain and stable anywhere else."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from app.cli.text import make_printable


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads the stream on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def make_console(stream: TextIO) -> Console:
    """Return a console that writes text as it is: no markup, no highlighting, no styles with NO_COLOR."""
    return Console(
        file=stream,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        highlight=False,
        emoji=False,
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], plain_lines: Iterable[str]) -> None:
    """Print the rows as a table on a terminal, and `plain_lines`, whose format scripts rely on, anywhere else."""
    if not is_terminal(sys.stdout):
        print_lines(plain_lines)
        return
    table = Table(*(Column(name, overflow="fold") for name in columns), box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(make_printable(cell)) for cell in row))
    make_console(sys.stdout).print(table)


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(make_printable(line))

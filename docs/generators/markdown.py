"""Markdown tables."""

from collections.abc import Iterable, Sequence


def render_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_escape(str(cell)) for cell in line)} |\n" for line in lines)


def _escape(text: str) -> str:
    """A vertical bar would end the cell, also inside of code."""
    return " ".join(text.split()).replace("|", "\\|")

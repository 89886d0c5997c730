"""Values that a command takes: from its options, or from a person at the terminal."""

import sys
from collections.abc import Sequence

import typer

from app.cli.text import make_printable
from app.errors import InvalidInput


def parse_assignment(text: str, option: str) -> tuple[str, str]:
    """Parse NAME=VALUE. The error does not repeat the text, which may be a credential."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"{option} takes NAME=VALUE")
    return name, value


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_for_value(
    name: str, *, description: str | None, choices: Sequence[str], default: str | None, hidden: bool
) -> str:
    """`hidden`: do not show what is typed."""
    options = f" ({', '.join(choices)})" if choices else ""
    explained = f": {description}" if description else ""
    answer: str = typer.prompt(
        make_printable(f"{name}{explained}{options}"),
        default=default or "",
        show_default=bool(default),
        hide_input=hidden,
        err=True,
    )
    return answer

"""Groups of commands, and a group that imports a command only when it is used."""

import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


def make_group(help: str | None = None) -> typer.Typer:  # noqa: A002 named as in typer
    """Return an empty group. Its help is styled on a terminal, and plain text in a pipe or with NO_COLOR."""
    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode="rich" if styled else None)


class LazyCommand(TyperCommand):
    """The name and the help text of a command whose module is not imported yet.

    The module has a group named `commands`, which holds the command.
    """

    def __init__(self, name: str, module: str, help: str) -> None:  # noqa: A002 named as in typer
        super().__init__(name=name, help=help)
        self._module = module

    def load(self) -> Any:
        assert self.name is not None  # noqa: S101 set in __init__
        return get_group(import_module(self._module).commands).commands[self.name]


class LazyGroup(TyperGroup):
    """A group that lists lazy commands as they are, and loads the one that is used.

    The commands of the service import numpy, SQLAlchemy, FastAPI and the MCP SDK, which takes seconds. Help and shell
    completion need only names and help texts.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

"""The `toolscout` command: its subcommands, and how errors are printed.

This module imports no other part of the application than the errors, so that `toolscout --help` is fast.
"""

import sys
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_command

from app import __version__
from app.cli.group import LazyCommand, LazyGroup, make_group
from app.cli.text import make_printable
from app.errors import AuthorizationRequired, ToolscoutError

_COMMANDS = (
    LazyCommand("serve", "app.cli.serve", "Run the service."),
    LazyCommand("reload", "app.cli.reload", "Apply changed settings without a restart."),
    LazyCommand("doctor", "app.cli.doctor", "Check the settings, the database and the embedder."),
    LazyCommand("migrate", "app.cli.migrate", "Migrate the database schema."),
    LazyCommand("key", "app.cli.keys", "Manage API keys."),
    LazyCommand("user", "app.cli.users", "Manage users."),
    LazyCommand("server", "app.cli.servers", "Manage a user's MCP servers."),
    LazyCommand("shared-server", "app.cli.shared_servers", "Manage the servers that many users share."),
    LazyCommand(
        "tool",
        "app.cli.own_texts",
        "Show a tool's texts, write texts of your own for it, and approve its definition.",
    ),
    LazyCommand("categories", "app.cli.categories", "List and rename the categories of a user's tools."),
    LazyCommand("discover", "app.cli.tools", "Find the tools that a message needs."),
    LazyCommand("execute", "app.cli.tools", "Run a tool on its server."),
    LazyCommand("eval", "app.cli.evaluation", "Measure how well labelled messages find their tools."),
    LazyCommand(
        "calibrate", "app.cli.calibration", "Calibrate the no-match threshold for the active model, or for one user."
    ),
    LazyCommand("examples", "app.cli.examples", "Manage the examples of what a tool is for."),
    LazyCommand("selections", "app.cli.selections", "Work with the selection log."),
    LazyCommand("model", "app.cli.models", "Manage embedding models."),
    LazyCommand("rotate-secrets", "app.cli.keys", "Encrypt stored credentials with the current key."),
)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit. An expected error is printed as a message, without a traceback."""
    try:
        build_cli()(arguments, prog_name="toolscout")
    except ToolscoutError as error:
        tool = "" if error.called_tool is None else f"{'.'.join(error.called_tool)}: "
        lines = [f"toolscout: {tool}{error.message}"]
        if isinstance(error, AuthorizationRequired) and error.authorization_url is not None:
            lines.append(error.authorization_url)
        sys.exit("\n".join(map(make_printable, lines)))


def build_cli() -> TyperGroup:
    root = make_group("Find, for each chat message, the few MCP tools that matter.")
    root.callback(cls=LazyGroup, context_settings={"help_option_names": ["--help", "-h"]})(_root_options)
    cli = get_command(root)
    assert isinstance(cli, TyperGroup)  # noqa: S101 a typer with a callback is a group
    for command in _COMMANDS:
        cli.add_command(command)
    return cli


def _print_version(requested: bool) -> None:
    if requested:
        print(f"toolscout {__version__}")
        raise typer.Exit


def _root_options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Declare the options that stand before the command."""

"""`toolscout server import`."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from app.catalog.client_config.config import ClientConfig, read_client_config
from app.catalog.client_config.entries import check_value_names, find_open_values
from app.catalog.client_config.placeholders import Placeholder
from app.cli.context import ACTOR, UserOption, open_for_user, with_settings
from app.cli.output import print_lines, print_table
from app.cli.run_progress import follow_run
from app.cli.stdio_snippet import render_stdio_snippet
from app.cli.text import make_printable
from app.cli.values import ask_for_value, can_ask, parse_assignment
from app.demo.seed import DEMO_USER
from app.errors import InvalidInput
from app.management.server_import import ImportResult, import_servers
from app.mcp_client.stdio_servers import read_stdio_servers
from app.schemas.server_import import plan_import
from app.settings import Settings
from app.text.jsonc import parse_jsonc

_REPEATABLE = ("missing_value", "not_checked")
"""Kinds of skipped entries that the same file can still import: with a value, or at another time."""


@with_settings
async def import_file(
    settings: Settings,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The configuration of an MCP client: mcp.json, claude_desktop_config.json, VS Code's mcp.json and "
            "others. Comments are allowed. `-` reads standard input.",
        ),
    ],
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="The value of a placeholder, such as ${NAME} or ${input:NAME}. Without it, variables are taken from "
            "the environment, and what is missing is asked for on a terminal. Repeatable.",
        ),
    ] = None,
    user: UserOption = DEMO_USER,
) -> int:
    """Register the servers of an MCP client's configuration file and index their tools.

    Entries that cannot be imported are listed with the reason, and do not stop the others. The exit code is 1 if an
    entry lacks a value, if a host name could not be looked up in time, or if an index run failed.
    """
    config = _read_file(file)
    given = dict(parse_assignment(text, "--set") for text in value or [])
    check_value_names(config, given)  # before a person is asked for the others
    values = _collect_values(find_open_values(config), given)
    entries = plan_import(config, values, read_stdio_servers(settings).list_names(user))
    async with open_for_user(settings, user) as (container, _):
        result = await import_servers(
            container.database,
            container.mcp_pool,
            container.sealer,
            container.worker,
            user,
            entries,
            container.quotas,
            actor=ACTOR,
        )
        runs = [(each.server, each.run) for each in result.imported if each.run is not None]
        failed = sum([await follow_run(container, server, run, is_new=True) for server, run in runs])
    _print_result(config, result)
    return 1 if failed or any(each.kind in _REPEATABLE for each in result.skipped) else 0


def _read_file(file: str) -> ClientConfig:
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    return read_client_config(parse_jsonc(body, "standard input" if file == "-" else file))


def _collect_values(placeholders: Sequence[Placeholder], given: Mapping[str, str]) -> dict[str, str]:
    """Take each value from the options, from the environment, or from a person at the terminal."""
    values = dict(given)
    is_terminal = can_ask()
    for placeholder in placeholders:
        name = placeholder.name
        if name in values:
            continue
        if not placeholder.is_input and os.environ.get(name):
            values[name] = os.environ[name]
            print(make_printable(f"{name}: taken from the environment"), file=sys.stderr)
        elif is_terminal and (placeholder.is_input or placeholder.default is None):
            values[name] = ask_for_value(
                name,
                description=placeholder.description,
                choices=placeholder.options,
                default=placeholder.default,
                hidden=placeholder.is_secret,
            )
    return values


def _print_result(config: ClientConfig, result: ImportResult) -> None:
    rows = [(each.server.name, "imported", "; ".join(each.notes)) for each in result.imported]
    rows += [(each.name, "skipped", each.reason) for each in result.skipped]
    if not rows:
        print("the file has no servers")
        return
    print_table(
        ["name", "result", "details"],
        rows,
        [f"{outcome:8}  {name:24}  {details}".rstrip() for name, outcome, details in rows],
    )
    programs = {each.name for each in result.skipped if each.kind == "program"}
    if programs:
        snippet = render_stdio_snippet([entry for entry in config.entries if entry.name in programs])
        heading = "to allow these programs, add them to the file that TOOLSCOUT_STDIO_SERVERS names"
        print_lines(["", f"{heading} (fill in each …), then run `toolscout reload`:", *snippet.splitlines()])

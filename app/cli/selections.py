"""`toolscout selections export`: what was asked and chosen, as labelled messages for `toolscout eval`."""

import argparse
from typing import Any

import orjson

from app.cli.context import add_user_option, open_for_user
from app.settings import Settings
from app.usage.selection_log import export_labelled_selections


def add_selection_commands(commands: Any) -> None:
    selections = commands.add_parser("selections", help="what was asked and chosen, of users who want it kept")
    deeds = selections.add_subparsers(dest="selections_command", required=True)
    export = deeds.add_parser("export", help="as a file for `toolscout eval`, whose labels are guesses to be corrected")
    add_user_option(export)
    export.set_defaults(deed=_export)


async def _export(settings: Settings, options: argparse.Namespace) -> int:
    async with (
        open_for_user(settings, options.user) as (container, user),
        container.database.transaction(user.id) as session,
    ):
        for line in await export_labelled_selections(session, user.id):
            print(orjson.dumps(line).decode())
    return 0

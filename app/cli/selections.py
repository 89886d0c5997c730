"""`toolscout selections export`."""

import orjson

from app.cli.context import UserOption, open_for_user, with_settings
from app.cli.group import make_group
from app.demo.seed import DEMO_USER
from app.settings import Settings
from app.usage.selection_log import export_labelled_selections

commands = make_group()
selection_commands = make_group("Work with the selection log.")
commands.add_typer(selection_commands, name="selections")


@selection_commands.command("export")
@with_settings
async def export(settings: Settings, user: UserOption = DEMO_USER) -> int:
    """Print logged messages and the tools that were chosen, as a file for `toolscout eval`.

    The labels are guesses, to be corrected by a person. Messages are logged for users whose setting `selection_log`
    is on.
    """
    async with (
        open_for_user(settings, user) as (container, owner),
        container.database.transaction(owner.id) as session,
    ):
        for line in await export_labelled_selections(session, owner.id):
            print(orjson.dumps(line).decode())
    return 0

"""`toolscout migrate`."""

import asyncio
from functools import partial
from typing import Annotated

import typer

from app.cli.context import with_settings
from app.cli.group import make_group
from app.db.migrate import migrate, migrate_and_distribute
from app.errors import InvalidInput
from app.local_postgres.database import connect_database, refuse_another_database
from app.settings import Settings

commands = make_group()


@commands.command("migrate")
@with_settings
async def migrate_schema(
    settings: Settings,
    revision: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="REVISION",
            help="The target: a release (`0.2.0`), a revision, `-1` for one step back, or `base`.",
        ),
    ] = "head",
    *,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="Also distribute the tables over the nodes of a Citus cluster. Stop the service first.",
        ),
    ] = False,
) -> int:
    """Migrate the database schema.

    Without options the schema is upgraded to the newest revision. `--distributed` can be repeated: it continues a
    distribution that was interrupted, and changes nothing where all is done.
    """
    if distributed and revision != "head":
        raise InvalidInput("--distributed upgrades to the newest revision: leave out --to")
    async with connect_database(settings, create=True) as url:
        await refuse_another_database(settings, url)
        production, setting = settings.environment == "production", settings.direct_database_setting
        if distributed:
            distribute = partial(migrate_and_distribute, url, print, production=production, setting=setting)
            current = await asyncio.to_thread(distribute)
        else:
            upgrade = partial(migrate, url, revision=revision, production=production, setting=setting)
            current = await asyncio.to_thread(upgrade)
    print(f"the schema is at {current}{', distributed' if distributed else ''}")
    return 0

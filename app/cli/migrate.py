"""`toolscout migrate`."""

import asyncio
from typing import Annotated

import typer

from app.cli.context import with_settings
from app.cli.group import make_group
from app.db.migrate import migrate
from app.local_postgres.database import connect_database
from app.settings import Settings

commands = make_group()


@commands.command("migrate")
@with_settings
async def migrate_schema(
    settings: Settings,
    revision: Annotated[
        str, typer.Option("--to", metavar="REVISION", help="The target: a revision, `-1` for one step back, or `base`.")
    ] = "head",
) -> int:
    """Migrate the database schema.

    Without options the schema is upgraded to the newest revision.
    """
    async with connect_database(settings, create=True) as url:
        production = settings.environment == "production"
        current = await asyncio.to_thread(migrate, url, revision=revision, production=production)
    print(f"the schema is at {current}")
    return 0

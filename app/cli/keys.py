"""`toolscout key create` and `toolscout rotate-secrets`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from app.auth.keys import KeyKind, NewKey
from app.cli.context import ACTOR, with_settings
from app.cli.group import make_group
from app.db.engine import Database
from app.db.migrate import migrate
from app.errors import InvalidInput
from app.local_postgres.database import connect_database
from app.local_postgres.secret_key import make_sealer
from app.management.keys import create_key
from app.management.servers import reseal_credentials
from app.schemas.keys import NewKeyBody
from app.settings import Settings

commands = make_group()
key_commands = make_group("Manage API keys.")
commands.add_typer(key_commands, name="key")


@key_commands.command("create")
@with_settings
async def create(
    settings: Settings,
    kind: Annotated[Literal["user", "service", "admin"], typer.Option("--kind", help="The kind of the key.")] = "user",
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="The user that a user key acts for. Created if it does not exist."),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="Restrict a user key to the tools of this project.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A note on what the key is for.")] = None,
    days: Annotated[
        int | None,
        typer.Option("--days", metavar="N", min=1, max=36_500, help="Let the key expire after this number of days."),
    ] = None,
) -> int:
    """Create an API key and print it.

    The key is shown only once: the database stores only its hash.
    """
    if (kind == "user") != (user is not None):
        raise InvalidInput("a user key needs --user; service and admin keys take none")
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    new_key = _validate_key(kind, name, user, project, expires_at)
    async with _open_database(settings) as database:
        _, secret = await create_key(database, new_key, actor=ACTOR, create_user=True)
    print(secret)
    return 0


def _validate_key(
    kind: KeyKind, name: str | None, user_id: str | None, project_id: str | None, expires_at: datetime | None
) -> NewKey:
    """Apply the same rules as the REST route."""
    try:
        body = NewKeyBody(kind=kind, name=name, user_id=user_id, project_id=project_id, expires_at=expires_at)
    except ValidationError as error:
        raise InvalidInput("; ".join(f"{item['loc'][0]}: {item['msg']}" for item in error.errors())) from None
    return NewKey(**body.model_dump())


@commands.command("rotate-secrets")
@with_settings
async def rotate_secrets(settings: Settings) -> int:
    """Encrypt stored credentials with the current key.

    Run it with the new key in TOOLSCOUT_SECRET_KEY and the previous ones in TOOLSCOUT_OLD_SECRET_KEYS. Afterwards the
    previous keys can be removed from the settings.
    """
    if not settings.former_secret_keys:
        raise InvalidInput(
            "there is nothing to rotate from: TOOLSCOUT_OLD_SECRET_KEYS is empty; "
            "run this command with the settings of the service"
        )
    async with _open_database(settings) as database:
        count, total = await reseal_credentials(database, make_sealer(settings), actor=ACTOR)
    print(f"{count} of {total} stored credentials were re-encrypted; all can be read with TOOLSCOUT_SECRET_KEY alone")
    return 0


@asynccontextmanager
async def _open_database(settings: Settings) -> AsyncIterator[Database]:
    """Open the database without a container, because nothing else of the service is needed."""
    async with connect_database(settings) as url:
        await asyncio.to_thread(migrate, url)
        database = Database(url, pool_size=1)
        try:
            yield database
        finally:
            await database.close()

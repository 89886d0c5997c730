"""`toolscout key create` and `toolscout rotate-secrets`: what opens doors, and what seals them."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from app.auth.keys import NewKey
from app.cli.context import ACTOR
from app.db.engine import Database
from app.db.migrate import migrate
from app.errors import InvalidInput
from app.local_postgres.paths import connect_database, make_sealer
from app.management.keys import create_key
from app.management.servers import reseal_credentials
from app.schemas.keys import NewKeyBody
from app.settings import Settings


def add_key_commands(commands: Any) -> None:
    key = commands.add_parser("key", help="API keys").add_subparsers(dest="key_command", required=True)
    creation = key.add_parser("create", help="make a key and print it, once")
    creation.add_argument("--kind", choices=["user", "service", "admin"], default="user", help="default: user")
    creation.add_argument("--user", metavar="ID", help="whom a user key acts for; made if need be")
    creation.add_argument(
        "--project", metavar="ID", help="a user key that sees and runs what this project shows, no more"
    )
    creation.add_argument("--name", help="a note on what the key is for")
    creation.add_argument("--days", type=_days, metavar="N", help="let it expire after N days")
    creation.set_defaults(deed=_create_key)

    rotation = commands.add_parser(
        "rotate-secrets", help="seal stored credentials anew with TOOLSCOUT_SECRET_KEY, after which old keys can go"
    )
    rotation.set_defaults(deed=_rotate)


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 36_500:
        raise argparse.ArgumentTypeError("a whole number of days from 1 on")
    return int(text)


async def _create_key(settings: Settings, options: argparse.Namespace) -> int:
    if (options.kind == "user") != (options.user is not None):
        raise InvalidInput("a user key needs --user; service and admin keys take none")
    new_key = _new_key(options)
    async with _database(settings) as database:
        _, secret = await create_key(database, new_key, actor=ACTOR, create_user=True)
    print(secret)
    return 0


def _new_key(options: argparse.Namespace) -> NewKey:
    """By the same rules as over HTTP."""
    try:
        body = NewKeyBody(
            kind=options.kind,
            name=options.name,
            user_id=options.user,
            project_id=options.project,
            expires_at=None if options.days is None else datetime.now(UTC) + timedelta(days=options.days),
        )
    except ValidationError as error:
        raise InvalidInput("; ".join(f"{item['loc'][0]}: {item['msg']}" for item in error.errors())) from None
    return NewKey(**body.model_dump())


async def _rotate(settings: Settings, _options: argparse.Namespace) -> int:
    if not settings.former_secret_keys:
        raise InvalidInput(
            "TOOLSCOUT_OLD_SECRET_KEYS is empty here, so there is nothing to rotate from: "
            "run this with the service's own settings"
        )
    async with _database(settings) as database:
        count, total = await reseal_credentials(database, make_sealer(settings), actor=ACTOR)
    print(f"{count} of {total} stored credentials sealed anew: all open with TOOLSCOUT_SECRET_KEY alone")
    return 0


@asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Database]:
    """Nothing else of the service is needed."""
    async with connect_database(settings) as url:
        await asyncio.to_thread(migrate, url)
        database = Database(url, pool_size=1)
        try:
            yield database
        finally:
            await database.close()

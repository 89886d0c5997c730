"""What commands share: a container beside a running service, or without one, and the user they act for."""

from argparse import ArgumentParser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.auth.users import User, get_user
from app.container import Container, open_container
from app.demo.seed import DEMO_USER
from app.local_postgres.database import connect_database, is_service_running
from app.settings import Settings

ACTOR = "operator:cli"


def add_user_option(parser: ArgumentParser) -> None:
    parser.add_argument("--user", default=DEMO_USER, metavar="ID", help=f"whose tools (default: {DEMO_USER})")


@asynccontextmanager
async def open_for_user(settings: Settings, user_id: str) -> AsyncIterator[tuple[Container, User]]:
    async with open_with_url(settings) as (container, _):
        async with container.database.system_transaction() as session:
            user = await get_user(session, user_id)
        yield container, user


@asynccontextmanager
async def open_with_url(settings: Settings) -> AsyncIterator[tuple[Container, str]]:
    """Queued runs are left to the service, whose settings count; where there surely is none, they are done here."""
    alone = settings.embedded and not await is_service_running(settings)
    async with (
        connect_database(settings) as url,
        open_container(settings, url, working=alone, serving=False) as container,
    ):
        yield container, url

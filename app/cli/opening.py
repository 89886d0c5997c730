"""What commands share: a container beside a running service, or without one, and the user they act for."""

from argparse import ArgumentParser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.accounts.users import User, get_user
from app.demo.seed import DEMO_USER
from app.settings import Settings
from app.wiring import Container, open_container, reachable_database

ACTOR = "operator:cli"


def add_user_option(parser: ArgumentParser) -> None:
    parser.add_argument("--user", default=DEMO_USER, metavar="ID", help=f"whose tools (default: {DEMO_USER})")


@asynccontextmanager
async def opened(settings: Settings, user_id: str, *, working: bool = False) -> AsyncIterator[tuple[Container, User]]:
    """`working`: takes queued runs itself, in case that no service does."""
    if not working:
        settings = settings.model_copy(update={"index_concurrency": 0})
    async with reachable_database(settings) as url, open_container(settings, url) as container:
        async with container.database.system_transaction() as session:
            user = await get_user(session, user_id)
        yield container, user

"""`toolscout server connect` and `disconnect`."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from app.catalog import servers
from app.catalog.servers import Server
from app.cli.context import ACTOR, UserOption, open_for_user, with_settings
from app.cli.output import print_lines
from app.cli.run_progress import follow_run
from app.container import Container
from app.db.pagination import PageRequest
from app.demo.seed import DEMO_USER
from app.errors import Unavailable
from app.indexing import queue
from app.settings import Settings

_POLL_INTERVAL_S = 0.5

WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until somebody has signed in, and show the index run that follows.")
]
ServerName = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")]


@with_settings
async def connect(
    settings: Settings,
    name: ServerName,
    *,
    wait: WaitOption = False,
    user: UserOption = DEMO_USER,
) -> int:
    """Print the link with which the user signs in to a server (OAuth).

    The service must be running: the browser comes back to it.
    """
    async with open_for_user(settings, user) as (container, owner):
        return await begin_sign_in(settings, container, await find_server(container, owner.id, name), wait=wait)


async def begin_sign_in(settings: Settings, container: Container, server: Server, *, wait: bool) -> int:
    link = await container.connector.start(server.user_id, server.id, ACTOR)
    minutes = max(1, round((link.expires_at - datetime.now(UTC)).total_seconds() / 60))
    print_lines(
        [
            f"to sign in to {server.name}, open this link within {minutes} minutes, while the service runs at "
            f"{settings.base_url}:",
            link.authorization_url,
        ]
    )
    sys.stdout.flush()  # also into a pipe: somebody opens the link while the command waits
    return await _wait_for_sign_in(container, server, link.expires_at) if wait else 0


async def _wait_for_sign_in(container: Container, before: Server, expires_at: datetime) -> int:
    """A sign-in gives the server a new configuration, and queues a run."""
    server = before
    while not (server.signed_in and server.config_version > before.config_version):
        if datetime.now(UTC) >= expires_at:
            raise Unavailable("nobody has signed in, and the link has expired: run the command again")
        await asyncio.sleep(_POLL_INTERVAL_S)
        async with container.database.transaction(before.user_id) as session:
            server = await servers.get_server(session, before.user_id, before.id)
    print_lines([f"{server.name}: signed in"])
    async with container.database.transaction(server.user_id) as session:
        [run] = (await queue.list_runs(session, server.user_id, server.id, PageRequest(1))).items
    return await follow_run(container, server, run)


@with_settings
async def disconnect(settings: Settings, name: ServerName, user: UserOption = DEMO_USER) -> int:
    """Sign the user out of a server: the tokens are revoked and deleted."""
    async with open_for_user(settings, user) as (container, owner):
        server = await find_server(container, owner.id, name)
        await container.connector.disconnect(owner.id, server.id, ACTOR)
    print_lines([f"{server.name}: signed out; its tools stay, and need a new sign-in to run"])
    return 0


async def find_server(container: Container, user_id: str, name: str) -> Server:
    async with container.database.transaction(user_id) as session:
        return await servers.find_server_by_name(session, user_id, name)

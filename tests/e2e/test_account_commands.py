"""`toolscout server connect` and `disconnect` and the Python client, with a real authorization server."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from app.container import Container
from tests.support.accounts import BACKEND, PUBLIC_URL, Account, get_query
from tests.support.calls import result_text
from tests.support.factories import SECRET_KEY, SLOW_MACHINE_ENV
from tests.support.http_server import serve_app
from tests.support.oidc_provider import OidcProvider
from tests.support.paths import ROOT
from tests.support.protected_server import ProtectedServer
from tests.support.python_client import AnyClient, open_client
from toolscout_client import AuthorizationRequired, InvalidInput, NotFound

pytestmark = pytest.mark.needs_npm

RunCommand = Callable[..., Any]


@pytest.fixture
def start_command(
    ada: Account, accounts_service: Container, provider: OidcProvider, server: ProtectedServer, tmp_path: Path
) -> RunCommand:
    """Start a command of `toolscout server` for Ada, in a process beside the service."""
    url = accounts_service.database.engine.url
    environment = {
        **os.environ,
        "DATABASE_URL": url.set(drivername="postgresql").render_as_string(hide_password=False),
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_DATA_DIR": str(tmp_path),
        "TOOLSCOUT_PUBLIC_URL": PUBLIC_URL,
        "TOOLSCOUT_OUTBOUND_ALLOW": f"{provider.address},{server.address}",
        **SLOW_MACHINE_ENV,
    }

    async def start(*arguments: str) -> Process:
        command = [sys.executable, "-m", "app", "server", *arguments, "--user", ada.user.id]
        return await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT)

    return start


async def run(start_command: RunCommand, *arguments: str) -> tuple[int, str]:
    process = await start_command(*arguments)
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()


async def read_link(process: Process, provider: OidcProvider) -> str:
    """Return the link that a command prints, as soon as it does."""
    assert process.stdout is not None
    printed = ""
    async with asyncio.timeout(60):
        while not (found := re.search(rf"^({re.escape(provider.url)}/auth\S+)\n", printed, re.MULTILINE)):
            line = await process.stdout.readline()
            assert line, printed
            printed += line.decode()
    return found[1]


async def test_the_link_of_the_command_connects_and_another_command_disconnects(
    ada: Account, provider: OidcProvider, start_command: RunCommand
) -> None:
    status, printed = await run(start_command, "connect", "notes")
    assert status == 0, printed
    assert f"to sign in to notes, open this link within 10 minutes, while the service runs at {PUBLIC_URL}:" in printed
    await ada.finish(await ada.authorize(printed.split()[-1]))
    await ada.wait_for_status("connected")
    assert result_text(await ada.execute()) == "the notes of ada"

    revocations = len(provider.find_requests("/token/revocation"))
    assert await run(start_command, "disconnect", "notes") == (
        0,
        "notes: signed out; its tools stay, and need a new sign-in to run\n",
    )
    server = await ada.read_server()
    assert (server["signed_in"], server["status"]) == (False, "needs_authorization")
    assert len(provider.find_requests("/token/revocation")) > revocations
    status, printed = await run(start_command, "disconnect", "notes")
    assert (status, "nobody has signed in to this server" in printed) == (1, True)


async def test_a_command_that_waits_prints_the_link_at_once_and_ends_with_the_index_run(
    ada: Account, provider: OidcProvider, start_command: RunCommand
) -> None:
    process = await start_command("connect", "notes", "--wait")
    await ada.finish(await ada.authorize(await read_link(process, provider)))
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed
    assert "notes: signed in\n" in printed.decode()
    assert "notes: 3 added" in printed.decode()
    assert (await ada.read_server())["signed_in"] is True


async def test_a_server_without_a_sign_in_is_refused_by_the_command(ada: Account, start_command: RunCommand) -> None:
    await ada.user.add_server("pushed")
    status, printed = await run(start_command, "connect", "pushed")
    assert (status, "a push server has no sign-in" in printed) == (1, True)


@pytest.fixture(params=["blocking", "asyncio"])
async def client(request: pytest.FixtureRequest, ada: Account, accounts_service: Container) -> AsyncIterator[AnyClient]:
    """The Python client with Ada's key."""
    async with (
        serve_app(accounts_service) as running,
        open_client(request.param, running.url, ada.user.key) as opened,
    ):
        yield opened


async def test_the_client_connects_and_disconnects(ada: Account, client: AnyClient) -> None:
    link = await client(lambda toolscout: toolscout.servers.connect(ada.server_id, f"{BACKEND}/done"))
    done = await ada.finish(await ada.authorize(link.authorization_url))
    assert done.headers["location"].startswith(f"{BACKEND}/done?")
    assert get_query(done.headers["location"])["status"] == "connected"
    await ada.wait_for_status("connected")
    assert (await client(lambda toolscout: toolscout.servers.get(ada.server_id))).signed_in is True
    key = (await ada.user.tools())["list_notes"]["id"]
    assert (await client(lambda toolscout: toolscout.execute(key))).text == "the notes of ada"

    await client(lambda toolscout: toolscout.servers.disconnect(ada.server_id))
    assert (await client(lambda toolscout: toolscout.servers.get(ada.server_id))).signed_in is False
    with pytest.raises(NotFound):
        await client(lambda toolscout: toolscout.servers.disconnect(ada.server_id))
    with pytest.raises(InvalidInput, match="TOOLSCOUT_REDIRECT_ORIGINS"):
        await client(lambda toolscout: toolscout.servers.connect(ada.server_id, "https://elsewhere.example.com"))


async def test_the_clients_error_leads_to_the_sign_in_after_which_the_same_call_runs(
    ada: Account, client: AnyClient, server: ProtectedServer
) -> None:
    await ada.sign_in()
    key = (await ada.user.tools())["list_notes"]["id"]
    await client(lambda toolscout: toolscout.servers.disconnect(ada.server_id))
    calls = len(server.calls)
    with pytest.raises(AuthorizationRequired) as caught:
        await client(lambda toolscout: toolscout.execute(key, idempotency_key="one"))
    error = caught.value
    assert (error.code, error.status, error.server, error.tool) == (
        "AUTHORIZATION_REQUIRED",
        403,
        "notes",
        "list_notes",
    )
    assert error.expires_at is not None
    assert error.authorization_url is not None
    assert len(server.calls) == calls
    await ada.finish(await ada.authorize(error.authorization_url))
    await ada.wait_for_status("connected")
    assert (await client(lambda toolscout: toolscout.execute(key, idempotency_key="one"))).text == "the notes of ada"

"""Fixtures for tests of sign-in, in which others' software takes part: an authorization server and an MCP server."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.accounts import BACKEND, OPERATOR_CLIENT, PUBLIC_URL, Account, new_account
from tests.support.factories import make_database, make_settings, resolve_nothing
from tests.support.oidc_provider import OidcProvider, running_oidc_provider
from tests.support.protected_server import ProtectedServer, running_protected_server


@pytest.fixture(scope="session")
def _running_provider() -> Iterator[OidcProvider]:
    with running_oidc_provider(clients=[OPERATOR_CLIENT | {"redirect_uris": [f"{PUBLIC_URL}/oauth/callback"]}]) as it:
        yield it


@pytest.fixture
def provider(_running_provider: OidcProvider) -> Iterator[OidcProvider]:
    """oidc-provider with the options of the script, whatever the test changes."""
    yield _running_provider
    _running_provider.reset()


@pytest.fixture(scope="session")
def _running_server(_running_provider: OidcProvider) -> Iterator[ProtectedServer]:
    with running_protected_server(_running_provider) as running:
        yield running


@pytest.fixture
def server(_running_server: ProtectedServer) -> Iterator[ProtectedServer]:
    """A server of the SDK that accepts the tokens of `provider`."""
    yield _running_server
    _running_server.reset()


@pytest.fixture(scope="session")
async def accounts_service(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    _running_provider: OidcProvider,
    _running_server: ProtectedServer,
) -> AsyncIterator[Container]:
    settings = make_settings(
        tmp_path_factory.mktemp("data"),
        outbound_allow=f"{_running_provider.address},{_running_server.address}",
        public_url=PUBLIC_URL,
        redirect_origins=BACKEND,
    )
    async with open_container(settings, make_database(postgres), resolve_nothing) as opened:
        yield opened


@pytest.fixture
async def accounts(
    accounts_service: Container, provider: OidcProvider, server: ProtectedServer
) -> AsyncIterator[list[Account]]:
    """Ada and Bob, who have registered the same server and have not signed in."""
    async with AsyncExitStack() as stack:
        opened = [new_account(accounts_service, server.url, name) for name in ("ada", "bob")]
        yield [await stack.enter_async_context(each) for each in opened]


@pytest.fixture
def ada(accounts: list[Account]) -> Account:
    return accounts[0]


@pytest.fixture
def bob(accounts: list[Account]) -> Account:
    return accounts[1]

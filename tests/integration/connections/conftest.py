"""A service, an authorization server that can misbehave, and an MCP server that wants a sign-in to it."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import fields

import pytest

from app.container import Container
from tests.support.authorization_server import AuthorizationServer, running_authorization_server
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService
from tests.support.protected_server import ProtectedServer, running_protected_server
from tests.support.sign_in import SignIn


@pytest.fixture(scope="package")
def running() -> Iterator[tuple[AuthorizationServer, ProtectedServer]]:
    with (
        running_authorization_server() as authorization,
        running_protected_server(authorization) as protected,
    ):
        yield authorization, protected


@pytest.fixture
def authorization(running: tuple[AuthorizationServer, ProtectedServer]) -> AuthorizationServer:
    """The authorization server as it is at the start."""
    server, _ = running
    defaults = AuthorizationServer(server.port)
    for each in fields(AuthorizationServer):
        setattr(server, each.name, getattr(defaults, each.name))
    return server


@pytest.fixture
def protected(
    running: tuple[AuthorizationServer, ProtectedServer], authorization: AuthorizationServer
) -> ProtectedServer:
    server = running[1]
    defaults = ProtectedServer(server.provider, server.port)
    for each in fields(ProtectedServer):
        setattr(server, each.name, getattr(defaults, each.name))
    return server


@pytest.fixture(scope="package")
async def service(
    open_shared_service: OpenService, running: tuple[AuthorizationServer, ProtectedServer]
) -> AsyncIterator[Container]:
    """One service for all tests, which stay apart by their users."""
    allowed = ",".join(server.address for server in running)
    async with open_shared_service(outbound_allow=allowed, redirect_origins="https://chat.example.com") as opened:
        yield opened


@pytest.fixture
async def owner(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as created:
        yield created


@pytest.fixture
def sign_in(
    service: Container, owner: TestUser, authorization: AuthorizationServer, protected: ProtectedServer
) -> SignIn:
    return SignIn(service, owner, authorization, protected)

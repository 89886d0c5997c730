"""Fixtures that run each test of the client twice: with the blocking client, in a thread, and the asyncio client."""

from collections.abc import AsyncIterator

import pytest

from tests.support.clients import TestUser
from tests.support.factories import ADMIN_KEY
from tests.support.python_client import AnyClient, Kind, open_client


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
async def any_client(kind: Kind, address: str, user: TestUser) -> AsyncIterator[AnyClient]:
    """A client with the key of a user."""
    async with open_client(kind, address, user.key) as opened:
        yield opened


@pytest.fixture
async def administrator(kind: Kind, address: str) -> AsyncIterator[AnyClient]:
    async with open_client(kind, address, ADMIN_KEY) as opened:
        yield opened

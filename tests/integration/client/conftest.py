"""Fixtures that run each test of the client twice: with the blocking client, in a thread, and the asyncio client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from tests.support.clients import TestUser
from tests.support.factories import ADMIN_KEY
from toolscout_client import AsyncToolscout, Toolscout

Kind = Literal["blocking", "asyncio"]
Operation = Callable[[Any], Any]


class AnyClient:
    """Runs an operation on either client: `await any_client(lambda client: client.discover("…"))`."""

    def __init__(self, client: Toolscout | AsyncToolscout) -> None:
        self.client = client

    async def __call__(self, operation: Operation) -> Any:
        if isinstance(self.client, Toolscout):
            return await asyncio.to_thread(operation, self.client)  # the application answers in this thread
        return await operation(self.client)

    async def all(self, operation: Operation) -> list[Any]:
        if isinstance(self.client, Toolscout):
            return await asyncio.to_thread(lambda: list(operation(self.client)))
        return [item async for item in operation(self.client)]

    def for_user(self, user_id: str) -> "AnyClient":
        return AnyClient(self.client.for_user(user_id))


@asynccontextmanager
async def open_client(kind: Kind, url: str, key: str, **options: Any) -> AsyncIterator[AnyClient]:
    options = {"verify": False, **options}  # no TLS here, and loading all certificates takes longer than a test
    if kind == "blocking":
        with Toolscout(url, key, **options) as blocking:
            yield AnyClient(blocking)
    else:
        async with AsyncToolscout(url, key, **options) as toolscout:
            yield AnyClient(toolscout)


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


async def expect_error(operation: Awaitable[Any], error_type: type[Exception]) -> Any:
    with pytest.raises(error_type) as caught:
        await operation
    assert type(caught.value) is error_type
    return caught.value

"""Tests of the client run twice: with the one that blocks, in a thread of its own, and with the one that is awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from tests.support.clients import TestUser
from tests.support.factories import ADMIN_KEY
from toolscout_client import AsyncToolscout, Toolscout

Kind = Literal["blocking", "awaited"]
Ask = Callable[[Any], Any]


class Speaker:
    """`await speaker(lambda toolscout: toolscout.discover("…"))`, whichever client it is."""

    def __init__(self, client: Toolscout | AsyncToolscout) -> None:
        self.client = client

    async def __call__(self, ask: Ask) -> Any:
        if isinstance(self.client, Toolscout):
            return await asyncio.to_thread(ask, self.client)  # the application answers in this thread
        return await ask(self.client)

    async def all(self, ask: Ask) -> list[Any]:
        if isinstance(self.client, Toolscout):
            return await asyncio.to_thread(lambda: list(ask(self.client)))
        return [item async for item in ask(self.client)]

    def for_user(self, user_id: str) -> "Speaker":
        return Speaker(self.client.for_user(user_id))


@asynccontextmanager
async def speaking(kind: Kind, url: str, key: str, **options: Any) -> AsyncIterator[Speaker]:
    options = {"verify": False, **options}  # nothing here is TLS, and reading all certificates takes longer than a test
    if kind == "blocking":
        with Toolscout(url, key, **options) as toolscout:
            yield Speaker(toolscout)
    else:
        async with AsyncToolscout(url, key, **options) as awaited:
            yield Speaker(awaited)


@pytest.fixture(params=["blocking", "awaited"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
async def speaker(kind: Kind, address: str, user: TestUser) -> AsyncIterator[Speaker]:
    """With a user's own key."""
    async with speaking(kind, address, user.key) as opened:
        yield opened


@pytest.fixture
async def administrator(kind: Kind, address: str) -> AsyncIterator[Speaker]:
    async with speaking(kind, address, ADMIN_KEY) as opened:
        yield opened


async def failure(asking: Awaitable[Any], kind: type[Exception]) -> Any:
    with pytest.raises(kind) as caught:
        await asking
    assert type(caught.value) is kind
    return caught.value

"""A real Toolscout with a user whose tools really run, and its client, for the adapters of all frameworks."""

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from app.container import Container
from tests.support.clients import TestUser, get_app
from tests.support.mcp_server import FakeMcpServer
from tests.support.weather_server import add_weather_tools
from toolscout_client import AsyncToolscout, Toolscout

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise importing litellm fetches a list of prices


@pytest.fixture
async def weather(user: TestUser, mcp: FakeMcpServer) -> FakeMcpServer:
    """The user's only server, `weather`. Its `calls` are the tools that ran."""
    await user.connect(add_weather_tools(mcp), "weather")
    return mcp


@pytest.fixture
async def toolscout(address: str, user: TestUser) -> AsyncIterator[AsyncToolscout]:
    """The asyncio client with the user's key."""
    # no TLS here, and loading all certificates takes longer than a test
    async with AsyncToolscout(address, user.key, verify=False) as client:
        yield client


@pytest.fixture
def blocking_toolscout(address: str, user: TestUser) -> Iterator[Toolscout]:
    """The blocking client. Use it in a thread: the application answers in the thread of the test."""
    with Toolscout(address, user.key, verify=False) as client:
        yield client


@pytest.fixture
async def unreachable_toolscout() -> AsyncIterator[AsyncToolscout]:
    """A client of a Toolscout that is down."""
    async with AsyncToolscout("http://127.0.0.1:1", "a-key", retries=0, verify=False) as client:
        yield client


@pytest.fixture
def confirmed_destructive(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator wants destructive calls to be confirmed (TOOLSCOUT_CONFIRM_DESTRUCTIVE)."""
    current: Container = get_app(container).state.container  # a reload replaces it
    executor = replace(current.executor, confirm_destructive=True)
    monkeypatch.setitem(current.__dict__, "executor", executor)  # a frozen dataclass

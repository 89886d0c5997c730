"""Clients of the console: signed out, signed in as the test's user, and signed in as the administrator."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.container import Container
from tests.support.clients import TestUser, open_client
from tests.support.console_client import ConsoleClient, open_console
from tests.support.factories import ADMIN_KEY


@pytest.fixture
async def anonymous(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a cookie, made for one test: a cookie must not outlast it."""
    async with open_client(container) as http:
        yield http


@pytest.fixture
async def console(container: Container, user: TestUser) -> AsyncIterator[ConsoleClient]:
    async with open_console(container, user.key) as signed_in:
        yield signed_in


@pytest.fixture
async def admin_console(container: Container) -> AsyncIterator[ConsoleClient]:
    async with open_console(container, ADMIN_KEY) as signed_in:
        yield signed_in

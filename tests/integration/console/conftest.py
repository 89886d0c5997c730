"""Clients of the console: signed out, signed in as the test's user, and signed in as the administrator."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.container import Container
from tests.conftest import ADMIN_KEY, TestUser, client_of
from tests.support.console_client import ConsoleClient, open_console


@pytest.fixture
async def anonymous(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a cookie, made for one test: a cookie must not outlast it."""
    async with client_of(container) as http:
        yield http


@pytest.fixture
async def console(container: Container, user: TestUser) -> AsyncIterator[ConsoleClient]:
    async with open_console(container, user.key) as signed_in:
        yield signed_in


@pytest.fixture
async def admin_console(container: Container) -> AsyncIterator[ConsoleClient]:
    async with open_console(container, ADMIN_KEY) as signed_in:
        yield signed_in

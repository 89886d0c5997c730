"""Signed in as a user of its own, and as the administrator."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.container import Container
from tests.conftest import ADMIN_KEY, TestUser, client_of
from tests.support.console_client import Visitor, visitor_of


@pytest.fixture
async def browser(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    """With no cookie yet, and with none that would outlast the test."""
    async with client_of(container) as opened:
        yield opened


@pytest.fixture
async def visitor(container: Container, user: TestUser) -> AsyncIterator[Visitor]:
    async with visitor_of(container, user.key) as signed_in:
        yield signed_in


@pytest.fixture
async def administrator(container: Container) -> AsyncIterator[Visitor]:
    async with visitor_of(container, ADMIN_KEY) as signed_in:
        yield signed_in

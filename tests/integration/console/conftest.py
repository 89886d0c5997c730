"""Signed in as a user of its own, and as the administrator."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.container import Container
from tests.support.clients import TestUser, open_client
from tests.support.console_client import Visitor, visitor_of
from tests.support.factories import ADMIN_KEY


@pytest.fixture
async def browser(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    """With no cookie yet, and with none that would outlast the test."""
    async with open_client(container) as opened:
        yield opened


@pytest.fixture
async def visitor(container: Container, user: TestUser) -> AsyncIterator[Visitor]:
    async with visitor_of(container, user.key) as signed_in:
        yield signed_in


@pytest.fixture
async def administrator(container: Container) -> AsyncIterator[Visitor]:
    async with visitor_of(container, ADMIN_KEY) as signed_in:
        yield signed_in

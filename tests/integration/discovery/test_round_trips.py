"""How often a discovery waits for Postgres, from authentication to the answer."""

from collections.abc import AsyncIterator
from functools import partial

import pytest

from app.container import Container
from app.discovery.discover import discover
from app.discovery.request import DiscoveryRequest
from app.search.query import parse_query
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService, tool
from tests.support.round_trips import count_least_round_trips, counted_round_trips

TOOLS = [tool("show_file", "show a file"), tool("send_mail", "send an email")]


@pytest.fixture
async def in_postgres(open_service: OpenService) -> AsyncIterator[Container]:
    async with open_service(snapshot_mb=0) as container:
        yield container


async def send(container: Container, user: TestUser, message: str, project_id: str | None = None) -> None:
    caller = await container.authenticator.authenticate(user.key, None)
    await discover(container.discoverer, caller, DiscoveryRequest(parse_query(message), project_id))


async def count_trips(container: Container, user: TestUser, message: str, project_id: str | None = None) -> int:
    with counted_round_trips() as trips:
        await send(container, user, message, project_id)
    return trips.count


async def test_a_search_in_memory_takes_one_round_trip(container: Container, user: TestUser) -> None:
    await user.add_tools(*TOOLS)
    for _ in range(2):
        await count_trips(container, user, "show the file")
        await container.discoverer.snapshots.wait_loaded()
    for message in ("show the file", "send an email to Ann"):
        assert await count_least_round_trips(partial(send, container, user, message)) == 1


async def test_a_known_question_takes_two_round_trips_in_postgres(in_postgres: Container) -> None:
    async with new_user(in_postgres) as user:
        await user.add_tools(*TOOLS)
        await count_trips(in_postgres, user, "show the file")
        assert await count_trips(in_postgres, user, "show the file") == 2


async def test_a_user_who_was_away_takes_four_round_trips(in_postgres: Container) -> None:
    """To authenticate, to read the project, counts, tags and examples together, to search, and for the definitions."""
    async with new_user(in_postgres) as user:
        await user.add_tools(*TOOLS)
        created = await user.http.post("/projects", json={"name": "all", "server_ids": None, "optimization": "hybrid"})
        answer = await user.discover("show the file", fill=True)
        body = {"discovery_id": answer["discovery_id"], "tool_key": answer["tools"][0]["tool_key"]}
        assert (await user.http.post("/feedback", json={**body, "outcome": "succeeded"})).status_code == 204
        project_id = created.json()["id"]
        assert await count_trips(in_postgres, user, "send an email to Ann", project_id) <= 4
        assert await count_trips(in_postgres, user, "send an email to Ann", project_id) == 2

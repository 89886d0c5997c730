"""The Python client searches the registry and registers servers of it."""

from collections.abc import AsyncIterator

import pytest

from app.container import Container
from tests.support.clients import TestUser
from tests.support.http_server import serve_app
from tests.support.mcp_server import FakeMcpServer
from tests.support.registry_server import FakeRegistry, entry, remote
from toolscout_client import AddedServer, AsyncToolscout, InvalidInput, RegistryServer


@pytest.fixture
async def client(service: Container, searcher: TestUser) -> AsyncIterator[AsyncToolscout]:
    async with serve_app(service) as app, AsyncToolscout(app.url, searcher.key, verify=False) as opened:
        yield opened


async def test_a_server_is_found_and_added(
    client: AsyncToolscout, registry: FakeRegistry, upstream: FakeMcpServer
) -> None:
    header = {"name": "X-Key", "isRequired": True, "isSecret": True}
    registry.reset(
        *(entry(f"com.acme/s-{number:02}") for number in range(30)),
        entry("com.acme/weather", remote(upstream.url, headers=[header])),
    )
    found: list[RegistryServer] = [server async for server in client.registry.search("com.acme")]
    assert (len(found), found[-1].name) == (31, "com.acme/weather")
    one = await client.registry.get("com.acme/weather")
    assert one == found[-1]
    assert [(each.name, each.required) for each in one.remotes[0].inputs] == [("X-Key", True)]
    with pytest.raises(InvalidInput) as caught:
        await client.servers.add_from_registry("com.acme/weather")
    assert [each["loc"] for each in caught.value.errors or []] == [["headers", "X-Key"]]
    added: AddedServer = await client.servers.add_from_registry("com.acme/weather", headers={"X-Key": "k"}, name="w")
    assert (added.server.name, added.server.url, added.notes) == ("w", upstream.url, [])

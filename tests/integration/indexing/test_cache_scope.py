"""A user cannot tell from an index run or a search whether another user has the same texts."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.clients import TestUser, new_user, open_client
from tests.support.credential_server import running_credential_server
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import ADMIN_KEY, OpenService, outbound_allow
from tests.support.mcp_server import FakeMcpServer
from tests.support.own_texts import edit_tool
from tests.support.worker_steps import unheard


@pytest.fixture
async def admin(service: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as client:
        yield client


def take_texts(fake: FakeEmbeddingServer) -> list[str]:
    """Return the texts that the embedder was called with since the last time."""
    texts = [text for request in fake.requests for text in request]
    fake.requests = []
    return texts


async def test_a_text_that_another_user_has_pushed_is_embedded_again(
    carol: TestUser, dave: TestUser, fake: FakeEmbeddingServer
) -> None:
    secret = unheard("secret")
    first = await carol.push(await carol.add_server(), [secret])
    texts = take_texts(fake)
    second = await dave.push(await dave.add_server(), [secret])
    assert len(texts) == 1
    assert take_texts(fake) == texts
    assert (second["counts"], second["progress"], second["warnings"]) == (
        first["counts"],
        first["progress"],
        first["warnings"],
    )


async def test_a_text_that_the_same_user_has_pushed_is_not_embedded_again(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    own = unheard("own")
    await carol.http.delete(f"/servers/{await carol.add_tools(own)}")
    take_texts(fake)
    run = await carol.push(await carol.add_server(), [own])
    assert (run["counts"]["added"], run["counts"]["embedded"]) == (1, 0)
    assert take_texts(fake) == []


async def test_a_user_who_is_created_again_does_not_profit_from_the_predecessors_texts(
    service: Container, admin: httpx.AsyncClient, fake: FakeEmbeddingServer
) -> None:
    secret, user_id = unheard("secret"), "created-again"
    async with new_user(service, user_id) as user:
        first = await user.push(await user.add_server(), [secret])
    texts = take_texts(fake)
    assert (await admin.delete(f"/users/{user_id}")).status_code == 204
    async with new_user(service, user_id) as user:
        second = await user.push(await user.add_server(), [secret])
    assert len(texts) == 1
    assert take_texts(fake) == texts
    assert second["counts"] == first["counts"]


async def list_from(user: TestUser, server: FakeMcpServer, **fields: Any) -> dict[str, Any]:
    """Register the server and return the counts of the run that lists its tools."""
    server_id = await user.add_server("public", transport=server.transport, url=server.url, **fields)
    run: dict[str, Any] = (await user.http.get(f"/servers/{server_id}/runs")).json()["items"][0]
    events = await user.http.get(f"/runs/{run['id']}/events")
    assert events.status_code == 200
    counts: dict[str, Any] = (await user.http.get(f"/runs/{run['id']}")).json()["counts"]
    return counts


async def test_tools_of_a_public_server_are_embedded_once_and_counted_for_each_user(
    carol: TestUser, dave: TestUser, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools = [unheard("a"), unheard("b")]
    counts = await list_from(carol, mcp)
    assert (counts["added"], counts["embedded"], len(take_texts(fake))) == (2, 2, 2)
    assert await list_from(dave, mcp) == counts
    assert take_texts(fake) == []
    assert all(each["embedded"] for each in (await dave.tools()).values())


async def test_tools_of_a_server_with_credentials_are_embedded_for_each_user(
    carol: TestUser, dave: TestUser, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools = [unheard("a")]
    counts = await list_from(carol, mcp)
    texts = take_texts(fake)
    assert await list_from(dave, mcp, headers={"X-Team": "blue"}) == counts
    assert take_texts(fake) == texts


@pytest.mark.parametrize("issues", [True, False], ids=["issued headers", "no credential service"])
async def test_tools_that_may_be_listed_with_issued_headers_are_embedded_for_each_user(
    open_service: OpenService, fake: FakeEmbeddingServer, mcp: FakeMcpServer, *, issues: bool
) -> None:
    mcp.tools = [unheard("a")]
    with running_credential_server() as credentials:
        credentials.headers[mcp.url] = {"X-Team": "blue"}
        settings = {**fake.settings(), **(credentials.settings() if issues else {})}
        async with (
            open_service(outbound_allow=outbound_allow(mcp), **settings) as service,
            new_user(service) as first,
            new_user(service) as second,
        ):
            take_texts(fake)  # of the start
            counts = await list_from(first, mcp)
            texts = take_texts(fake)
            assert len(texts) == 1
            assert await list_from(second, mcp) == counts
            assert take_texts(fake) == (texts if issues else [])


async def test_texts_that_users_write_for_a_tool_of_a_public_server_are_private(
    carol: TestUser, dave: TestUser, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    written = unheard("own")["description"]
    mcp.tools = [unheard("a")]
    for user in (carol, dave):
        await list_from(user, mcp)
    take_texts(fake)
    documents = []
    for user in (carol, dave, dave):
        await edit_tool(user, "a", description=written)
        documents.append(take_texts(fake))
        await edit_tool(user, "a", description=None)
        assert take_texts(fake) == []  # the server's text is still in the public scope
    assert len(documents[0]) == 1
    assert documents == [documents[0], documents[0], []]


async def test_a_list_that_is_pushed_to_a_public_server_is_private(
    carol: TestUser, dave: TestUser, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools = [unheard("a")]
    await list_from(carol, mcp)
    texts = take_texts(fake)
    pushed = await dave.add_server("public", transport=mcp.transport, url=mcp.url, enabled=False)
    await dave.push(pushed, mcp.tools)
    assert take_texts(fake) == texts


async def test_inline_tools_that_another_user_has_sent_are_embedded_again(
    carol: TestUser, dave: TestUser, fake: FakeEmbeddingServer
) -> None:
    secret = unheard("secret")
    sent = {"toolKey": "k", "toolName": "secret", "serverName": "s", "description": secret["description"]}
    body = {"query": ["find it"], "tools": [sent]}
    documents = []
    for user in (carol, dave, dave):
        assert (await user.http.post("/catalog/search", json=body)).status_code == 200
        documents.append([text for text in take_texts(fake) if secret["description"] in text])
    assert len(documents[0]) == 1
    assert documents == [documents[0], documents[0], []]

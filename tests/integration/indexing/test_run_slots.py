"""Servers that never answer, and users with many runs, delay nobody else."""

import asyncio
from typing import Any

import httpx

from app.container import Container
from tests.support.clients import TestUser, new_user, open_client
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import ADMIN_KEY, OpenService, outbound_allow
from tests.support.mcp_server import FakeMcpServer, Listener, listener
from tests.support.worker_steps import (
    Hand,
    asked,
    finished,
    make_slots,
    numbered,
    rows,
    send,
    unheard,
    until,
    working,
)

USERS = 36


async def register_for_many(container: Container, hanging: Listener) -> None:
    """Let many users register the same server, each with a credential: without one, they would wait for one list."""
    server: dict[str, Any] = {
        "name": "provider",
        "transport": "streamable_http",
        "url": f"http://127.0.0.1:{hanging.port}/mcp",
    }

    async def register(admin: httpx.AsyncClient, number: int) -> None:
        body = server | {"headers": {"X-Key": str(number)}}
        answer = await admin.post("/servers", json=body, headers={"X-User-Id": f"victim-{number}"})
        assert answer.status_code == 201, answer.text

    async with open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        await asyncio.gather(*(register(admin, number) for number in range(USERS)))


async def count_by_state(container: Container, hanging: Listener) -> dict[str, int]:
    statement = """
        SELECT r.state, count(*) FROM index_runs r JOIN mcp_servers s ON s.user_id = r.user_id AND s.id = r.server_id
        WHERE s.url LIKE %(url)s GROUP BY r.state
    """
    return dict(await rows(container, statement, url=f"%:{hanging.port}/mcp"))


async def index_both_ways(user: TestUser, server: FakeMcpServer) -> dict[str, Any]:
    """Push tools, list the server, and return all tools."""
    server.tools = numbered(2)
    await user.add_tools(unheard("pushed"), server="pushed")
    await user.connect(server)
    return await user.tools()


async def test_a_provider_that_hangs_for_many_users_delays_no_push_and_no_other_provider(
    open_service: OpenService, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    with listener() as hanging:
        allowed = f"{outbound_allow(mcp)},127.0.0.1:{hanging.port}"
        options = fake.settings(outbound_allow=allowed, connect_timeout_s=300)
        async with open_service(**options) as container, new_user(container) as user:
            await register_for_many(container, hanging)

            async def has_taken_its_share() -> bool:
                states = await count_by_state(container, hanging)
                return states == {"running": 8, "queued": USERS - 8} and hanging.connects == 8

            await until(has_taken_its_share)
            assert set(await index_both_ways(user, mcp)) == {"pushed", "tool_000", "tool_001"}
            assert await has_taken_its_share(), "the provider hung all the time"


async def test_hanging_listings_that_take_all_slots_delay_no_push(
    open_service: OpenService, fake: FakeEmbeddingServer
) -> None:
    with listener() as hanging:
        options = fake.settings(
            outbound_allow=f"127.0.0.1:{hanging.port}",
            connect_timeout_s=300,
            listing_concurrency=3,
            listings_per_host=3,
            index_concurrency=1,
        )
        async with open_service(**options) as container, new_user(container) as user:
            await register_for_many(container, hanging)

            async def is_full() -> bool:
                return (await count_by_state(container, hanging)).get("running") == 3

            await until(is_full)
            await user.add_tools(unheard("pushed"))
            assert set(await user.tools()) == {"pushed"}
            assert await is_full()


async def test_the_pushes_of_one_user_leave_a_slot_for_others(
    hand: Hand, alice: TestUser, bob: TestUser, fake: FakeEmbeddingServer
) -> None:
    runs = [await send(alice, await alice.add_server(f"server-{number}"), [unheard("a")]) for number in range(3)]
    fake.mode = "hang"
    async with working(hand, make_slots(pushes=2)):
        await asked(fake)
        fake.mode = "ok"
        other = await send(bob, await bob.add_server(), [unheard("b")])
        assert (await finished(bob, other["id"]))["state"] == "succeeded"
        states = [(await hand.run_row(run["id"], "state"))[0] for run in runs]
        assert states == ["running", "queued", "queued"]
        fake.release()
        assert [(await finished(alice, run["id"]))["state"] for run in runs] == ["succeeded"] * 3

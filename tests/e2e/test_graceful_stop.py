"""The real service, told to stop while it works: whoever was let in gets an answer."""

import asyncio
import signal
from pathlib import Path

import httpx

from bench.service import running_service
from tests.support.factories import outbound_allow, tool
from tests.support.mcp_client import connect_client, get_text
from tests.support.mcp_server import running_mcp_server
from tests.support.worker_steps import until

STALLED = {"content": [{"type": "text", "text": "done after all"}]}


async def test_calls_under_way_are_answered_when_the_service_is_told_to_stop(tmp_path: Path) -> None:
    with (
        running_mcp_server() as mcp_pool,
        running_service(tmp_path, {"TOOLSCOUT_OUTBOUND_ALLOW": outbound_allow(mcp_pool)}) as service,
        service.admin() as admin,
    ):
        mcp_pool.tools, mcp_pool.on_call = [tool("work")], {"work": lambda _: STALLED}
        mcp_pool.stalled = {"work"}
        key = admin.post("/keys", json={"kind": "user", "user_id": make_user(admin)}).json()["key"]
        bearer = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=service.url, headers=bearer, timeout=30) as http:
            server = {"name": "slow", "transport": mcp_pool.transport, "url": mcp_pool.url}
            server_id = (await http.post("/servers", json=server)).json()["id"]
            await http.post(f"/servers/{server_id}/reindex", params={"wait": True})
            [found] = (await http.get("/tools")).json()["items"]
            async with (
                connect_client(f"{service.url}/mcp", key) as newer,
                connect_client(f"{service.url}/mcp", key, "legacy") as older,
            ):
                arguments = {"toolKey": found["id"]}
                for each in (newer, older):
                    await each.list_tools()  # or they would ask for it after the call, when nobody is there any more
                calls = [asyncio.create_task(each.call_tool("tool_execute", arguments)) for each in (newer, older)]
                over_rest = asyncio.create_task(http.post("/execute", json={"tool_key": found["id"]}))

                async def all_have_arrived() -> bool:
                    return len(mcp_pool.calls) == 3

                await until(all_have_arrived)

                async def nobody_else_is_let_in() -> bool:
                    try:
                        await newcomer.get("/healthz")
                    except httpx.TransportError as error:
                        return isinstance(error, httpx.ConnectError)
                    return False

                service.process.send_signal(signal.SIGTERM)
                async with httpx.AsyncClient(base_url=service.url, headers={"Connection": "close"}) as newcomer:
                    await until(nobody_else_is_let_in)
                mcp_pool.stalled = set()
                assert [get_text(each) for each in await asyncio.gather(*calls)] == ["done after all"] * 2
                assert (await over_rest).json()["result"]["content"] == STALLED["content"]
        assert await asyncio.to_thread(service.process.wait, 60) == 0
        log = (tmp_path / "service.log").read_text()
        assert 0 < log.index('"stopping"') < log.index('"stopped"')


def make_user(admin: httpx.Client) -> str:
    user_id: str = admin.post("/users", json={"id": "patient"}).json()["id"]
    return user_id

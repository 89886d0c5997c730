"""Tests of a graceful stop: the real service answers running calls after SIGTERM."""

import asyncio
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from bench.service import running_service
from tests.support.calls import wait_for_calls
from tests.support.factories import outbound_allow, tool
from tests.support.http_server import make_request
from tests.support.mcp_client import connect_client, get_text
from tests.support.mcp_server import running_mcp_server
from tests.support.worker_steps import until

pytestmark = pytest.mark.no_retry

RESULT = {"content": [{"type": "text", "text": "done"}]}


async def test_running_calls_are_answered_after_sigterm(tmp_path: Path) -> None:
    with (
        running_mcp_server() as mcp,
        running_service(tmp_path, {"TOOLSCOUT_OUTBOUND_ALLOW": outbound_allow(mcp)}) as service,
        service.admin() as admin,
    ):
        mcp.tools, mcp.on_call = [tool("work")], {"work": lambda _: RESULT}
        mcp.stalled = {"work"}
        key = admin.post("/keys", json={"kind": "user", "user_id": create_user(admin)}).json()["key"]
        bearer = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=service.url, headers=bearer, timeout=30) as http:
            server = {"name": "slow", "transport": mcp.transport, "url": mcp.url}
            server_id = (await http.post("/servers", json=server)).json()["id"]
            await http.post(f"/servers/{server_id}/reindex", params={"wait": True})
            [found] = (await http.get("/tools")).json()["items"]
            async with (
                connect_client(f"{service.url}/mcp", key) as newer,
                connect_client(f"{service.url}/mcp", key, "legacy") as older,
            ):
                arguments = {"toolKey": found["id"]}
                for client in (newer, older):
                    await client.list_tools()  # or the client lists the tools after the call, when the service is gone
                calls = [asyncio.create_task(client.call_tool("tool_execute", arguments)) for client in (newer, older)]
                rest_call = asyncio.create_task(http.post("/execute", json={"tool_key": found["id"]}))
                await wait_for_calls(mcp, 3)

                async def connections_are_refused() -> bool:
                    try:
                        await new_client.get("/healthz")
                    except httpx.TransportError as error:
                        return isinstance(error, httpx.ConnectError)
                    return False

                service.process.send_signal(signal.SIGTERM)
                async with httpx.AsyncClient(base_url=service.url, headers={"Connection": "close"}) as new_client:
                    await until(connections_are_refused)
                mcp.stalled = set()
                assert [get_text(result) for result in await asyncio.gather(*calls)] == ["done"] * 2
                assert (await rest_call).json()["result"]["content"] == RESULT["content"]
        assert await asyncio.to_thread(service.process.wait, 60) == 0
        log = (tmp_path / "service.log").read_text()
        assert 0 < log.index('"stopping"') < log.index('"stopped"')


def create_user(admin: httpx.Client) -> str:
    user_id: str = admin.post("/users", json={"id": "alice"}).json()["id"]
    return user_id


def test_clients_that_neither_send_nor_read_do_not_delay_the_stop(tmp_path: Path) -> None:
    settings = {"TOOLSCOUT_BODY_TIMEOUT_S": "600", "TOOLSCOUT_HEAD_TIMEOUT_S": "300"}
    with running_service(tmp_path, settings) as service, service.admin() as admin, ExitStack() as stack:
        user_id = create_user(admin)
        key = admin.post("/keys", json={"kind": "user", "user_id": user_id}).json()["key"]
        bearer = f"Authorization: Bearer {key}"
        server = admin.post("/servers", json={"name": "x", "transport": "push"}, headers={"X-User-Id": user_id}).json()
        half_body = make_request("/discover", bearer, body=b'{"query": ', content_length=900)
        half_push = make_request(
            f"/servers/{server['id']}/tools", bearer, method="PUT", body=b"{", content_length=9_000
        )
        unread = b"GET /docs/static/swagger/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60
        half_head = b"POST /discover HTTP/1.1\r\nHost: localh"
        for sent in (half_body, half_push, unread, half_head):
            for _ in range(20):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                client.sendall(sent)

        def all_have_arrived() -> bool:
            lines = admin.get("/metrics").text.splitlines()
            return any(line.startswith("toolscout_requests_in_flight 60") for line in lines)

        deadline = time.monotonic() + 30
        while not all_have_arrived():
            assert time.monotonic() < deadline
        started = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
        assert time.monotonic() - started < 10
        log = (tmp_path / "service.log").read_text()
        assert '"stopped"' in log
        assert "Traceback" not in log

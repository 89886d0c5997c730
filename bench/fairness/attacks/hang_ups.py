"""Attacks of callers who start something long and hang up."""

import asyncio

import orjson

from bench.fairness.attacks.base import Attack
from bench.fairness.connections import make_head, send_and_hang_up
from bench.fairness.stage import Stage

HANGING_SERVERS = 40
REINDEXES = 4
CALLERS = 20
CALL_TIMEOUT_MS = 100_000
HOLD_S = 0.5


def register_hanging_tool(stage: Stage) -> None:
    with stage.attacker() as client:
        body = {"name": "hanging", "transport": "streamable_http", "url": f"http://127.0.0.1:{stage.ports.hanging}/mcp"}
        server = client.post("/servers", json=body).raise_for_status().json()
        run = client.post(f"/servers/{server['id']}/reindex", params={"wait": True}).raise_for_status().json()
        assert run["state"] == "succeeded", run


async def hang_up_on_calls(stage: Stage) -> None:
    body = orjson.dumps({"tool_key": "hanging.hang", "arguments": {}, "timeout_ms": CALL_TIMEOUT_MS})
    headers = [("Authorization", f"Bearer {stage.keys.attacker}")]
    request = make_head("/execute", len(body), headers) + body
    async with asyncio.TaskGroup() as tasks:
        for number in range(CALLERS):
            # one after the other: they do not know of each other
            delay_s = number * HOLD_S / CALLERS
            tasks.create_task(send_and_hang_up(stage.service.port, request, HOLD_S, delay_s))


def register_hanging_servers(stage: Stage) -> None:
    with stage.attacker() as client:
        for number in range(HANGING_SERVERS):
            url = f"http://127.0.0.1:{stage.ports.silent}/{number}"
            body = {"name": f"silent-{number}", "transport": "streamable_http", "url": url}
            client.post("/servers", json=body).raise_for_status()


async def wait_for_reindex(stage: Stage) -> None:
    request = make_head("/reindex?wait=true", 0, [("Authorization", f"Bearer {stage.keys.attacker}")])
    async with asyncio.TaskGroup() as tasks:
        for _ in range(REINDEXES):
            tasks.create_task(send_and_hang_up(stage.service.port, request, hold_s=60.0))


ATTACKS = [
    Attack(
        "execute-hang-up",
        f"{CALLERS} callers of a tool that hangs, who hang up after {HOLD_S} s and call again",
        hang_up_on_calls,
        register_hanging_tool,
    ),
    Attack(
        "reindex-wait",
        f"{REINDEXES} times POST /reindex?wait=true on {HANGING_SERVERS} servers that hang",
        wait_for_reindex,
        register_hanging_servers,
    ),
]

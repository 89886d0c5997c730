"""Probes: memory that grows, what a push tells about other tenants, and a stop with open requests."""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from bench.fairness.attacks.base import Finding, Probe
from bench.fairness.attacks.strangers import invent_key
from bench.fairness.connections import hold_open, make_head
from bench.fairness.stage import PUSHED_SERVER, Stage
from bench.load.traffic import MESSAGE, make_question

CACHE_REQUESTS, CACHE_TOOLS, CACHE_QUESTIONS = 11, 2_000, 60
MAX_CACHE_GROWTH_MB = 64.0
"""What the cache may hold."""
ORACLE_PUSHES = 12
MAX_ORACLE_RATIO = 1.3
HALF_BODIES, UNREAD_STREAMS = 60, 20
MAX_STOP_S = 10.0


def fill_inline_cache(stage: Stage) -> Finding:
    """Send many different tools to `/catalog/search`, and see how much memory they keep.

    The first request does not count: reading its 10 MB takes memory that Python keeps for the next.
    """
    with stage.attacker() as client:
        _search_tools(client, stage.next_number(), CACHE_TOOLS)
        before = stage.read_memory_mb()
        for _ in range(CACHE_REQUESTS - 1):
            _search_tools(client, stage.next_number(), CACHE_TOOLS)
    growth_mb = stage.read_memory_mb() - before
    return Finding({"memory_growth_mb": round(growth_mb)}, growth_mb <= MAX_CACHE_GROWTH_MB)


def _search_tools(client: httpx.Client, start: int, count: int) -> None:
    tools = [
        {
            "toolKey": str(n),
            "toolName": f"tool_{start}_{n}",
            "serverName": "sent",
            "description": " ".join(
                f"{make_question(start + n + k)} {start + n * k:x}" for k in range(CACHE_QUESTIONS)
            ),
        }
        for n in range(count)
    ]
    client.post("/catalog/search", json={"query": [MESSAGE], "tools": tools}).raise_for_status()


def compare_pushes(stage: Stage) -> Finding:
    """Push a text that another tenant has, and one that nobody has, in turn: neither count nor duration may tell.

    The name of the server is a part of what is embedded, so both have a server of the same name.
    """
    known: list[float] = []
    new: list[float] = []
    counts: dict[str, set[int]] = {"known": set(), "new": set()}
    with stage.client(stage.keys.victim) as victim, stage.attacker() as attacker:
        server = attacker.post("/servers", json={"name": PUSHED_SERVER, "transport": "push"}).raise_for_status().json()
        _push(attacker, server["id"], make_question(stage.next_number()))
        for _ in range(ORACLE_PUSHES):
            text = make_question(stage.next_number())
            _push(victim, stage.template.server_id, text)
            for label, durations, pushed in (("known", known, text), ("new", new, make_question(stage.next_number()))):
                embedded, seconds = _push(attacker, server["id"], pushed)
                durations.append(seconds)
                counts[label].add(embedded)
    ratio = statistics.median(new) / statistics.median(known)
    figures: dict[str, float | str] = {
        "embedded_if_another_has_it": str(sorted(counts["known"])),
        "embedded_if_new": str(sorted(counts["new"])),
        "duration_ratio": round(ratio, 2),
    }
    return Finding(figures, counts["known"] == counts["new"] and ratio <= MAX_ORACLE_RATIO)


def _push(client: httpx.Client, server_id: str, text: str) -> tuple[int, float]:
    """Push one tool; return how many texts were embedded, and how long it took."""
    tools = [{"name": "probe", "description": text}]
    started = time.perf_counter()
    response = client.put(f"/servers/{server_id}/tools", params={"wait": True}, json={"tools": tools})
    seconds = time.perf_counter() - started
    run = response.raise_for_status().json()
    assert run["state"] == "succeeded", run
    return run["counts"]["embedded"], seconds


def stop_with_open_requests(stage: Stage) -> Finding:
    """Send SIGTERM while clients have sent half of their bodies and others do not read their streams."""
    valid = ("Authorization", f"Bearer {stage.keys.attacker}")
    halves = [make_head("/discover", 1_000, [header]) + b'{"query": ' for header in (invent_key(0), valid)]
    seconds = asyncio.run(_stop(stage, halves * (HALF_BODIES // 2) + [_make_stream_request(stage)] * UNREAD_STREAMS))
    return Finding({"stopped_after_s": round(seconds, 1)}, seconds <= MAX_STOP_S)


async def _stop(stage: Stage, open_requests: Sequence[bytes]) -> float:
    """Return how long the service takes to end while all cores are busy."""
    attack = asyncio.create_task(hold_open(stage.service.port, open_requests, stage.attacker_statuses))
    await asyncio.sleep(1)
    started = time.monotonic()
    with _busy_cores():
        stage.service.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(stage.service.process.wait, MAX_STOP_S * 3)
        except subprocess.TimeoutExpired:
            stage.service.process.kill()
    attack.cancel()
    await asyncio.gather(attack, return_exceptions=True)
    return time.monotonic() - started


@contextmanager
def _busy_cores() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _make_stream_request(stage: Stage) -> bytes:
    """Return a request for the events of an unfinished run, which the service sends until the run ends."""
    with stage.attacker() as client:
        url = f"http://127.0.0.1:{stage.ports.silent}/mcp"
        body = {"name": "silent", "transport": "streamable_http", "url": url}
        server = client.post("/servers", json=body).raise_for_status().json()
        run = client.post(f"/servers/{server['id']}/reindex").raise_for_status().json()
    return make_head(f"/runs/{run['id']}/events", 0, [("Authorization", f"Bearer {stage.keys.attacker}")], "GET")


PROBES = [
    Probe(
        "inline-cache",
        f"memory after {CACHE_REQUESTS} /catalog/search of {CACHE_TOOLS} tools",
        fill_inline_cache,
        {"TOOLSCOUT_CATALOG_EMBED_BUDGET_S": "0"},
    ),
    Probe("oracle", "whether a push tells that another tenant has the same text", compare_pushes),
    Probe(
        "stop",
        f"SIGTERM with {HALF_BODIES} half-sent bodies and {UNREAD_STREAMS} unread streams on a loaded machine",
        stop_with_open_requests,
    ),
]

"""The real service, killed at random moments: the index always contains one complete list of the server."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, running_service
from tests.support.embedding_server import FakeEmbeddingServer, running_embedding_server
from tests.support.factories import SECRET_KEY, SLOW_MACHINE_ENV, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer, Fault, respond_after, running_mcp_server
from tests.support.worker_steps import listing_of

pytestmark = pytest.mark.no_retry

SERVICES = 2
KILLS = int(os.environ.get("PROOF_KILLS", "3"))
"""For each service; `make proof` sets a higher number."""
TOOLS = 30

Json = dict[str, Any]


def settings_for(mcp_pool: FakeMcpServer, embeddings: FakeEmbeddingServer) -> dict[str, str]:
    return {
        "TOOLSCOUT_OUTBOUND_ALLOW": outbound_allow(mcp_pool),
        "TOOLSCOUT_RUN_LEASE_S": "1",
        "TOOLSCOUT_EMBEDDING_PROVIDER": "openai",
        "TOOLSCOUT_EMBEDDING_MODEL": "fake-words",
        "OPENAI_BASE_URL": embeddings.base_url,
        **SLOW_MACHINE_ENV,
    }


def generation(number: int) -> list[Json]:
    """Return tools whose descriptions name the generation. Half of the names exist in all generations."""
    names = (f"tool_{each:02}" if each % 2 else f"tool_{each:02}_of_{number}" for each in range(TOOLS))
    return [tool(name, f"Generation {number}") for name in names]


def summarize(tools: list[Json]) -> list[tuple[str, str]]:
    return sorted((each["name"], each["description"]) for each in tools)


def register(client: httpx.Client, mcp_pool: FakeMcpServer) -> str:
    body = {"name": "files", "transport": mcp_pool.transport, "url": mcp_pool.url}
    server_id: str = client.post("/servers", json=body).json()["id"]
    return server_id


def reindex(client: httpx.Client, server_id: str) -> Json:
    run: Json = client.post(f"/servers/{server_id}/reindex", params={"wait": True}).json()
    return run


def list_tools(client: httpx.Client) -> list[Json]:
    found: list[Json] = client.get("/tools", params={"limit": 200}).raise_for_status().json()["items"]
    return found


def discover_tools(client: httpx.Client) -> list[Json]:
    question = {"query": "generation tool", "limit": 50, "similarity_threshold": 0}
    return [found["tool"] for found in client.post("/discover", json=question).raise_for_status().json()["tools"]]


class Reader:
    """Reads continuously until the service is gone, and keeps every distinct answer."""

    def __init__(self) -> None:
        self.answers: set[tuple[tuple[str, str], ...]] = set()

    @contextmanager
    def reading(self, service: Service) -> Iterator[None]:
        stopped = threading.Event()
        thread = threading.Thread(target=self._read, args=[service, stopped])
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _read(self, service: Service, stopped: threading.Event) -> None:
        with service.admin("alice") as client:
            is_last = False
            while not is_last:
                is_last = stopped.wait(0.01)
                for look in (list_tools, discover_tools):
                    try:
                        self.answers.add(tuple(summarize(look(client))))
                    except httpx.TransportError:  # the service was killed during the request
                        return
                    except httpx.HTTPStatusError:  # overloaded: only successful answers count
                        continue


def kill(service: Service) -> None:
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()


def until(look: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError("timed out")


def list_runs(client: httpx.Client, server_id: str) -> list[Json]:
    found: list[Json] = client.get(f"/servers/{server_id}/runs", params={"limit": 200}).json()["items"]
    return found


def finished_runs(client: httpx.Client, server_id: str) -> list[Json] | None:
    runs = list_runs(client, server_id)
    return runs if all(run["finished_at"] for run in runs) else None


def test_a_service_killed_at_any_moment_of_a_reindex_ends_with_the_servers_list(tmp_path: Path) -> None:
    """Several services run in parallel, since starting them takes most of the time."""
    with ThreadPoolExecutor(SERVICES) as pool:
        interrupted = list(pool.map(kill_and_check, [make_folder(tmp_path, str(each)) for each in range(SERVICES)]))
    assert sum(interrupted) >= KILLS * SERVICES // 6, "too few kills have interrupted a run"


def kill_and_check(folder: Path) -> int:
    """Kill a service repeatedly, check the index, and return the number of interrupted runs."""
    reader = Reader()
    with running_mcp_server() as mcp_pool, running_embedding_server() as embeddings:
        settings = settings_for(mcp_pool, embeddings)
        server_id, duration_s = index_first_generations(folder, settings, mcp_pool)
        for number in range(2, KILLS + 2):
            with running_service(folder, settings) as service, service.admin("alice") as alice, reader.reading(service):
                mcp_pool.tools = generation(number)
                with at_random_moment(mcp_pool, duration_s) if number % 3 else during_listing(mcp_pool):
                    assert alice.post(f"/servers/{server_id}/reindex").status_code == 202
                kill(service)
                mcp_pool.stalled.clear()
        with running_service(folder, settings) as service, service.admin("alice") as alice, reader.reading(service):
            runs = until(lambda: finished_runs(alice, server_id))
            assert all(run["state"] == "succeeded" or run["error"]["cause"] for run in runs)
            mcp_pool.tools = generation(KILLS + 2)
            assert reindex(alice, server_id)["state"] == "succeeded"
            assert summarize(list_tools(alice)) == summarize(discover_tools(alice)) == summarize(mcp_pool.tools)
            assert embedded_names(service) == [name for name, _ in summarize(mcp_pool.tools)]
            assert alice.get(f"/servers/{server_id}").json()["tool_count"] == TOOLS
            interrupted = count_interrupted_runs(service)
    assert reader.answers <= {tuple(summarize(generation(number))) for number in range(KILLS + 3)}
    assert len(reader.answers) > 1
    return interrupted


@contextmanager
def at_random_moment(mcp_pool: FakeMcpServer, duration_s: float) -> Iterator[None]:
    yield
    time.sleep(random.uniform(0, duration_s))


@contextmanager
def during_listing(mcp_pool: FakeMcpServer) -> Iterator[None]:
    """Continue during the listing, a moment that is reached independently of the machine's speed."""
    before = mcp_pool.listings
    mcp_pool.stalled.add("tools/list")
    yield
    until(lambda: mcp_pool.listings > before)


def index_first_generations(folder: Path, settings: dict[str, str], mcp_pool: FakeMcpServer) -> tuple[str, float]:
    """Return the server id and the duration of an undisturbed reindex."""
    with running_service(folder, settings) as service, service.admin("alice") as alice:
        mcp_pool.tools = generation(0)
        server_id = register(alice, mcp_pool)
        until(lambda: finished_runs(alice, server_id))
        mcp_pool.tools = generation(1)
        started = time.monotonic()
        assert reindex(alice, server_id)["state"] == "succeeded"
        return server_id, time.monotonic() - started


def connect(service: Service) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(EmbeddedPostgres(service.folder / "data").url)


def embedded_names(service: Service) -> list[str]:
    with connect(service) as connection:
        rows = connection.execute("SELECT tool_name FROM mcp_tool_embeddings WHERE embedding IS NOT NULL ORDER BY 1")
        return [name for (name,) in rows]


def count_interrupted_runs(service: Service) -> int:
    with connect(service) as connection:
        [count] = connection.execute("SELECT count(*) FROM index_runs WHERE attempts > 1").fetchone() or (0,)
        return int(count)


def test_a_process_suspended_beyond_its_lease_writes_nothing_when_it_resumes(
    tmp_path: Path, fresh_database: str, mcp: FakeMcpServer, embedding_server: FakeEmbeddingServer
) -> None:
    settings = settings_for(mcp, embedding_server) | {
        "DATABASE_URL": fresh_database,
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_LIST_TIMEOUT_S": "600",  # includes the time for which the process is suspended
        "TOOLSCOUT_CATEGORIES": "false",  # otherwise rows are written in the background
    }
    with running_service(make_folder(tmp_path, "first"), settings) as first, first.admin("alice") as alice:
        mcp.tools = generation(1)
        server_id = register(alice, mcp)
        until(lambda: finished_runs(alice, server_id))
        mcp.tools = generation(2)
        reindex(alice, server_id)
        # the vectors of this list are cached: nothing happens between the listing and the write
        outdated, gate = listing_of(json.dumps(generation(1))), threading.Event()
        mcp.fault, before = Fault(respond_after(gate, outdated), on={"tools/list"}, times=1), mcp.listings
        alice.post(f"/servers/{server_id}/reindex")
        until(lambda: mcp.listings > before)
        first.process.send_signal(signal.SIGSTOP)
        gate.set()
        try:
            mcp.tools = generation(3)
            with running_service(make_folder(tmp_path, "second"), settings) as second, second.admin("alice") as client:
                until(lambda: finished_runs(client, server_id))
                versions = row_versions(fresh_database)
                first.process.send_signal(signal.SIGCONT)
                until(lambda: "lost" in ended_states(first))
                assert [state for state in ended_states(second) if state != "lost"] == ["succeeded"]
                assert row_versions(fresh_database) == versions
                assert summarize(list_tools(client)) == summarize(generation(3))
        finally:
            first.process.send_signal(signal.SIGCONT)
        assert summarize(list_tools(alice)) == summarize(discover_tools(alice)) == summarize(generation(3))
        mcp.tools = generation(4)
        assert reindex(alice, server_id)["state"] == "succeeded"
        assert summarize(list_tools(alice)) == summarize(generation(4))


def make_folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def ended_states(service: Service) -> list[str]:
    """Return the final states of the runs that this process has worked on, from its log."""
    lines = (service.folder / "service.log").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [line["state"] for line in records if line["message"] == "index run ended"]


def row_versions(url: str) -> list[list[tuple[Any, ...]]]:
    """Return the transaction that wrote each row, for all tables that a run may write."""
    tables = "mcp_tools", "mcp_tool_embeddings", "mcp_servers", "users", "index_runs"
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"SELECT ctid::text, xmin::text FROM {table} ORDER BY 1".encode()).fetchall()
            for table in tables
        ]

"""The real service, killed at random moments of its work: what is indexed is always one whole list of the server."""

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
"""Of each service; `make proof` asks for more."""
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
    """Half of the names stay through all generations, the others belong to one; every description tells it."""
    names = (f"tool_{each:02}" if each % 2 else f"tool_{each:02}_of_{number}" for each in range(TOOLS))
    return [tool(name, f"Generation {number}") for name in names]


def seen(tools: list[Json]) -> list[tuple[str, str]]:
    return sorted((each["name"], each["description"]) for each in tools)


def register(client: httpx.Client, mcp_pool: FakeMcpServer) -> str:
    body = {"name": "files", "transport": mcp_pool.transport, "url": mcp_pool.url}
    server_id: str = client.post("/servers", json=body).json()["id"]
    return server_id


def reindexed(client: httpx.Client, server_id: str) -> Json:
    run: Json = client.post(f"/servers/{server_id}/reindex", params={"wait": True}).json()
    return run


def listed(client: httpx.Client) -> list[Json]:
    found: list[Json] = client.get("/tools", params={"limit": 200}).raise_for_status().json()["items"]
    return found


def discovered(client: httpx.Client) -> list[Json]:
    question = {"query": "generation tool", "limit": 50, "similarity_threshold": 0}
    return [found["tool"] for found in client.post("/discover", json=question).raise_for_status().json()["tools"]]


class Reader:
    """Reads all the time, for as long as anybody answers, and keeps each different answer."""

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
                for look in (listed, discovered):
                    try:
                        self.answers.add(tuple(seen(look(client))))
                    except httpx.TransportError:  # killed while it answered
                        return
                    except httpx.HTTPStatusError:  # busier than it likes: what counts is what it does answer
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
    raise AssertionError("it did not come to that")


def runs_of(client: httpx.Client, server_id: str) -> list[Json]:
    found: list[Json] = client.get(f"/servers/{server_id}/runs", params={"limit": 200}).json()["items"]
    return found


def all_ended(client: httpx.Client, server_id: str) -> list[Json] | None:
    runs = runs_of(client, server_id)
    return runs if all(run["finished_at"] for run in runs) else None


def test_killed_at_any_moment_of_a_reindex_it_ends_with_what_the_server_offers(tmp_path: Path) -> None:
    """Several services side by side, since most of the time goes into starting them."""
    with ThreadPoolExecutor(SERVICES) as pool:
        interrupted = list(pool.map(kill_and_check, [folder(tmp_path, str(each)) for each in range(SERVICES)]))
    assert sum(interrupted) >= KILLS * SERVICES // 6, "the kills missed what they were meant to hit"


def kill_and_check(place: Path) -> int:
    """How many runs a kill has interrupted."""
    reader = Reader()
    with running_mcp_server() as mcp_pool, running_embedding_server() as embeddings:
        settings = settings_for(mcp_pool, embeddings)
        server_id, took_s = first_generations(place, settings, mcp_pool)
        for number in range(2, KILLS + 2):
            with running_service(place, settings) as service, service.admin("alice") as alice, reader.reading(service):
                mcp_pool.tools = generation(number)
                with any_moment(mcp_pool, took_s) if number % 3 else while_it_is_asked(mcp_pool):
                    assert alice.post(f"/servers/{server_id}/reindex").status_code == 202
                kill(service)
                mcp_pool.stalled.clear()
        with running_service(place, settings) as service, service.admin("alice") as alice, reader.reading(service):
            runs = until(lambda: all_ended(alice, server_id))
            assert all(run["state"] == "succeeded" or run["error"]["cause"] for run in runs)
            mcp_pool.tools = generation(KILLS + 2)
            assert reindexed(alice, server_id)["state"] == "succeeded"
            assert seen(listed(alice)) == seen(discovered(alice)) == seen(mcp_pool.tools)
            assert narrow_rows(service) == [name for name, _ in seen(mcp_pool.tools)]
            assert alice.get(f"/servers/{server_id}").json()["tool_count"] == TOOLS
            interrupted = interrupted_runs(service)
    assert reader.answers <= {tuple(seen(generation(number))) for number in range(KILLS + 3)}
    assert len(reader.answers) > 1
    return interrupted


@contextmanager
def any_moment(mcp_pool: FakeMcpServer, took_s: float) -> Iterator[None]:
    yield
    time.sleep(random.uniform(0, took_s))


@contextmanager
def while_it_is_asked(mcp_pool: FakeMcpServer) -> Iterator[None]:
    """A moment that comes on any machine: how long the rest takes on a busy one nobody knows."""
    asked = mcp_pool.listings
    mcp_pool.stalled.add("tools/list")
    yield
    until(lambda: mcp_pool.listings > asked)


def first_generations(place: Path, settings: dict[str, str], mcp_pool: FakeMcpServer) -> tuple[str, float]:
    """The server, and how long a reindex takes that nobody kills."""
    with running_service(place, settings) as service, service.admin("alice") as alice:
        mcp_pool.tools = generation(0)
        server_id = register(alice, mcp_pool)
        until(lambda: all_ended(alice, server_id))
        mcp_pool.tools = generation(1)
        began = time.monotonic()
        assert reindexed(alice, server_id)["state"] == "succeeded"
        return server_id, time.monotonic() - began


def database(service: Service) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(EmbeddedPostgres(service.folder / "data").url)


def narrow_rows(service: Service) -> list[str]:
    with database(service) as connection:
        rows = connection.execute("SELECT tool_name FROM mcp_tool_embeddings WHERE embedding IS NOT NULL ORDER BY 1")
        return [name for (name,) in rows]


def interrupted_runs(service: Service) -> int:
    with database(service) as connection:
        [count] = connection.execute("SELECT count(*) FROM index_runs WHERE attempts > 1").fetchone() or (0,)
        return int(count)


def test_a_process_that_was_stopped_beyond_its_lease_writes_nothing_when_it_goes_on(
    tmp_path: Path, fresh_database: str, mcp: FakeMcpServer, embedding_server: FakeEmbeddingServer
) -> None:
    settings = settings_for(mcp, embedding_server) | {
        "DATABASE_URL": fresh_database,
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_LIST_TIMEOUT_S": "600",  # the time for which a process is stopped counts, too
    }
    with running_service(folder(tmp_path, "first"), settings) as first, first.admin("alice") as alice:
        mcp.tools = generation(1)
        server_id = register(alice, mcp)
        until(lambda: all_ended(alice, server_id))
        mcp.tools = generation(2)
        reindexed(alice, server_id)
        # what it is about to index again has been embedded before: between the list and the writing lies nothing else
        outdated, gate = listing_of(json.dumps(generation(1))), threading.Event()
        mcp.fault, asked = Fault(respond_after(gate, outdated), on={"tools/list"}, times=1), mcp.listings
        alice.post(f"/servers/{server_id}/reindex")
        until(lambda: mcp.listings > asked)
        first.process.send_signal(signal.SIGSTOP)
        gate.set()
        try:
            mcp.tools = generation(3)
            with running_service(folder(tmp_path, "second"), settings) as second, second.admin("alice") as client:
                until(lambda: all_ended(client, server_id))
                before = written(fresh_database)
                first.process.send_signal(signal.SIGCONT)
                until(lambda: "lost" in ended_states(first))
                assert [state for state in ended_states(second) if state != "lost"] == ["succeeded"]
                assert written(fresh_database) == before
                assert seen(listed(client)) == seen(generation(3))
        finally:
            first.process.send_signal(signal.SIGCONT)
        assert seen(listed(alice)) == seen(discovered(alice)) == seen(generation(3))
        mcp.tools = generation(4)
        assert reindexed(alice, server_id)["state"] == "succeeded"
        assert seen(listed(alice)) == seen(generation(4))


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def ended_states(service: Service) -> list[str]:
    """Of the runs that this process has worked on, as its log tells."""
    lines = (service.folder / "service.log").read_text().splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return [line["state"] for line in told if line["message"] == "index run ended"]


def written(url: str) -> list[list[tuple[Any, ...]]]:
    """Which transaction wrote each row that a run may write."""
    tables = "mcp_tools", "mcp_tool_embeddings", "mcp_servers", "users", "index_runs"
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"SELECT ctid::text, xmin::text FROM {table} ORDER BY 1".encode()).fetchall()
            for table in tables
        ]

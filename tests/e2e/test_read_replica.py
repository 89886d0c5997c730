"""Searches on a real streaming replica: no old tool, no foreign tool, no error, whatever happens to the replica."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from app.container import Container, open_container
from app.db import read_replica
from app.db.read_replica import ReadReplica
from app.doctor import CheckResult, check_installation
from bench.service import ADMIN_KEY, Service, running_service
from tests.support.barriers import PredicateRemover, predicates_removed, row_level_security_removed
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import running_embedding_server
from tests.support.factories import SECRET_KEY, SLOW_MACHINE_ENV, make_database, make_settings, resolve_nothing, tool
from tests.support.mcp_pool import wait_until
from tests.support.round_trips import counted_round_trips
from tests.support.streaming_replica import StreamingReplica, run_sql
from tests.support.worker_steps import until

pytestmark = pytest.mark.no_retry

logger = logging.getLogger(__name__)

OLD = [tool("show_file", "show a file"), tool("send_mail", "send an email")]
NEW = [tool("open_file", "show a file"), tool("send_mail", "send an email")]
QUESTION = "show me the file"
SCANS = "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = 'mcp_tool_embeddings'"


@dataclass
class World:
    rig: StreamingReplica
    url: str
    service: Container

    @property
    def replica(self) -> ReadReplica:
        assert self.service.read_replica is not None
        return self.service.read_replica

    async def wait_until_used(self) -> None:
        await wait_until(lambda: self.replica.is_in_use)

    async def catch_up(self) -> None:
        await asyncio.to_thread(self.rig.wait_until_caught_up)

    def count(self, outcome: str) -> float:
        return float(self.service.metrics.read_replica_reads.labels(outcome)._value.get())

    def forget(self) -> None:
        """Let the replica be asked again for a user for whom it was behind."""
        self.replica._behind.clear()

    async def find(self, user: TestUser) -> set[str]:
        found = await user.discover(QUESTION, similarity_threshold=0, fill=True, limit=50)
        assert not found["degraded"]
        await self.service.discoverer.snapshots.wait_loaded()
        return {each["tool"]["name"] for each in found["tools"]}


@pytest.fixture(scope="module")
async def opened_world(
    _running_replica: StreamingReplica, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A service without snapshots, so that each search reads tools. It gives the replica the time of a slow machine."""
    rig, url = _running_replica, make_database(_running_replica.primary)
    urls = {"database_url": SecretStr(url), "read_database_url": SecretStr(rig.url(url))}
    settings = make_settings(tmp_path_factory.mktemp("data"), **urls, snapshot_mb=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_replica, "_ANSWER_S", 20.0)
        patch.setattr(read_replica, "POOL_WAIT_S", 20.0)
        async with open_container(settings, url, resolve_nothing) as service:
            yield World(rig, url, service)


@pytest.fixture
async def world(opened_world: World, streaming_replica: StreamingReplica) -> World:
    await opened_world.wait_until_used()
    opened_world.forget()
    opened_world.service.metrics.read_replica_reads.clear()
    return opened_world


@pytest.fixture
async def user(world: World) -> AsyncIterator[TestUser]:
    async with new_user(world.service) as user:
        await user.add_tools(*OLD)
        await world.catch_up()
        yield user


async def test_searches_are_answered_by_the_replica(world: World, user: TestUser) -> None:
    before = run_sql(world.rig.url(world.url), SCANS)
    assert await world.find(user) == {"show_file", "send_mail"}
    assert world.count("served") == 3, "counts, search, definitions"
    assert world.count("behind") == world.count("failed") == 0

    async def is_counted() -> bool:  # Postgres counts what a backend has done a second later
        await world.find(user)
        return bool(run_sql(world.rig.url(world.url), SCANS) > before)

    await until(is_counted)
    explained = await user.discover(QUESTION, explain=True)
    assert explained["tools"][0]["explanation"]["matched_words"]


async def test_the_very_next_search_sees_a_change_that_the_replica_has_not_replayed(
    world: World, user: TestUser
) -> None:
    server_id = (await user.tools())["show_file"]["server_id"]
    assert await world.find(user) == {"show_file", "send_mail"}
    with world.rig.paused():
        await user.push(server_id, NEW)
        before = world.count("served")
        for _ in range(3):
            assert await world.find(user) == {"open_file", "send_mail"}
        assert world.count("served") == before
        assert world.count("behind") > 0
    await world.catch_up()
    world.forget()
    assert await world.find(user) == {"open_file", "send_mail"}
    assert world.count("served") > before


async def test_without_the_comparison_of_versions_old_tools_would_be_found(
    world: World, user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadReplica, "_require", lambda *_: None)
    server_id = (await user.tools())["show_file"]["server_id"]
    with world.rig.paused():
        await user.push(server_id, NEW)
        assert "show_file" in await world.find(user)


async def test_snapshots_are_loaded_from_the_replica_and_never_older_than_the_request(
    world: World, user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, metrics = world.service.discoverer.snapshots, world.service.metrics
    for limit in ("_max_bytes", "_max_user_bytes"):
        monkeypatch.setattr(snapshots, limit, 2**26)

    def count() -> tuple[float, float, float]:
        loads = metrics.snapshot_loads.labels("loaded")._value.get()
        return loads, metrics.snapshot_hits._value.get(), world.count("served")

    server_id = (await user.tools())["show_file"]["server_id"]
    for _ in range(2):
        await world.find(user)
    assert count() == (1, 0, 5), "counts, search and definitions; search and snapshot"
    assert await world.find(user) == {"show_file", "send_mail"}
    assert count() == (1, 1, 5)
    with world.rig.paused():
        await user.push(server_id, NEW)
        for _ in range(3):
            world.forget()
            assert await world.find(user) == {"open_file", "send_mail"}
        assert count() == (2, 2, 5)


async def test_a_discovery_takes_no_more_round_trips_with_a_replica_and_one_more_if_it_is_behind(
    world: World, user: TestUser
) -> None:
    async def count_trips(question: str) -> int:
        with counted_round_trips() as trips:
            await user.discover(question)
        return trips.count

    for question in ("show the file", "send an email"):  # opens connections, and prepares the statements
        await count_trips(question)
    assert await count_trips("show the file") == 2, "to authenticate, and to search"
    assert await count_trips("file the mail") == 3, "and to count its terms"
    with world.rig.paused():
        await user.http.put("/core-tools", json={"tools": []})
        assert await count_trips("show the file") == 5, "all is read again, and once in vain"
        assert await count_trips("show the file") == 2


async def test_users_see_nothing_of_each_other_on_the_replica(world: World, user: TestUser) -> None:
    """Also if the predicate is removed from each statement: row-level security applies there, too."""
    remover = PredicateRemover()
    async with new_user(world.service) as other:
        await other.add_tools(tool("show_secret_file", "show a file that is somebody's own"))
        await world.catch_up()
        own, foreign = {"show_file", "send_mail"}, {"show_secret_file"}
        with predicates_removed(world.service, remover):
            for each, tools in ((user, own), (other, foreign), (user, own)):
                assert await world.find(each) == tools
        assert remover.from_driver > 0
        assert world.count("served") >= 6
        assert world.count("behind") == world.count("failed") == 0
        served = world.count("served")
        async with row_level_security_removed(world.service):
            with predicates_removed(world.service, remover):
                assert await world.find(user) >= own | foreign, "with both barriers removed it would be noticed"
        assert world.count("served") > served


async def test_readiness_and_doctor_tell_the_state_of_the_replica(world: World, user: TestUser) -> None:
    async def check() -> list[CheckResult]:
        results = await check_installation(world.service.settings)
        assert all(result.ok for result in results if result.subject in ("settings", "database", "embedder"))
        return [result for result in results if result.subject == "replica"]

    async def get_warnings() -> list[str]:
        answer = await user.http.get("/readyz")
        assert answer.status_code == 200
        warnings: list[str] = answer.json()["warnings"]
        return warnings

    assert await get_warnings() == []
    [healthy] = await check()
    assert (healthy.ok, healthy.is_warning) == (True, False)
    assert "a replica, 0 bytes behind" in healthy.message
    with world.rig.paused():
        await user.http.put("/core-tools", json={"tools": []})
        [behind] = await check()
        assert behind.ok
        assert "a replica, 0 bytes behind" not in behind.message
    world.rig.kill()
    assert await world.find(user) == {"show_file", "send_mail"}
    await wait_until(lambda: world.replica.warning)
    [warning] = await get_warnings()
    assert "it does not answer as it should" in warning
    assert "/" not in warning, "nothing of its address"
    [away] = await check()
    assert (away.ok, away.is_warning) == (True, True)
    assert "the primary answers all" in away.message
    world.rig.start()
    world.rig.promote()
    [promoted] = await check()
    assert not promoted.ok
    assert "it was promoted" in promoted.message


# --- under load -------------------------------------------------------------------------------------------------------

TOOLS = 8
PHASE = 20
"""How many answers each phase waits for."""
ANSWERS_PER_PUSH = 3
SLOW_S = 0.5
OVER = "overwritten by a server that was promoted"


USERS = ("alice", "bob")


def generation(number: int, user_id: str) -> list[dict[str, Any]]:
    """Half of the names are in all generations, and of both users."""
    names = (f"tool_{each}" if each % 2 else f"tool_{each}_of_{number}" for each in range(TOOLS))
    return [tool(name, f"Generation {number} of {user_id}") for name in names]


def summarize(tools: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((each["name"], each["description"]) for each in tools)


class Work(Protocol):
    async def __call__(self, http: httpx.AsyncClient, catalogue: "Catalogue", /) -> None: ...


@dataclass
class Catalogue:
    """Of one user: the generations of tools that were sent, and that were answered."""

    user_id: str
    server_id: str = ""
    pushed: int = 0
    answered: int = 0
    searches: int = 0

    def describe_mismatch(self, tools: Sequence[dict[str, Any]], oldest: int) -> str | None:
        """Return what is wrong with an answer, which must be the whole of one generation from `oldest` on."""
        found = summarize(tools)
        expected = (summarize(generation(number, self.user_id)) for number in range(oldest, self.pushed + 1))
        return None if found in expected else f"not of {self.user_id}, {oldest} to {self.pushed}: {found}"


@dataclass
class Load:
    """Pushes one generation after the other for each user, and searches all the time.

    A search that begins after a push was answered must find that generation or a later one, and the whole of it.
    """

    service: Service
    catalogues: list[Catalogue] = field(default_factory=lambda: [Catalogue(user_id) for user_id in USERS])
    phase: str = ""
    durations: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for catalogue in self.catalogues:
                tasks.create_task(self._run_for(catalogue))

    async def _run_for(self, catalogue: Catalogue) -> None:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": catalogue.user_id}
        async with httpx.AsyncClient(base_url=self.service.url, headers=headers, timeout=60) as http:
            created = await http.post("/servers", json={"name": "files", "transport": "push"})
            catalogue.server_id = created.json()["id"]
            await self._push(http, catalogue)
            async with asyncio.TaskGroup() as tasks:
                for work in (self._push_later, self._search, self._search):
                    tasks.create_task(self._repeat(http, catalogue, work))

    async def _repeat(self, http: httpx.AsyncClient, catalogue: Catalogue, work: Work) -> None:
        while True:
            await work(http, catalogue)

    async def _push_later(self, http: httpx.AsyncClient, catalogue: Catalogue) -> None:
        """Leave the replica a moment in which it is not behind."""
        before = catalogue.searches
        await wait_until(lambda: catalogue.searches >= before + ANSWERS_PER_PUSH)
        await self._push(http, catalogue)

    @property
    def has_begun(self) -> bool:
        return all(catalogue.answered for catalogue in self.catalogues)

    async def _push(self, http: httpx.AsyncClient, catalogue: Catalogue) -> None:
        number = catalogue.pushed = catalogue.pushed + 1
        body = {"tools": generation(number, catalogue.user_id)}
        answer = await http.put(f"/servers/{catalogue.server_id}/tools", json=body, params={"wait": True})
        if answer.status_code == 200 and answer.json()["state"] == "succeeded":
            catalogue.answered = number
        else:
            self.problems.append(f"{self.phase}: push: {answer.status_code} {answer.text}")

    async def _search(self, http: httpx.AsyncClient, catalogue: Catalogue) -> None:
        phase, oldest, started = self.phase, catalogue.answered, time.perf_counter()
        body = {"query": "generation tool", "limit": 50, "similarity_threshold": 0}
        answer = await http.post("/discover", json=body)
        self.durations.setdefault(phase, []).append(time.perf_counter() - started)
        catalogue.searches += 1
        if answer.status_code != 200:
            self.problems.append(f"{phase}: {answer.status_code} {answer.text}")
            return
        mismatch = catalogue.describe_mismatch([each["tool"] for each in answer.json()["tools"]], oldest)
        if mismatch is not None:
            self.problems.append(f"{phase}: {mismatch}")

    async def wait_until_pushed(self, times: int) -> None:
        """Wait until every user has changed the tools so often, and has searched after it."""
        goals = [(each, each.answered + times, each.searches + times * ANSWERS_PER_PUSH) for each in self.catalogues]
        await wait_until(lambda: all(c.answered >= answered and c.searches >= seen for c, answered, seen in goals))

    @asynccontextmanager
    async def phase_of(self, name: str) -> AsyncIterator[None]:
        """Leave the block after enough answers that began in it, and a change of every user."""
        self.phase = name
        before = [catalogue.answered for catalogue in self.catalogues]
        yield
        await wait_until(lambda: len(self.durations.get(name, ())) >= PHASE)
        await wait_until(lambda: all(c.answered > number for c, number in zip(self.catalogues, before, strict=True)))

    def read_metrics(self) -> dict[str, float]:
        """Return the reads by outcome, whether the replica is in use, and how many warnings `/readyz` has."""
        text = httpx.get(f"{self.service.url}/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        found = {s.labels["outcome"]: s.value for s in samples if s.name == "toolscout_read_replica_reads_total"}
        [in_use] = [s.value for s in samples if s.name == "toolscout_read_replica_in_use"]
        ready = httpx.get(f"{self.service.url}/readyz")
        assert ready.status_code == 200
        return found | {"in use": in_use, "warnings": len(ready.json()["warnings"])}

    async def wait_until_served(self) -> None:
        before = self.read_metrics()["served"]
        await self._wait_for(lambda metrics: metrics["served"] >= before + PHASE)

    async def wait_until_left_alone(self) -> None:
        await self._wait_for(lambda metrics: not metrics["in use"] and metrics["warnings"])

    async def _wait_for(self, is_reached: Callable[[dict[str, float]], object]) -> None:
        async with asyncio.timeout(60):
            while not is_reached(await asyncio.to_thread(self.read_metrics)):  # noqa: ASYNC110 another process
                await asyncio.sleep(0.1)


@asynccontextmanager
async def under_load(service: Service) -> AsyncIterator[Load]:
    load = Load(service)
    running = asyncio.create_task(load.run())
    try:
        async with asyncio.timeout(300):
            await wait_until(lambda: load.has_begun or running.done())
            yield load
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def service(streaming_replica: StreamingReplica, tmp_path: Path) -> Iterator[tuple[Service, str]]:
    """The real service, in a process of its own, and its database."""
    url = make_database(streaming_replica.primary)
    streaming_replica.wait_until_caught_up()
    with running_embedding_server() as embeddings:
        settings = {
            "DATABASE_URL": url,
            "TOOLSCOUT_READ_DATABASE_URL": streaming_replica.url(url),
            "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
            "TOOLSCOUT_SNAPSHOT_MB": "0",
            "TOOLSCOUT_CATEGORIES": "false",
            "TOOLSCOUT_EMBEDDING_PROVIDER": "openai",
            "TOOLSCOUT_EMBEDDING_MODEL": "fake-words",
            "OPENAI_BASE_URL": embeddings.base_url,
            **SLOW_MACHINE_ENV,
        }
        with running_service(tmp_path, settings) as running:
            yield running, url


async def test_a_replica_that_is_behind_killed_stalled_and_promoted_under_load_makes_no_answer_wrong(
    streaming_replica: StreamingReplica, service: tuple[Service, str]
) -> None:
    rig, (running, url) = streaming_replica, service
    async with under_load(running) as load:
        async with load.phase_of("healthy"):
            await load.wait_until_served()
        async with load.phase_of("behind"):
            with rig.paused():
                await load.wait_until_pushed(3)
            await load.wait_until_served()
        async with load.phase_of("killed"):
            rig.kill()
            await load.wait_until_left_alone()
        async with load.phase_of("back"):
            await asyncio.to_thread(rig.start)
            await load.wait_until_served()
        with rig.stalled():
            async with load.phase_of("stalling"):
                await load.wait_until_left_alone()
            before = load.read_metrics()
            async with load.phase_of("stalled"):
                pass
            after = load.read_metrics()
            # no request has waited for it: a wait would have been counted
            assert (after["failed"], after["served"]) == (before["failed"], before["served"])
            assert after["unavailable"] >= before["unavailable"] + PHASE
        async with load.phase_of("awake"):
            await load.wait_until_served()
        async with load.phase_of("promoted"):
            await asyncio.to_thread(rig.promote)
            # what it has is wrong from here on, and newer by its versions
            run_sql(rig.url(url), f"UPDATE mcp_tools SET description = '{OVER}'")
            run_sql(rig.url(url), "UPDATE users SET catalog_version = catalog_version + 1000000")
            await load.wait_until_left_alone()
    slow = {phase: sum(each > SLOW_S for each in durations) for phase, durations in load.durations.items()}
    assert not load.problems, load.problems[:5]
    assert after["behind"] > 0
    logger.info("searches %s, slow %s, reads %s", {k: len(v) for k, v in load.durations.items()}, slow, after)

"""pgbouncer and the Postgres behind it are restarted under load: no wrong answer, and the service goes on by itself."""

import asyncio
import logging
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, new_user
from tests.support.factories import make_database, make_settings, tool
from tests.support.pgbouncer import PgBouncer, running_pgbouncer
from tests.support.worker_steps import until

pytestmark = [pytest.mark.needs_pgbouncer, pytest.mark.no_retry]

logger = logging.getLogger(__name__)

USERS = 2
TOOLS = 3
PAUSE_S = 0.05
"""Between two requests, as errors come at once: a user may send a limited number."""
PATIENCE_S = 60
"""How long the service may take to answer again, on a busy machine."""
QUESTION = {"query": "read the files", "limit": 50, "similarity_threshold": 0}


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder) / "data")
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="module")
def pgbouncer(own_postgres: EmbeddedPostgres) -> Iterator[PgBouncer]:
    # as the guide says: a request waits no longer for Postgres than it would for the service's own pool
    with running_pgbouncer(own_postgres.url, default_pool_size=2, query_wait_timeout=3) as running:
        yield running


@pytest.fixture(scope="module")
async def service(
    own_postgres: EmbeddedPostgres, pgbouncer: PgBouncer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Container]:
    url = make_database(own_postgres)
    # snapshots in memory are off: each search goes through pgbouncer
    settings = make_settings(tmp_path_factory.mktemp("data"), snapshot_mb=0, run_lease_s=1, **pgbouncer.settings(url))
    async with open_container(settings, url) as container:
        yield container


class Loaded:
    """A user who reads and changes their tools at the same time, and checks every answer."""

    def __init__(self, user: TestUser, errors: Counter[str]) -> None:
        self._user = user
        self._errors = errors
        self.answered = asyncio.Event()
        self.right_answers = 0
        self._sent = self._stored = 0

    async def add_tools(self) -> None:
        text = f"Reads the files of {self._user.id}."
        await self._user.add_tools(*(tool(f"read_{number}", text) for number in range(TOOLS)))
        await self.change()

    async def change(self) -> None:
        """Give all tools the tag of the next generation, in one transaction."""
        self._sent += 1
        rules = [{"pattern": ["read_*"], "tags": [str(self._sent)]}]
        if await self._request("PUT", "/rules", {"rules": rules}) is not None:
            self._stored = self._sent

    async def read(self) -> None:
        oldest = self._stored
        for method, path, body in (("GET", "/tools", None), ("POST", "/discover", QUESTION)):
            answer = await self._request(method, path, body)
            if answer is not None:
                self._check(answer.json(), oldest)
                self.right_answers += 1
                self.answered.set()

    async def _request(self, method: str, path: str, body: Any) -> httpx.Response | None:
        """Return None for an error, which says when to try again."""
        answer = await self._user.http.request(method, path, json=body)
        if answer.status_code == 200:
            return answer
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        self._errors[method] += 1
        return None

    def _check(self, body: Any, oldest: int) -> None:
        """An answer holds all tools of this user, in one generation, none before the last one that was stored."""
        assert not body.get("degraded"), body["degraded_reason"]
        found = [each.get("tool", each) for each in body.get("tools", body.get("items"))]
        assert [each["description"] for each in found] == [f"Reads the files of {self._user.id}."] * TOOLS
        if "items" in body:
            [generation] = {int(tag) for each in found for tag in each["tags"]}
            assert oldest <= generation <= self._sent


class Load:
    def __init__(self, users: list[Loaded], errors: Counter[str]) -> None:
        self._users = users
        self.errors = errors
        self._counted = 0
        self._stopped = asyncio.Event()
        loops = [step for user in users for step in (user.read, user.change)]
        self._tasks = [asyncio.create_task(self._repeat(step)) for step in loops]

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while not self._stopped.is_set():
            await step()
            await asyncio.sleep(PAUSE_S)

    async def wait_for_answers(self) -> None:
        """Wait until every user has had answers to requests that began after this."""
        for _ in range(3):
            for user in self._users:
                user.answered.clear()
            await until(self._have_all_answers)

    async def _have_all_answers(self) -> bool:
        self._raise_failures()
        return all(user.answered.is_set() for user in self._users)

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def wait_for_errors(self) -> None:
        before = self.errors.total()

        async def have_errors() -> bool:
            self._raise_failures()
            return self.errors.total() > before

        await until(have_errors)

    async def expect_no_more_errors(self) -> None:
        """Check that requests which begin after an outage are answered. Those from before may still fail."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await self.wait_for_answers()
                if self.count_errors("afterwards") == 0:
                    return

    def count_errors(self, phase: str) -> int:
        """Return how many requests have failed since the last phase, and log it."""
        count, self._counted = self.errors.total() - self._counted, self.errors.total()
        logger.info("%s: %d errors, %d right answers", phase, count, sum(user.right_answers for user in self._users))
        return count

    async def stop(self) -> None:
        self._stopped.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)


@pytest.fixture
async def load(service: Container) -> AsyncIterator[Load]:
    errors = Counter[str]()
    async with AsyncExitStack() as stack:
        users = []
        for _ in range(USERS):
            user = await stack.enter_async_context(new_user(service))
            users.append(Loaded(user, errors))
            await users[-1].add_tools()
        load = Load(users, errors)
        await load.wait_for_answers()
        yield load
        await load.stop()
        # all is well again: the next change is stored, and read
        errors.clear()
        for each in users:
            await each.change()
            await each.read()
        assert not errors


async def test_no_answer_is_wrong_while_pgbouncer_is_reloaded_paused_and_restarted(
    load: Load, pgbouncer: PgBouncer
) -> None:
    await asyncio.to_thread(pgbouncer.command, "RELOAD")
    await load.wait_for_answers()
    await asyncio.to_thread(pgbouncer.command, "PAUSE")
    await until(lambda: has_waiting_clients(pgbouncer))
    await asyncio.to_thread(pgbouncer.command, "RESUME")
    await load.wait_for_answers()
    assert load.count_errors("reloaded, paused") == 0
    for sent in (signal.SIGINT, signal.SIGKILL):
        await asyncio.to_thread(pgbouncer.stop, sent)
        await load.wait_for_errors()
        await asyncio.to_thread(pgbouncer.start)
        await load.wait_for_answers()
        load.count_errors(f"stopped with {sent.name}")
        await load.expect_no_more_errors()


async def has_waiting_clients(pgbouncer: PgBouncer) -> bool:
    pools = await asyncio.to_thread(pgbouncer.command, "SHOW POOLS")
    return any(int(pool["cl_waiting"]) for pool in pools)


async def test_no_answer_is_wrong_while_postgres_is_restarted_behind_pgbouncer(
    load: Load, own_postgres: EmbeddedPostgres
) -> None:
    await asyncio.to_thread(own_postgres.stop)
    await load.wait_for_errors()
    await asyncio.to_thread(own_postgres.start)
    await load.wait_for_answers()
    load.count_errors("Postgres stopped")
    await load.expect_no_more_errors()

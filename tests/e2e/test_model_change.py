"""Switching the embedding model under load, on two replicas: every answer comes from exactly one model."""

import asyncio
import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psycopg
import pytest
from pydantic import SecretStr

from app.cli import models as commands
from app.container import Container, open_container
from app.embeddings.calibration import UNCALIBRATED
from app.indexing.backfill import SERVERS_PER_BATCH
from app.local_postgres.postgres import EmbeddedPostgres
from app.settings import Settings
from tests.support.clients import TestUser, new_user, open_client
from tests.support.embedding_server import FakeEmbeddingServer, running_embedding_server
from tests.support.factories import SECRET_KEY, make_database, make_settings, resolve_nothing, tool
from tests.support.worker_steps import until

pytestmark = pytest.mark.no_retry

ALPHA, BETA, GAMMA = "openai:alpha@64", "openai:beta@64", "openai:gamma@96"

TOOLS = [
    tool("get_forecast", "The weather forecast of a city for the next days."),
    tool("get_alerts", "Warnings of storms and floods in a region."),
    tool("read_file", "Read a text file from the disk."),
    tool("send_mail", "Send a mail to a person."),
]
QUESTIONS = "weather forecast of a city", "read a text file", "send a mail with warnings of storms"

Answer = tuple[Any, ...]


@dataclass(frozen=True)
class World:
    replicas: list[Container]
    settings: Settings
    fake: FakeEmbeddingServer

    async def use(self, model: str, **options: Any) -> None:
        use = inspect.unwrap(commands.use)
        assert await use(self.settings, model.removeprefix("openai:"), **options) == 0

    async def wait_for_model(self, model: str) -> None:
        """Wait until all replicas serve the model."""

        async def all_serve() -> bool:
            return all(replica.model.id == model for replica in self.replicas)

        await until(all_serve)

    async def calibrate(self, model: str, threshold: float) -> None:
        """Store a threshold and wait until all replicas use it."""
        stored = orjson.dumps(UNCALIBRATED.to_json() | {"threshold": threshold}).decode()
        self.as_owner("UPDATE embedding_models SET calibration = %s WHERE id = %s", stored, model)

        async def all_know() -> bool:
            found = [replica.models.get(model).model.calibration.threshold for replica in self.replicas]
            return set(found) == {threshold}

        await until(all_know)

    def as_owner(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        assert self.settings.database_url is not None
        with psycopg.connect(self.settings.database_url.get_secret_value(), autocommit=True) as owner:
            cursor = owner.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def open_world(
    postgres: EmbeddedPostgres, folder: Path, replicas: int = 1, **changes: Any
) -> AsyncIterator[World]:
    """Open replicas without a query cache and with a long embedding budget, so that no answer is degraded."""
    url = make_database(postgres)
    with running_embedding_server() as fake:
        patient = {"embedding_model": "alpha@64", "query_embed_budget_ms": 20_000, "query_cache_size": 0}
        settings = make_settings(folder, database_url=SecretStr(url), **fake.settings(**(patient | changes)))
        async with AsyncExitStack() as closing:
            opening = [open_container(settings, url, resolve_nothing) for _ in range(replicas)]
            yield World([await closing.enter_async_context(each) for each in opening], settings, fake)


async def ask(http: Any, question: str) -> Answer:
    answer = await http.post("/discover", json={"query": question, "include_core_tools": False})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert not body["degraded"]
    found = [(each["tool"]["name"], each["similarity"], each["score"]) for each in body["tools"]]
    return question, body["no_match"], body["total_searched"], *found


class TimedAnswer(NamedTuple):
    started: int
    ended: int
    answer: Answer


@dataclass
class Load:
    """Sends requests without a pause; records the answers of each replica with logical start and end times."""

    clients: list[Any]
    answers: list[list[TimedAnswer]] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = [[] for _ in self.clients]

    async def run(self) -> None:
        moments = itertools.count()
        askers = [self._ask(*each, moments) for each in zip(self.clients, self.answers, strict=True) for _ in range(3)]
        await asyncio.gather(*askers)

    async def _ask(self, http: Any, answers: list[TimedAnswer], moments: Iterator[int]) -> None:
        for started in moments:
            answer = await ask(http, QUESTIONS[started % len(QUESTIONS)])
            answers.append(TimedAnswer(started, next(moments), answer))

    async def wait_for_answers(self, more: int) -> None:
        goal = [len(answers) + more for answers in self.answers]

        async def has_enough() -> bool:
            return all(len(answers) >= count for answers, count in zip(self.answers, goal, strict=True))

        await until(has_enough)


@asynccontextmanager
async def under_load(clients: list[Any]) -> AsyncIterator[Load]:
    load = Load(clients)
    running = asyncio.create_task(load.run())
    try:
        yield load
        assert not running.done()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running  # raises the error of a failed request


@asynccontextmanager
async def open_clients(world: World, user: TestUser) -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as closing:
        opening = [open_client(replica, Authorization=f"Bearer {user.key}") for replica in world.replicas]
        yield [await closing.enter_async_context(each) for each in opening]


def check_atomic_switch(answers: list[TimedAnswer], before: set[Answer], after: set[Answer]) -> None:
    """Every answer comes from one model only, and after the first answer of the new model all answers do."""
    old, new = ([each for each in answers if each.answer in side] for side in (before, after))
    assert len(old) + len(new) == len(answers)
    assert max(each.started for each in old) < min(each.ended for each in new)


async def switch_under_load(world: World, clients: list[Any], model: str) -> None:
    old = {await ask(clients[0], question) for question in QUESTIONS}
    async with under_load(clients) as load:
        await load.wait_for_answers(10)
        await world.use(model)
        await world.wait_for_model(model)
        await load.wait_for_answers(10)
    new = {await ask(clients[0], question) for question in QUESTIONS}
    assert not old & new
    for answers in load.answers:
        check_atomic_switch(answers, old, new)


async def test_switches_under_load_are_atomic_and_reversible(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    async with (
        open_world(postgres, tmp_path, replicas=2) as world,
        new_user(world.replicas[0]) as user,
        open_clients(world, user) as clients,
    ):
        server_id = await user.add_tools(*TOOLS)
        await world.calibrate(ALPHA, threshold=0.85)
        world.fake.delay_s = 0.03  # most requests are being embedded at the moment of the switch
        await switch_under_load(world, clients, BETA)
        await switch_under_load(world, clients, GAMMA)  # of another dimension

        # this change applies to all three models; switching back embeds only what has changed
        run = await user.push(server_id, [*TOOLS, tool("list_files", "List the files of a folder.")])
        assert run["state"] == "succeeded"
        world.fake.requests.clear()
        await world.use(ALPHA)
        await world.wait_for_model(ALPHA)
        assert [text for texts in world.fake.requests for text in texts if text.startswith("Tool:")] == [
            "Tool: list files. Server: files. Description: List the files of a folder."
        ]
        assert [(await ask(each, QUESTIONS[0]))[2] for each in clients] == [5, 5]


@contextmanager
def run_command(world: World, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in its own process and kill it at the end."""
    assert world.settings.database_url is not None
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": world.settings.database_url.get_secret_value(),
        "OPENAI_BASE_URL": world.fake.base_url,
        "TOOLSCOUT_DATA_DIR": str(world.settings.data_dir),
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_EMBEDDING_PROVIDER": "openai",
        "TOOLSCOUT_EMBEDDING_MODEL": "alpha@64",
    }
    started = subprocess.Popen([sys.executable, "-m", "app", *arguments], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


async def test_a_killed_switch_changes_nothing_and_continues_where_it_stopped(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with open_world(postgres, tmp_path) as world, new_user(world.replicas[0]) as user:
        for number in range(SERVERS_PER_BATCH + 5):
            await user.add_tools(tool(f"tool_{number}", f"Does the work of day {number}."), server=f"server {number}")
        before = await ask(user.http, QUESTIONS[0])
        # it answers the request for the dimension and the first of two batches
        world.fake.mode, world.fake.quick = "hang_later", 2
        with run_command(world, "model", "use", "beta@64"):

            async def is_one_batch_done() -> bool:
                counted = world.as_owner("SELECT count(*) FROM mcp_tool_embeddings WHERE model = %s", BETA)
                return counted == [(SERVERS_PER_BATCH,)]

            await until(is_one_batch_done)
        world.fake.mode = "ok"
        world.fake.release()
        assert await ask(user.http, QUESTIONS[0]) == before
        world.fake.requests.clear()
        await world.use(BETA)
        await world.wait_for_model(BETA)
        assert len([text for texts in world.fake.requests for text in texts if text.startswith("Tool:")]) == 5
        assert (await ask(user.http, QUESTIONS[0]))[2] == SERVERS_PER_BATCH + 5

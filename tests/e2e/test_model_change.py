"""Another embedding model takes over under load, on two replicas: nobody notices but by the numbers."""

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

    async def serve(self, model: str) -> None:
        """Until all replicas do."""

        async def all_of_them() -> bool:
            return all(replica.model.id == model for replica in self.replicas)

        await until(all_of_them)

    async def calibrate(self, model: str, threshold: float) -> None:
        """And wait until all replicas know of it."""
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
async def opened(postgres: EmbeddedPostgres, folder: Path, replicas: int = 1, **changes: Any) -> AsyncIterator[World]:
    """Questions are embedded each time, and never given up: a degraded answer would hide what these tests look for."""
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


class Answered(NamedTuple):
    asked: int
    answered: int
    answer: Answer


@dataclass
class Load:
    """Asks without a pause; keeps, for each replica, what was answered and the moments around it."""

    clients: list[Any]
    answers: list[list[Answered]] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = [[] for _ in self.clients]

    async def go_on(self) -> None:
        moments = itertools.count()
        askers = [self._ask(*each, moments) for each in zip(self.clients, self.answers, strict=True) for _ in range(3)]
        await asyncio.gather(*askers)

    async def _ask(self, http: Any, answers: list[Answered], moments: Iterator[int]) -> None:
        for asked in moments:
            answer = await ask(http, QUESTIONS[asked % len(QUESTIONS)])
            answers.append(Answered(asked, next(moments), answer))

    async def answered(self, more: int) -> None:
        goal = [len(answers) + more for answers in self.answers]

        async def enough() -> bool:
            return all(len(answers) >= wanted for answers, wanted in zip(self.answers, goal, strict=True))

        await until(enough)


@asynccontextmanager
async def under_load(clients: list[Any]) -> AsyncIterator[Load]:
    load = Load(clients)
    running = asyncio.create_task(load.go_on())
    try:
        yield load
        assert not running.done()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running  # whoever met anything but a good answer says so here


@asynccontextmanager
async def clients_of(world: World, user: TestUser) -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as closing:
        opening = [open_client(replica, Authorization=f"Bearer {user.key}") for replica in world.replicas]
        yield [await closing.enter_async_context(each) for each in opening]


def check_one_moment(answers: list[Answered], before: set[Answer], after: set[Answer]) -> None:
    """Each answer is wholly the one's or wholly the other's, and whoever asks after the first of the other's gets those
    alone."""
    old, new = ([each for each in answers if each.answer in side] for side in (before, after))
    assert len(old) + len(new) == len(answers)
    assert max(each.asked for each in old) < min(each.answered for each in new)


async def switched_under_load(world: World, clients: list[Any], model: str) -> None:
    old = {await ask(clients[0], question) for question in QUESTIONS}
    async with under_load(clients) as load:
        await load.answered(10)
        await world.use(model)
        await world.serve(model)
        await load.answered(10)
    new = {await ask(clients[0], question) for question in QUESTIONS}
    assert not old & new
    for answers in load.answers:
        check_one_moment(answers, old, new)


async def test_switches_under_load_have_one_moment_and_no_mixture_and_a_way_back(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with (
        opened(postgres, tmp_path, replicas=2) as world,
        new_user(world.replicas[0]) as user,
        clients_of(world, user) as clients,
    ):
        server_id = await user.add_tools(*TOOLS)
        await world.calibrate(ALPHA, threshold=0.85)
        world.fake.delay_s = 0.03  # most requests are just being embedded when the moment comes
        await switched_under_load(world, clients, BETA)
        await switched_under_load(world, clients, GAMMA)  # of another dimension

        # what changes now changes for all three, and the way back is as long as what has changed
        run = await user.push(server_id, [*TOOLS, tool("list_files", "List the files of a folder.")])
        assert run["state"] == "succeeded"
        world.fake.requests.clear()
        await world.use(ALPHA)
        await world.serve(ALPHA)
        assert [text for texts in world.fake.requests for text in texts if text.startswith("Tool:")] == [
            "Tool: list files. Server: files. Description: List the files of a folder."
        ]
        assert [(await ask(each, QUESTIONS[0]))[2] for each in clients] == [5, 5]


@contextmanager
def command(world: World, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own, that can be killed."""
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


async def test_a_change_that_is_killed_changes_nothing_and_goes_on_where_it_stood(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with opened(postgres, tmp_path) as world, new_user(world.replicas[0]) as user:
        for number in range(SERVERS_PER_BATCH + 5):
            await user.add_tools(tool(f"tool_{number}", f"Does the work of day {number}."), server=f"server {number}")
        before = await ask(user.http, QUESTIONS[0])
        world.fake.mode, world.fake.quick = "hang_later", 2  # to learn the dimension, and the first of two groups
        with command(world, "model", "use", "beta@64"):

            async def one_group_is_done() -> bool:
                counted = world.as_owner("SELECT count(*) FROM mcp_tool_embeddings WHERE model = %s", BETA)
                return counted == [(SERVERS_PER_BATCH,)]

            await until(one_group_is_done)
        world.fake.mode = "ok"
        world.fake.release()
        assert await ask(user.http, QUESTIONS[0]) == before
        world.fake.requests.clear()
        await world.use(BETA)
        await world.serve(BETA)
        assert len([text for texts in world.fake.requests for text in texts if text.startswith("Tool:")]) == 5
        assert (await ask(user.http, QUESTIONS[0]))[2] == SERVERS_PER_BATCH + 5

"""Notifications between processes: they arrive after the commit, and nothing breaks while they are away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial

import psycopg
import pytest

from app.container import Container, open_container
from app.db import notifications as module
from app.db.engine import Database
from app.db.migrate import migrate
from app.db.notifications import Channel, Notifications, notify
from app.embeddings import repository
from app.errors import ConfigurationError
from app.indexing.worker import WorkerConfig
from app.local_postgres.database import owner_connection
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import new_user
from tests.support.factories import make_database, make_settings, resolve_nothing, tool
from tests.support.outage import close_database
from tests.support.worker_steps import until

LISTENERS = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE query LIKE '%LISTEN%' AND pid <> pg_backend_pid() AND datname = current_database()"
)


@pytest.fixture(scope="module")
async def url(postgres: EmbeddedPostgres) -> str:
    url = make_database(postgres)
    await asyncio.to_thread(migrate, url)
    return url


@dataclass
class Heard:
    """How often each channel was heard, since the last `forget`."""

    notifications: Notifications
    counts: dict[Channel, int] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        for channel in Channel:
            self.notifications.subscribe(channel, lambda channel=channel: self._note(channel))  # type: ignore[misc]

    def _note(self, channel: Channel) -> None:
        self.counts[channel] = self.counts.get(channel, 0) + 1
        self._news.set()

    async def forget(self) -> None:
        """Begin to count, once the connection is there: connecting counts as news of everything."""
        async with asyncio.timeout(30):
            await self.notifications.wait_until_listening()
        self.counts.clear()
        self._news.clear()

    async def wait_for(self, channel: Channel, count: int = 1) -> None:
        async with asyncio.timeout(30):
            while self.counts.get(channel, 0) < count:
                self._news.clear()
                await self._news.wait()


@pytest.fixture
async def heard(url: str) -> AsyncIterator[Heard]:
    notifications = Notifications(url)
    heard = Heard(notifications)
    notifications.start()
    yield heard
    await notifications.stop()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url, pool_size=2)
    yield database
    await database.close()


async def test_a_notification_arrives_after_the_commit_on_its_own_channel(heard: Heard, database: Database) -> None:
    await heard.forget()
    async with database.transaction("alice") as session:
        await notify(session, Channel.RUNS)
        await notify(session, Channel.RUNS)
        await session.rows("SELECT 1")
        assert heard.counts == {}
    await heard.wait_for(Channel.RUNS)
    async with database.system_transaction() as session:
        await notify(session, Channel.MODELS)
    await heard.wait_for(Channel.MODELS)
    assert heard.counts == {Channel.RUNS: 1, Channel.MODELS: 1}


async def test_a_transaction_that_rolls_back_notifies_nobody(heard: Heard, database: Database) -> None:
    async def fail() -> None:
        async with database.system_transaction() as session:
            await notify(session, Channel.RUNS)
            raise ZeroDivisionError

    await heard.forget()
    with pytest.raises(ZeroDivisionError):
        await fail()
    async with database.system_transaction() as session:
        await notify(session, Channel.MODELS)
    await heard.wait_for(Channel.MODELS)
    assert heard.counts == {Channel.MODELS: 1}


async def test_a_lost_connection_is_made_again_and_everything_counts_as_news(
    heard: Heard, database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    await heard.forget()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        [(pid,)] = await (await owner.execute(LISTENERS)).fetchall()
        await owner.execute("SELECT pg_terminate_backend(%s)", [pid])
    for channel in Channel:
        await heard.wait_for(channel)
    await heard.forget()
    async with database.system_transaction() as session:
        await notify(session, Channel.RUNS)
    await heard.wait_for(Channel.RUNS)


async def test_while_no_connection_can_be_made_it_tries_again_less_and_less_often(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.011)
    monkeypatch.setattr(module, "_MAX_PAUSE_S", 0.044)
    url, pauses, sleep = make_database(postgres), list[float](), asyncio.sleep
    heard = Heard(Notifications(url))

    async def record_pause(seconds: float) -> None:
        if asyncio.current_task() is heard.notifications._task:
            pauses.append(seconds)
        await sleep(seconds)

    async def has_tried_often() -> bool:
        return len(pauses) >= 4

    async with close_database(postgres, Database(url, pool_size=1)):
        monkeypatch.setattr("app.db.notifications.asyncio.sleep", record_pause)
        heard.notifications.start()
        await until(has_tried_often)
        assert not heard.notifications.is_listening
    assert pauses[:4] == [0.011, 0.022, 0.044, 0.044]
    await heard.wait_for(Channel.RUNS)
    assert heard.notifications.is_listening
    await heard.notifications.stop()


async def test_a_subscriber_that_fails_does_not_silence_the_others(
    heard: Heard, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    heard.notifications._subscribers[Channel.RUNS].insert(0, fail)
    await heard.forget()
    for count in (1, 2):
        async with database.system_transaction() as session:
            await notify(session, Channel.RUNS)
        await heard.wait_for(Channel.RUNS, count)
    assert "subscriber of notifications failed" in caplog.text


async def test_the_listening_connection_is_closed_at_the_end(url: str) -> None:
    notifications = Notifications(url)
    notifications.start()
    await notifications.wait_until_listening()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:

        async def count_listeners() -> int:
            return len(await (await owner.execute(LISTENERS)).fetchall())

        async def nobody_listens() -> bool:
            return await count_listeners() == 0

        assert await count_listeners() == 1
        await notifications.stop()
        await until(nobody_listens)


@pytest.mark.parametrize("url", ["mysql://host/name", "nonsense"])
def test_a_url_of_another_database_is_refused_by_the_name_of_its_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_LISTEN_DATABASE_URL"):
        Notifications(url)


@pytest.fixture
async def replicas(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Container, Container, str]]:
    """One process that answers requests and one that indexes; neither polls during a test."""
    monkeypatch.setattr("app.embeddings.loaded_models.POLL_S", 3600)
    monkeypatch.setattr("app.container.WorkerConfig", partial(WorkerConfig, poll_interval_s=3600.0))
    database = make_database(postgres)
    web, worker = (make_settings(tmp_path_factory.mktemp("data"), role=role) for role in ("web", "worker"))
    async with (
        open_container(web, database, resolve_nothing) as answering,
        open_container(worker, database, resolve_nothing) as indexing,
    ):
        yield answering, indexing, database


async def test_a_worker_hears_of_a_run_that_another_process_has_queued(
    replicas: tuple[Container, Container, str],
) -> None:
    answering, _, _ = replicas
    async with new_user(answering) as user, asyncio.timeout(60):
        server_id = await user.add_server()
        assert (await user.push(server_id, [tool("list_files")]))["state"] == "succeeded"


async def test_a_service_hears_of_a_calibration_that_another_process_has_stored(
    replicas: tuple[Container, Container, str],
) -> None:
    answering, indexing, url = replicas
    model = answering.model
    changed = replace(model.calibration, threshold=0.123)

    def store() -> None:
        with owner_connection(url) as connection:
            repository.store_calibration(connection, model.id, changed)

    await asyncio.to_thread(store)
    for container in (answering, indexing):

        async def has_changed(container: Container = container) -> bool:
            return container.model.calibration == changed

        await until(has_changed)

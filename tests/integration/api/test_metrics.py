"""What `/metrics` tells of the pool, the queue, the ladder and the embedder; and that the guide names it all."""

import asyncio
import math
import re
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from app import __version__
from app.container import Container
from app.db.engine import Database
from app.db.migrate import migrate
from app.errors import DatabaseDown
from app.indexing.queue_metrics import update_queue_metrics, watch_queue
from app.local_postgres.postgres import EmbeddedPostgres
from app.observability.metrics import Metrics
from tests.conftest import OpenService, TestUser, make_database, new_user, tool
from tests.integration.api.test_health import database_closed
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.paths import ROOT
from tests.support.worker_steps import rows, send, until

GUIDE = (ROOT / "docs/operations.md").read_text()


def families(text: str) -> Iterator[Metric]:
    """Without those that only tell when a counter was made."""
    return (family for family in text_string_to_metric_families(text) if not family.name.endswith("_created"))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    samples = [sample for family in families(metrics.render().decode()) for sample in family.samples]
    return next((sample.value for sample in samples if sample.name == name and sample.labels == labels), None)


async def test_every_metric_is_in_the_guide_with_its_kind_and_its_labels(user: TestUser) -> None:
    await user.add_tools(tool("list_files"))
    await user.discover("list files")
    told = {family.name: family for family in families((await user.http.get("/metrics")).text)}
    rows = {
        name: row for name, *row in re.findall(r"^\| `(toolscout_\w+)` \| (\w+) \| (.*?) ?\| ", GUIDE, re.MULTILINE)
    }
    assert set(rows) == {name for name in told if name.startswith("toolscout_")}
    for name, (kind, labels) in rows.items():
        assert kind == told[name].type
        named = set(re.findall(r"`(\w+)`", labels))
        assert all(sample.labels.keys() - {"le"} == named for sample in told[name].samples), name


async def test_metrics_of_the_process_are_in_the_guide_too(client: httpx.AsyncClient) -> None:
    told = {family.name for family in families((await client.get("/metrics")).text)}
    assert set(re.findall(r"`(process_\w+)`", GUIDE)) == {name for name in told if name.startswith("process_")}


async def test_metrics_name_the_version_and_the_model(container: Container) -> None:
    assert value(container.metrics, "toolscout_build_info", version=__version__) == 1
    model = {"model": container.model.id, "dimension": str(container.model.dimension)}
    assert value(container.metrics, "toolscout_model_info", **model) == 1


def test_another_model_takes_the_place_of_the_one_before() -> None:
    metrics = Metrics()
    for name in ("old", "new"):
        metrics.tell_model(name, 3)
    assert value(metrics, "toolscout_model_info", model="new", dimension="3") == 1
    assert value(metrics, "toolscout_model_info", model="old", dimension="3") is None


async def test_connections_in_use_waited_for_and_had_in_vain_are_counted(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, metrics = make_database(postgres), Metrics()
    await asyncio.to_thread(migrate, url)
    database = Database(url, 1, metrics)
    assert value(metrics, "toolscout_pool_size") == 1
    async with database.system_transaction():
        assert value(metrics, "toolscout_pool_in_use") == 1
        with monkeypatch.context() as impatient:
            impatient.setattr(database.engine.pool, "_timeout", 0.05)
            with pytest.raises(DatabaseDown):
                await database.ping()
        assert value(metrics, "toolscout_pool_timeouts_total") == 1
        waiter = asyncio.create_task(database.ping())

        async def somebody_waits() -> bool:
            return value(metrics, "toolscout_pool_waiting") == 1

        await until(somebody_waits)
    await waiter
    assert value(metrics, "toolscout_pool_in_use") == value(metrics, "toolscout_pool_waiting") == 0
    assert value(metrics, "toolscout_pool_timeouts_total") == 1
    assert value(metrics, "toolscout_pool_wait_seconds_count") == 3
    await database.close()


async def test_the_queue_is_told_with_the_age_of_its_oldest_run(open_service: OpenService) -> None:
    async with open_service(index_concurrency=0) as service, new_user(service) as user:
        await update_queue_metrics(service.database, service.metrics)
        assert value(service.metrics, "toolscout_runs_queued") == 0
        assert value(service.metrics, "toolscout_oldest_queued_run_seconds") == 0
        run = await send(user, await user.add_server(), [tool("list_files")])
        await rows(
            service, "UPDATE index_runs SET created_at = now() - interval '1 hour' WHERE id = %(id)s", id=run["id"]
        )
        await rows(service, "UPDATE mcp_servers SET pending_count = 7")
        await update_queue_metrics(service.database, service.metrics)
        assert value(service.metrics, "toolscout_runs_queued") == 1
        assert value(service.metrics, "toolscout_runs_running") == 0
        assert value(service.metrics, "toolscout_oldest_queued_run_seconds") == pytest.approx(3600, abs=60)
        assert value(service.metrics, "toolscout_tools_pending") == 7
        await rows(service, "UPDATE index_runs SET state = 'running', lease_until = now() + interval '1 minute'")
        await update_queue_metrics(service.database, service.metrics)
        assert value(service.metrics, "toolscout_runs_queued") == 0
        assert value(service.metrics, "toolscout_runs_running") == 1
        assert value(service.metrics, "toolscout_oldest_queued_run_seconds") == 0


async def test_a_run_whose_worker_has_died_is_told_as_one_that_waits(open_service: OpenService) -> None:
    async with open_service(index_concurrency=0) as service, new_user(service) as user:
        await send(user, await user.add_server(), [tool("list_files")])
        await rows(
            service,
            "UPDATE index_runs SET state = 'running', created_at = now() - interval '1 hour',"
            " lease_until = now() - interval '1 second'",
        )
        await update_queue_metrics(service.database, service.metrics)
        assert value(service.metrics, "toolscout_runs_queued") == 1
        assert value(service.metrics, "toolscout_runs_running") == 0
        assert value(service.metrics, "toolscout_oldest_queued_run_seconds") == pytest.approx(3600, abs=60)


async def test_a_scrape_needs_no_database_and_tells_nothing_that_is_not_known(
    open_service: OpenService, postgres: EmbeddedPostgres
) -> None:
    async with open_service() as service, new_user(service) as user:
        watching = asyncio.create_task(watch_queue(service.database, service.metrics, every_s=0.02))

        async def unknown() -> bool:
            return math.isnan(value(service.metrics, "toolscout_runs_queued") or 0.0)

        async def known() -> bool:
            return value(service.metrics, "toolscout_runs_queued") == 0

        await until(known)
        async with database_closed(postgres, service):
            await until(unknown)
            assert (await user.http.get("/metrics")).status_code == 200
        await until(known)
        watching.cancel()


async def test_discoveries_are_counted_by_the_rung_that_answered(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    def counted(strategy: str, rung: str) -> float | None:
        return value(service.metrics, "toolscout_discoveries_total", strategy=strategy, rung=rung)

    async with open_service(**embedding_server.settings()) as service, new_user(service) as user:
        await user.add_tools(tool("list_files", "Lists files."))
        await user.discover("list files")
        await user.discover("list files", strategy="bm25")
        assert (counted("hybrid", "whole"), counted("bm25", "whole"), counted("bm25", "words")) == (1, 1, 0)
        embedding_server.mode = "status"
        await user.discover("list files in another folder")
        assert (counted("hybrid", "whole"), counted("bm25", "words")) == (1, 1)
        assert value(service.metrics, "toolscout_embedding_failures_total", purpose="query", reason="status_500") == 1
        project = {"name": "quiet", "optimization": None}
        project_id = (await user.http.post("/projects", json=project)).json()["id"]
        await user.discover("list files", project_id=project_id)
        assert counted("none", "core") == 1
        await rows(service, "UPDATE users SET discovery_enabled = false")
        service.authenticator.clear_cache()
        await user.discover("list files")
        assert counted("hybrid", "disabled") == 1


async def test_runs_are_timed_and_what_they_embed_or_fail_to_embed_is_counted(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    async with open_service(**embedding_server.settings(pending_retry_s=60)) as service, new_user(service) as user:
        server_id = await user.add_tools(tool("list_files", "Lists files."), tool("read_file", "Reads a file."))
        assert value(service.metrics, "toolscout_tools_embedded_total") == 2

        async def timed() -> bool:
            return value(service.metrics, "toolscout_index_seconds_count", state="succeeded") == 1

        await until(timed)  # the run's row is there a moment before
        embedding_server.mode = "wrong_dimension"
        await user.push(server_id, [tool("list_files", "Lists files, and more.")])
        failures = value(
            service.metrics, "toolscout_embedding_failures_total", purpose="index", reason="wrong_dimension"
        )
        assert failures == 1
        assert value(service.metrics, "toolscout_tools_embedded_total") == 2

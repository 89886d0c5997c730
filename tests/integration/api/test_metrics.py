"""The metrics of the pool, the queue, the fallback chain and the embedder; the guide documents all of them."""

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
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import OpenService, make_database, tool
from tests.support.outage import close_database
from tests.support.paths import ROOT
from tests.support.worker_steps import rows, send, until

GUIDE = (ROOT / "docs/reference/metrics.md").read_text()


def parse_families(text: str) -> Iterator[Metric]:
    """Skip the series with the creation times of counters."""
    return (family for family in text_string_to_metric_families(text) if not family.name.endswith("_created"))


def read_value(metrics: Metrics, name: str, **labels: str) -> float | None:
    samples = [sample for family in parse_families(metrics.render().decode()) for sample in family.samples]
    return next((sample.value for sample in samples if sample.name == name and sample.labels == labels), None)


async def test_the_guide_lists_every_metric_with_its_type_and_labels(user: TestUser) -> None:
    await user.add_tools(tool("list_files"))
    await user.discover("list files")
    metrics = {family.name: family for family in parse_families((await user.http.get("/metrics")).text)}
    rows = {
        name: row for name, *row in re.findall(r"^\| `(toolscout_\w+)` \| (\w+) \| (.*?) ?\| ", GUIDE, re.MULTILINE)
    }
    assert set(rows) == {name for name in metrics if name.startswith("toolscout_")}
    for name, (kind, labels) in rows.items():
        assert kind == metrics[name].type
        documented = set(re.findall(r"`(\w+)`", labels))
        assert all(sample.labels.keys() - {"le"} == documented for sample in metrics[name].samples), name


async def test_the_guide_lists_the_process_metrics(client: httpx.AsyncClient) -> None:
    names = {family.name for family in parse_families((await client.get("/metrics")).text)}
    assert set(re.findall(r"`(process_\w+)`", GUIDE)) == {name for name in names if name.startswith("process_")}


async def test_metrics_contain_the_version_and_the_model(container: Container) -> None:
    assert read_value(container.metrics, "toolscout_build_info", version=__version__) == 1
    model = {"model": container.model.id, "dimension": str(container.model.dimension)}
    assert read_value(container.metrics, "toolscout_model_info", **model) == 1


def test_a_new_model_replaces_the_previous_one() -> None:
    metrics = Metrics()
    for name in ("old", "new"):
        metrics.set_model(name, 3)
    assert read_value(metrics, "toolscout_model_info", model="new", dimension="3") == 1
    assert read_value(metrics, "toolscout_model_info", model="old", dimension="3") is None


async def test_connections_in_use_waiting_and_timed_out_are_counted(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, metrics = make_database(postgres), Metrics()
    await asyncio.to_thread(migrate, url)
    database = Database(url, 1, metrics)
    assert read_value(metrics, "toolscout_pool_size") == 1
    async with database.system_transaction():
        assert read_value(metrics, "toolscout_pool_in_use") == 1
        with monkeypatch.context() as patch:
            patch.setattr(database._pool, "_wait_s", 0.05)
            with pytest.raises(DatabaseDown):
                await database.ping()
        assert read_value(metrics, "toolscout_pool_timeouts_total") == 1
        waiter = asyncio.create_task(database.ping())

        async def is_waiting() -> bool:
            return read_value(metrics, "toolscout_pool_waiting") == 1

        await until(is_waiting)
    await waiter
    assert read_value(metrics, "toolscout_pool_in_use") == read_value(metrics, "toolscout_pool_waiting") == 0
    assert read_value(metrics, "toolscout_pool_timeouts_total") == 1
    assert read_value(metrics, "toolscout_pool_wait_seconds_count") == 3
    await database.close()


async def test_the_queue_is_measured_with_the_age_of_its_oldest_run(open_service: OpenService) -> None:
    async with open_service(index_concurrency=0) as service, new_user(service) as user:
        await update_queue_metrics(service.database, service.metrics)
        assert read_value(service.metrics, "toolscout_runs_queued") == 0
        assert read_value(service.metrics, "toolscout_oldest_queued_run_seconds") == 0
        run = await send(user, await user.add_server(), [tool("list_files")])
        await rows(
            service, "UPDATE index_runs SET created_at = now() - interval '1 hour' WHERE id = %(id)s", id=run["id"]
        )
        await rows(service, "UPDATE mcp_servers SET pending_count = 7")
        await update_queue_metrics(service.database, service.metrics)
        assert read_value(service.metrics, "toolscout_runs_queued") == 1
        assert read_value(service.metrics, "toolscout_runs_running") == 0
        assert read_value(service.metrics, "toolscout_oldest_queued_run_seconds") == pytest.approx(3600, abs=60)
        assert read_value(service.metrics, "toolscout_tools_pending") == 7
        await rows(service, "UPDATE index_runs SET state = 'running', lease_until = now() + interval '1 minute'")
        await update_queue_metrics(service.database, service.metrics)
        assert read_value(service.metrics, "toolscout_runs_queued") == 0
        assert read_value(service.metrics, "toolscout_runs_running") == 1
        assert read_value(service.metrics, "toolscout_oldest_queued_run_seconds") == 0


async def test_a_run_with_an_expired_lease_counts_as_queued(open_service: OpenService) -> None:
    async with open_service(index_concurrency=0) as service, new_user(service) as user:
        await send(user, await user.add_server(), [tool("list_files")])
        await rows(
            service,
            "UPDATE index_runs SET state = 'running', created_at = now() - interval '1 hour',"
            " lease_until = now() - interval '1 second'",
        )
        await update_queue_metrics(service.database, service.metrics)
        assert read_value(service.metrics, "toolscout_runs_queued") == 1
        assert read_value(service.metrics, "toolscout_runs_running") == 0
        assert read_value(service.metrics, "toolscout_oldest_queued_run_seconds") == pytest.approx(3600, abs=60)


async def test_a_scrape_needs_no_database_and_reports_unknown_values_as_nan(
    open_service: OpenService, postgres: EmbeddedPostgres
) -> None:
    async with open_service() as service, new_user(service) as user:
        watching = asyncio.create_task(watch_queue(service.database, service.metrics, every_s=0.02))

        async def is_unknown() -> bool:
            return math.isnan(read_value(service.metrics, "toolscout_runs_queued") or 0.0)

        async def is_known() -> bool:
            return read_value(service.metrics, "toolscout_runs_queued") == 0

        await until(is_known)
        async with close_database(postgres, service.database):
            await until(is_unknown)
            assert (await user.http.get("/metrics")).status_code == 200
        await until(is_known)
        watching.cancel()


async def test_discoveries_are_counted_by_fallback_level(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    def read_count(strategy: str, level: str) -> float | None:
        return read_value(service.metrics, "toolscout_discoveries_total", strategy=strategy, rung=level)

    async with open_service(**embedding_server.settings()) as service, new_user(service) as user:
        await user.add_tools(tool("list_files", "Lists files."))
        await user.discover("list files")
        await user.discover("list files", strategy="bm25")
        assert (read_count("hybrid", "whole"), read_count("bm25", "whole"), read_count("bm25", "words")) == (1, 1, 0)
        embedding_server.mode = "status"
        await user.discover("list files in another folder")
        assert (read_count("hybrid", "whole"), read_count("bm25", "words")) == (1, 1)
        assert (
            read_value(service.metrics, "toolscout_embedding_failures_total", purpose="query", reason="status_500") == 1
        )
        project = {"name": "quiet", "optimization": None}
        project_id = (await user.http.post("/projects", json=project)).json()["id"]
        await user.discover("list files", project_id=project_id)
        assert read_count("none", "core") == 1
        await rows(service, "UPDATE users SET discovery_enabled = false")
        await user.discover("list files")
        assert read_count("hybrid", "disabled") == 1


async def test_discoveries_are_counted_by_confidence(open_service: OpenService) -> None:
    def read_counts() -> list[float | None]:
        name = "toolscout_discovery_confidence_total"
        return [read_value(service.metrics, name, confidence=confidence) for confidence in ("high", "low", "none")]

    async with open_service() as service, new_user(service) as user:
        assert read_counts() == [0, 0, 0]
        await user.add_tools(tool("list_files", "Lists files."))
        await user.discover("list files")
        assert read_counts() == [1, 0, 0]
        await user.discover("list plonk frobnicate xyzzy", strategy="bm25")
        assert read_counts() == [1, 1, 0]
        await user.discover("thanks, that is all")
        assert read_counts() == [1, 1, 1]
        assert read_value(service.metrics, "toolscout_no_match_total", reason="no_match") == 1
        await user.discover("list files", server_ids=[])
        assert read_value(service.metrics, "toolscout_no_match_total", reason="filtered_out") == 1
        assert read_value(service.metrics, "toolscout_no_match_total", reason="no_tools") == 0
        project = {"name": "quiet", "optimization": None}
        project_id = (await user.http.post("/projects", json=project)).json()["id"]
        await user.discover("list files", project_id=project_id)
        assert read_counts() == [1, 1, 2]


async def test_runs_are_timed_and_embeddings_and_failures_are_counted(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    async with open_service(**embedding_server.settings(pending_retry_s=60)) as service, new_user(service) as user:
        server_id = await user.add_tools(tool("list_files", "Lists files."), tool("read_file", "Reads a file."))
        assert read_value(service.metrics, "toolscout_tools_embedded_total") == 2

        async def is_timed() -> bool:
            return read_value(service.metrics, "toolscout_index_seconds_count", state="succeeded") == 1

        await until(is_timed)  # the run is stored a moment before
        embedding_server.mode = "wrong_dimension"
        await user.push(server_id, [tool("list_files", "Lists files, and more.")])
        failures = read_value(
            service.metrics, "toolscout_embedding_failures_total", purpose="index", reason="wrong_dimension"
        )
        assert failures == 1
        assert read_value(service.metrics, "toolscout_tools_embedded_total") == 2

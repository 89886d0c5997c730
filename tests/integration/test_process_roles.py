"""Separate web and worker processes on one database: one queues runs, the other processes them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import make_database, make_settings, resolve_nothing, tool
from tests.support.worker_steps import finished, rows, send


@pytest.fixture
def url(postgres: EmbeddedPostgres) -> str:
    return make_database(postgres)


@pytest.fixture
async def web(url: str, tmp_path: Path) -> AsyncIterator[Container]:
    async with open_container(make_settings(tmp_path, role="web"), url, resolve_nothing) as container:
        yield container


@pytest.fixture
async def user(web: Container) -> AsyncIterator[TestUser]:
    async with new_user(web) as user:
        yield user


async def test_a_worker_processes_the_runs_that_a_web_process_queues(
    web: Container, user: TestUser, url: str, tmp_path: Path
) -> None:
    run = await send(user, await user.add_server(), [tool("list_files", "Lists files.")])
    assert await rows(web, "SELECT state FROM index_runs") == [("queued",)]
    async with open_container(make_settings(tmp_path, role="worker"), url, resolve_nothing):
        assert (await finished(user, run["id"]))["state"] == "succeeded"
    assert [found["tool"]["name"] for found in (await user.discover("list files"))["tools"]] == ["list_files"]
    assert web.metrics.index_runs.labels("succeeded")._value.get() == 0


async def test_a_worker_serves_only_health_and_metrics(
    web: Container, user: TestUser, url: str, tmp_path: Path
) -> None:
    requests = [("POST", "/discover"), ("GET", "/tools"), ("POST", "/mcp"), ("GET", "/docs"), ("GET", "/openapi.json")]
    headers = {"Authorization": f"Bearer {user.key}", "Host": "localhost"}
    async with (
        open_container(make_settings(tmp_path, role="worker"), url, resolve_nothing) as worker,
        open_client(worker, **headers) as worker_client,
        open_client(web, **headers) as web_client,
    ):
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await worker_client.get(path)).status_code == 200
        for method, path in requests:
            assert_problem(await worker_client.request(method, path, json={"query": "x"}), 404)
            assert (await web_client.request(method, path, json={"query": "x"})).status_code != 404

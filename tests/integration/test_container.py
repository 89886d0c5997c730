"""How the service starts, which configurations it rejects, and what it leaves behind."""

import asyncio
import base64
import stat
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from app.container import Container, open_container
from app.errors import ConfigurationError
from app.local_postgres.database import connect_database, open_database
from app.local_postgres.secret_key import load_secret_key
from bench.service import free_port
from tests.support.clients import new_user, open_client
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer
from tests.support.factories import make_settings, tool
from tests.support.worker_steps import until

WEATHER = tool("get_forecast", "Weather forecast for a city.")


@pytest.fixture(autouse=True)
def _without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DATABASE_URL", "TOOLSCOUT_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


async def get_readiness(container: Container) -> dict[str, Any]:
    async with open_client(container) as http:
        answer = await http.get("/readyz")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


async def check_discovery_works(container: Container) -> None:
    async with new_user(container) as user:
        await user.add_tools(WEATHER)
        answer = await user.discover("weather forecast for a city")
        assert answer["degraded"] is False
        assert answer["tools"][0]["source"] == "semantic"


def execute_as_owner(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as owner:
        cursor = owner.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def count_connections(url: str) -> int:
    [(count,)] = execute_as_owner(
        url,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
    )
    return int(count)


async def check_no_connections_left(url: str) -> None:
    async def none_left() -> bool:
        return count_connections(url) == 0

    await until(none_left)  # Postgres notices a moment later


async def test_the_first_start_probes_an_unknown_models_dimension_and_sets_a_threshold(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        model = service.model
        assert (model.id, model.dimension, model.calibration.threshold) == ("openai:fake-words", DIMENSION, 0.3)
        assert await get_readiness(service) == {"status": "ok", "model": "openai:fake-words", "warnings": []}
        await check_discovery_works(service)
    assert embedding_server.requests[0] == ["how many dimensions?"]


async def test_a_later_start_does_not_call_the_embedder(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    async with open_container(settings, fresh_database):
        pass
    embedding_server.mode, embedding_server.requests = "status", []
    async with open_container(settings, fresh_database) as service:
        assert service.model.dimension == DIMENSION
        assert (await get_readiness(service))["warnings"] == []
    assert embedding_server.requests == []


async def test_the_first_start_without_its_embedder_fails_with_a_reason(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    unreachable = settings.model_copy(update={"openai_base_url": f"http://127.0.0.1:{free_port()}/v1"})
    with pytest.raises(ConfigurationError, match=r"first start needs the embedder.*cannot be reached"):
        async with open_container(unreachable, fresh_database):
            pass
    await check_no_connections_left(fresh_database)
    async with open_container(settings, fresh_database) as service:
        await check_discovery_works(service)


@pytest.mark.parametrize("mode", ["nan", "zeros", "short", "not_json"])
async def test_a_first_start_with_unusable_vectors_fails(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path, mode: Any
) -> None:
    embedding_server.mode = mode
    with pytest.raises(ConfigurationError, match="first start needs the embedder"):
        async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database):
            pass
    assert execute_as_owner(fresh_database, "SELECT id FROM embedding_models") == []


async def test_settings_that_name_another_model_only_cause_a_warning(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    async with open_container(settings, fresh_database):
        pass
    for changes in ({"embedding_model": "other-words"}, {"embedding_provider": "local"}):
        async with open_container(settings.model_copy(update=changes), fresh_database) as service:
            ready = await get_readiness(service)
            assert ready["model"] == service.model.id == "openai:fake-words"
            [warning] = ready["warnings"]
            assert "openai:fake-words is active and keeps serving" in warning
            await check_discovery_works(service)
    assert execute_as_owner(fresh_database, "SELECT DISTINCT model FROM mcp_tool_embeddings") == [
        ("openai:fake-words",)
    ]
    async with open_container(settings, fresh_database) as service:
        assert (await get_readiness(service))["warnings"] == []


async def test_a_database_with_local_vectors_is_served_by_the_local_model(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    async with open_container(make_settings(tmp_path), fresh_database):
        pass
    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        ready = await get_readiness(service)
        assert ready["model"].startswith("local:granite")
        assert "openai:fake-words" in ready["warnings"][0]
        await check_discovery_works(service)
    assert embedding_server.requests == []


async def test_a_start_without_the_local_pack_of_the_database_fails(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    async with open_container(settings, fresh_database):
        pass
    execute_as_owner(fresh_database, "UPDATE embedding_models SET id = 'local:granite:00000000', provider = 'local'")
    with pytest.raises(ConfigurationError, match=r"vectors of local:granite:00000000.*TOOLSCOUT_LOCAL_MODEL"):
        async with open_container(settings, fresh_database):
            pass
    execute_as_owner(fresh_database, "UPDATE embedding_models SET id = 'openai:fake-words', provider = 'openai'")
    async with open_container(settings, fresh_database) as service:
        assert service.warnings == ()


async def test_an_endpoint_needs_a_url_or_a_key(fresh_database: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs OPENAI_API_KEY or "):
        async with open_container(make_settings(tmp_path, embedding_provider="openai"), fresh_database):
            pass


async def test_replicas_that_start_together_agree_on_one_model(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    models = ["one", "two", "three"]
    all_open = asyncio.Barrier(len(models))

    async def replica(name: str) -> str:
        settings = make_settings(tmp_path, **embedding_server.settings(embedding_model=name))
        async with open_container(settings, fresh_database) as service:
            await all_open.wait()
            return service.model.id

    served = set(await asyncio.gather(*(replica(name) for name in models)))
    assert len(served) == 1
    assert execute_as_owner(fresh_database, "SELECT id FROM embedding_models WHERE active") == [(served.pop(),)]


async def test_everything_that_was_opened_is_closed(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    before = asyncio.all_tasks()

    async def no_task_is_left() -> bool:
        return not asyncio.all_tasks() - before

    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        await check_discovery_works(service)
        assert count_connections(fresh_database) > 0
        assert not await no_task_is_left()
    await until(no_task_is_left)
    await check_no_connections_left(fresh_database)


async def test_pending_counts_are_written_before_the_database_closes(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        async with new_user(service, "ada"):
            pass
        service.usage_counters.record_call("ada", "some-tool", succeeded=None)
        assert execute_as_owner(fresh_database, "SELECT * FROM tool_usage") == []
    assert execute_as_owner(fresh_database, "SELECT user_id, tool_id, called FROM tool_usage") == [
        ("ada", "some-tool", 1)
    ]


def test_a_secret_key_is_generated_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, secret_key=None)
    key = load_secret_key(settings)
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert base64.b64decode(file.read_text()) == key
    assert len(key) == 32
    assert load_secret_key(settings) == key


def test_another_folder_has_another_secret_key(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    keys = {load_secret_key(make_settings(tmp_path / name, secret_key=None)) for name in "ab"}
    assert len(keys) == 2


def test_a_configured_secret_key_is_used_and_none_is_generated(tmp_path: Path) -> None:
    assert load_secret_key(make_settings(tmp_path)) == b"01234567890123456789012345678901"
    assert list(tmp_path.iterdir()) == []


def test_a_corrupt_secret_key_is_rejected_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("corrupt")
    with pytest.raises(ConfigurationError):
        load_secret_key(make_settings(tmp_path, secret_key=None))
    assert (tmp_path / "secret_key").read_text() == "corrupt"


@pytest.mark.parametrize("environment", ["development", "production"])
def test_no_secret_key_is_generated_for_an_external_database(tmp_path: Path, environment: str) -> None:
    url = SecretStr("postgresql://db/toolscout")
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_SECRET_KEY is missing"):
        load_secret_key(make_settings(tmp_path, database_url=url, secret_key=None, environment=environment))
    assert list(tmp_path.iterdir()) == []


async def test_a_command_uses_the_postgres_of_a_running_service_or_starts_its_own(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "data")
    async with open_database(settings) as url:
        async with connect_database(settings) as same:
            assert same == url
        assert await asyncio.to_thread(execute_as_owner, url, "SELECT 1") == [(1,)]
    async with connect_database(settings) as again:
        assert await asyncio.to_thread(execute_as_owner, again, "SELECT 1") == [(1,)]
    with pytest.raises(psycopg.OperationalError):
        await asyncio.to_thread(execute_as_owner, url, "SELECT 1")

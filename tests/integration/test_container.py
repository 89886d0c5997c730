"""How the service comes up, what it refuses, and what it leaves behind."""

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
from tests.conftest import client_of, make_settings, new_user, tool
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer
from tests.support.worker_steps import until

WEATHER = tool("get_forecast", "Weather forecast for a city.")


@pytest.fixture(autouse=True)
def no_endpoint_of_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DATABASE_URL", "TOOLSCOUT_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


async def readiness(container: Container) -> dict[str, Any]:
    async with client_of(container) as http:
        answer = await http.get("/readyz")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


async def check_works(container: Container) -> None:
    async with new_user(container) as user:
        await user.add_tools(WEATHER)
        answer = await user.discover("weather forecast for a city")
        assert answer["degraded"] is False
        assert answer["tools"][0]["source"] == "semantic"


def as_owner(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as owner:
        cursor = owner.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def connections(url: str) -> int:
    [(count,)] = as_owner(
        url,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
    )
    return int(count)


async def check_no_connection_is_left(url: str) -> None:
    async def none_left() -> bool:
        return connections(url) == 0

    await until(none_left)  # Postgres notices a moment later than we do


async def test_the_first_start_learns_an_unknown_models_dimension_and_gives_it_a_threshold(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        model = service.model
        assert (model.id, model.dimension, model.calibration.threshold) == ("openai:fake-words", DIMENSION, 0.3)
        assert await readiness(service) == {"status": "ok", "model": "openai:fake-words", "warnings": []}
        await check_works(service)
    assert embedding_server.requests[0] == ["how many dimensions?"]


async def test_a_later_start_asks_the_embedder_nothing(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    async with open_container(settings, fresh_database):
        pass
    embedding_server.mode, embedding_server.requests = "status", []
    async with open_container(settings, fresh_database) as service:
        assert service.model.dimension == DIMENSION
        assert (await readiness(service))["warnings"] == []
    assert embedding_server.requests == []


async def test_the_first_start_without_its_embedder_is_refused_with_a_reason(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    away = settings.model_copy(update={"openai_base_url": f"http://127.0.0.1:{free_port()}/v1"})
    with pytest.raises(ConfigurationError, match=r"first start needs the embedder.*cannot be reached"):
        async with open_container(away, fresh_database):
            pass
    await check_no_connection_is_left(fresh_database)
    async with open_container(settings, fresh_database) as service:
        await check_works(service)


@pytest.mark.parametrize("mode", ["nan", "zeros", "short", "not_json"])
async def test_a_first_answer_of_no_use_is_refused_too(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path, mode: Any
) -> None:
    embedding_server.mode = mode
    with pytest.raises(ConfigurationError, match="first start needs the embedder"):
        async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database):
            pass
    assert as_owner(fresh_database, "SELECT id FROM embedding_models") == []


async def test_settings_that_name_another_model_change_nothing_but_warn(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    async with open_container(settings, fresh_database):
        pass
    for changes in ({"embedding_model": "other-words"}, {"embedding_provider": "local"}):
        async with open_container(settings.model_copy(update=changes), fresh_database) as service:
            ready = await readiness(service)
            assert ready["model"] == service.model.id == "openai:fake-words"
            [warning] = ready["warnings"]
            assert "still serving the active one, openai:fake-words" in warning
            await check_works(service)
    assert as_owner(fresh_database, "SELECT DISTINCT model FROM mcp_tool_embeddings") == [("openai:fake-words",)]
    async with open_container(settings, fresh_database) as service:
        assert (await readiness(service))["warnings"] == []


async def test_a_database_of_the_local_model_is_served_by_it_whatever_endpoint_is_named(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    async with open_container(make_settings(tmp_path), fresh_database):
        pass
    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        ready = await readiness(service)
        assert ready["model"].startswith("local:granite")
        assert "openai:fake-words" in ready["warnings"][0]
        await check_works(service)
    assert embedding_server.requests == []


async def test_vectors_of_a_local_pack_that_is_not_there_are_not_compared_with_others(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **embedding_server.settings())
    async with open_container(settings, fresh_database):
        pass
    as_owner(fresh_database, "UPDATE embedding_models SET id = 'local:granite:00000000', provider = 'local'")
    with pytest.raises(ConfigurationError, match=r"vectors of local:granite:00000000.*TOOLSCOUT_LOCAL_MODEL"):
        async with open_container(settings, fresh_database):
            pass
    as_owner(fresh_database, "UPDATE embedding_models SET id = 'openai:fake-words', provider = 'openai'")
    async with open_container(settings, fresh_database) as service:
        assert service.warnings == ()


async def test_an_endpoint_needs_an_address_or_a_key(fresh_database: str, tmp_path: Path) -> None:
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
    assert as_owner(fresh_database, "SELECT id FROM embedding_models WHERE active") == [(served.pop(),)]


async def test_everything_that_was_opened_is_closed(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    before = asyncio.all_tasks()

    async def nothing_goes_on() -> bool:
        return not asyncio.all_tasks() - before

    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        await check_works(service)
        assert connections(fresh_database) > 0
        assert not await nothing_goes_on()
    await until(nothing_goes_on)
    await check_no_connection_is_left(fresh_database)


async def test_what_was_counted_last_is_written_before_the_database_closes(
    fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    async with open_container(make_settings(tmp_path, **embedding_server.settings()), fresh_database) as service:
        async with new_user(service, "ada"):
            pass
        service.usage_counters.called("ada", "some-tool", succeeded=None)
        assert as_owner(fresh_database, "SELECT * FROM tool_usage") == []
    assert as_owner(fresh_database, "SELECT user_id, tool_id, called FROM tool_usage") == [("ada", "some-tool", 1)]


def test_a_secret_key_is_made_once_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
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


def test_a_given_secret_key_is_taken_and_none_is_made(tmp_path: Path) -> None:
    assert load_secret_key(make_settings(tmp_path)) == b"01234567890123456789012345678901"
    assert list(tmp_path.iterdir()) == []


def test_a_spoilt_secret_key_is_refused_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("spoilt")
    with pytest.raises(ConfigurationError):
        load_secret_key(make_settings(tmp_path, secret_key=None))
    assert (tmp_path / "secret_key").read_text() == "spoilt"


@pytest.mark.parametrize("environment", ["development", "production"])
def test_no_secret_key_is_made_beside_a_database_of_ones_own(tmp_path: Path, environment: str) -> None:
    url = SecretStr("postgresql://db/toolscout")
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_SECRET_KEY is missing"):
        load_secret_key(make_settings(tmp_path, database_url=url, secret_key=None, environment=environment))
    assert list(tmp_path.iterdir()) == []


async def test_a_command_beside_a_running_service_uses_its_postgres_and_alone_starts_it(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "data")
    async with open_database(settings) as url:
        async with connect_database(settings) as same:
            assert same == url
        assert await asyncio.to_thread(as_owner, url, "SELECT 1") == [(1,)]
    async with connect_database(settings) as again:
        assert await asyncio.to_thread(as_owner, again, "SELECT 1") == [(1,)]
    with pytest.raises(psycopg.OperationalError):
        await asyncio.to_thread(as_owner, url, "SELECT 1")

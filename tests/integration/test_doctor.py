"""`toolscout doctor` tells what the service would do with the embedder and the identity provider."""

from pathlib import Path
from typing import Any

import pytest

from app.container import open_container
from app.doctor import CheckResult, check_installation
from app.settings import Settings
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer
from tests.support.factories import make_settings
from tests.support.identity_provider import make_key, running_identity_provider


@pytest.fixture
async def settings(fresh_database: str, embedding_server: FakeEmbeddingServer, tmp_path: Path) -> Settings:
    """Settings of a database whose active model is that of the fake server."""
    settings = make_settings(tmp_path, database_url=fresh_database, **embedding_server.settings())
    async with open_container(settings, fresh_database):
        return settings


async def check_embedder(settings: Settings, **changes: Any) -> CheckResult:
    results = await check_installation(settings.model_copy(update=changes))
    return next(result for result in results if result.subject == "embedder")


async def test_doctor_accepts_an_embedder_of_the_stored_dimension(settings: Settings) -> None:
    result = await check_embedder(settings)
    assert result == CheckResult("embedder", ok=True, message=f"openai:fake-words works, {DIMENSION} dimensions")


async def test_doctor_refuses_an_embedder_of_another_dimension(
    settings: Settings, embedding_server: FakeEmbeddingServer
) -> None:
    embedding_server.mode = "wrong_dimension"
    result = await check_embedder(settings)
    assert not result.ok
    assert f"returns {DIMENSION + 1} dimensions, but its stored vectors have {DIMENSION}" in result.message


async def test_doctor_warns_of_an_embedder_that_exceeds_the_budget_of_a_query(
    settings: Settings, embedding_server: FakeEmbeddingServer
) -> None:
    embedding_server.delay_s = 0.05
    result = await check_embedder(settings, query_embed_budget_ms=10)
    assert (result.ok, result.is_warning) == (True, True)
    assert "TOOLSCOUT_QUERY_EMBED_BUDGET_MS allows 10 ms" in result.message
    assert int(result.message.partition("it took ")[2].partition(" ms")[0]) >= 50
    assert not (await check_embedder(settings)).is_warning


async def check_identity(settings: Settings, **changes: Any) -> list[CheckResult]:
    results = await check_installation(settings.model_copy(update=changes))
    return [result for result in results if result.subject == "identity"]


async def test_doctor_tells_whether_the_identity_provider_can_be_used(settings: Settings) -> None:
    assert await check_identity(settings) == []
    with running_identity_provider() as provider:
        provider.keys = [make_key("first"), make_key("ec", "ES256")]
        reachable = CheckResult("identity", ok=True, message="identity provider: reachable, 2 keys")
        assert await check_identity(settings, **provider.settings()) == [reachable]
        [without_url] = await check_identity(settings, **provider.settings(public_url=None))
        assert (without_url.ok, without_url.is_warning) == (True, True)
        assert "TOOLSCOUT_PUBLIC_URL is not set" in without_url.message
        provider.status = 404
        [failed] = await check_identity(settings, **provider.settings())
        assert not failed.ok
        assert "openid-configuration answered with status 404" in failed.message

"""The service with the example of an operator's own embedder."""

from pathlib import Path
from typing import Any

import pytest

from app.container import open_container
from app.doctor import check_installation
from app.embeddings.base import Vectors
from app.errors import ConfigurationError
from examples.own_embedder import TrigramEmbedder
from tests.support.clients import new_user, open_client
from tests.support.factories import make_settings, tool

EXAMPLE = "python:examples.own_embedder:make_embedder"
MODEL = f"{EXAMPLE}:trigrams-512-v1"
TOOLS = [tool("translate", "Translate a sentence into another language."), tool("forecast", "The weather of a city.")]


def make_own_settings(folder: Path, **changes: Any) -> Any:
    return make_settings(folder, embedding_provider=EXAMPLE, **changes)


async def test_tools_are_indexed_and_found_with_an_own_embedder(fresh_database: str, tmp_path: Path) -> None:
    async with open_container(make_own_settings(tmp_path), fresh_database) as service:
        assert (service.model.id, service.model.dimension, service.warnings) == (MODEL, 512, ())
        async with new_user(service) as user:
            await user.add_tools(*TOOLS)
            answer = await user.discover("tranlate a sentense")
            assert (answer["degraded"], answer["embedding_generated"]) == (False, True)
            assert answer["tools"][0]["tool"]["name"] == "translate"
            assert answer["tools"][0]["source"] == "semantic"


async def test_an_own_embedder_that_fails_leaves_the_search_by_words(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_embedder: TrigramEmbedder, _texts: list[str]) -> Vectors:
        raise ConnectionError("the model server is down")

    async with open_container(make_own_settings(tmp_path), fresh_database) as service, new_user(service) as user:
        await user.add_tools(*TOOLS)
        monkeypatch.setattr(TrigramEmbedder, "embed_queries", fail)
        answer = await user.discover("translate a sentence")
        assert (answer["degraded"], answer["degraded_reason"]) == (True, "embedder_unreachable")
        assert [found["tool"]["name"] for found in answer["tools"]] == ["translate"]
        monkeypatch.undo()
        assert (await user.discover("translate the sentence"))["degraded"] is False


async def test_doctor_checks_an_own_embedder(fresh_database: str, tmp_path: Path) -> None:
    settings = make_own_settings(tmp_path, database_url=fresh_database)
    async with open_container(settings, fresh_database):
        pass
    results = {result.subject: result for result in await check_installation(settings)}
    assert (results["embedder"].ok, results["embedder"].message) == (True, f"{MODEL} works, 512 dimensions")
    wrong = settings.model_copy(update={"embedding_provider": "python:examples.own_embedder:other"})
    results = {result.subject: result for result in await check_installation(wrong)}
    assert not results["embedder"].ok
    assert "the module examples.own_embedder has no function 'other'" in results["embedder"].message


async def test_a_database_of_an_own_embedder_needs_its_setting(fresh_database: str, tmp_path: Path) -> None:
    async with open_container(make_own_settings(tmp_path), fresh_database):
        pass
    with pytest.raises(ConfigurationError, match=f"set TOOLSCOUT_EMBEDDING_PROVIDER to {EXAMPLE}"):
        async with open_container(make_settings(tmp_path), fresh_database):
            pass
    async with open_container(make_own_settings(tmp_path), fresh_database) as service, open_client(service) as http:
        assert (await http.get("/readyz")).json()["model"] == MODEL

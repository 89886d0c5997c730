"""Embedders of the operator's own: how they are found, and what their answers must be."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.embeddings.base import Embedder, QueryTicket
from app.embeddings.custom import CustomEmbedder
from app.embeddings.factory import make_configured_embedder, make_embedder
from app.embeddings.query_embedder import QueryEmbedder
from app.errors import ConfigurationError, EmbeddingFailed
from app.limits.circuit_breaker import CircuitBreaker
from app.observability.metrics import Metrics
from app.reload import RELOADABLE
from app.settings import Settings, load_settings
from tests.support.factories import make_settings

EXAMPLE = "python:examples.own_embedder:make_embedder"

MODULE = """
class Embedder:
    model = "words"

    def embed_documents(self, texts):
        return [[len(text), 1.0] for text in texts]

    embed_queries = embed_documents


class Incomplete:
    model = "words"
    embed_queries = None


class Named(Embedder):
    def __init__(self, model, batch_size=32):
        self.model, self.batch_size = model, batch_size


def make():
    return Embedder()

def make_from_settings(settings):
    return Named(f"at-{settings.port}")

def make_nothing():
    return None

def make_incomplete():
    return Incomplete()

def make_badly_named():
    return Named("two words")

def make_unnamed():
    return Named(None)

def make_badly_sized():
    return Named("words", 0)

def fail():
    raise ValueError("no such file: weights.bin")

async def make_later():
    return Embedder()

constant = 7
"""


class Plugin:
    """Answers with what `embed` returns or raises."""

    model = "fake"
    batch_size = 2

    def __init__(self, embed: Callable[[list[str]], Any]) -> None:
        self.embed_documents = self.embed_queries = embed


def embed_lengths(texts: list[str]) -> list[list[float]]:
    return [[len(text), 1.0] for text in texts]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)

    return write


def make_configured(folder: Path, provider: str, **settings: Any) -> Embedder:
    return make_configured_embedder(make_settings(folder, embedding_provider=provider, **settings))


@asynccontextmanager
async def open_embedder(plugin: Any, timeout_s: float = 60.0) -> AsyncIterator[CustomEmbedder]:
    embedder = CustomEmbedder(plugin, "python:a.b:c", document_timeout_s=timeout_s)
    yield embedder
    await embedder.aclose()


async def embed_and_fail(embedder: CustomEmbedder) -> EmbeddingFailed:
    with pytest.raises(EmbeddingFailed) as query:
        await embedder.embed_queries(["a", "b"])
    with pytest.raises(EmbeddingFailed) as documents:
        await embedder.embed_documents(["a", "b"])
    assert query.value.reason == documents.value.reason
    return query.value


async def test_the_example_is_an_embedder(tmp_path: Path) -> None:
    embedder = make_configured(tmp_path, EXAMPLE)
    assert embedder.model == f"{EXAMPLE}:trigrams-512-v1"
    assert (embedder.batch_size, embedder.is_local) == (256, False)
    documents = await embedder.embed_documents(["Translate a text", "Weather forecast", ""])
    query = (await embedder.embed_queries(["tranlsate this text"]))[0]
    assert documents.shape == (3, 512)
    assert int((documents @ query).argmax()) == 0
    await embedder.aclose()


@pytest.mark.parametrize(
    ("factory", "model"), [("make", "words"), ("make_from_settings", "at-8123"), ("Embedder", "words")]
)
async def test_a_factory_may_take_the_settings(
    tmp_path: Path, write_module: Callable[[str, str], None], factory: str, model: str
) -> None:
    write_module("plugin_good", MODULE)
    embedder = make_configured(tmp_path, f"python:plugin_good:{factory}", port=8123)
    assert embedder.model == f"python:plugin_good:{factory}:{model}"
    await embedder.aclose()


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        ("nowhere:make", "there is no module nowhere: install its package .* or set PYTHONPATH"),
        ("plugin_bad.inner:make", r"there is no module plugin_bad\.inner"),
        ("plugin_needs:make", "cannot import plugin_needs, because it needs the module missing_library"),
        ("plugin_broken:make", "cannot import plugin_broken: ZeroDivisionError: division by zero"),
        ("plugin_syntax:make", "cannot import plugin_syntax: SyntaxError"),
        ("plugin_bad:other", "the module plugin_bad has no function 'other'"),
        ("plugin_bad:constant", "the module plugin_bad has something else than a function as 'constant'"),
        ("plugin_bad:fail", r"python:plugin_bad:fail raised ValueError: no such file: weights\.bin"),
        ("plugin_bad:make_later", "python:plugin_bad:make_later is async"),
        ("plugin_bad:make_nothing", "returned a NoneType, which has no method embed_documents and no embed_queries"),
        ("plugin_bad:make_incomplete", "returned a Incomplete, which has no method embed_documents"),
        ("plugin_bad:make_badly_named", "`model` of what .* returned is 'two words'"),
        ("plugin_bad:make_unnamed", "`model` of what .* returned is None"),
        ("plugin_bad:make_badly_sized", "`batch_size` of what .* returned is 0, not 1 to 2048"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said_at_the_start(
    tmp_path: Path, write_module: Callable[[str, str], None], provider: str, reason: str
) -> None:
    write_module("plugin_bad", MODULE)
    write_module("plugin_needs", "import missing_library")
    write_module("plugin_broken", "1 / 0")
    write_module("plugin_syntax", "def")
    with pytest.raises(ConfigurationError, match=f"TOOLSCOUT_EMBEDDING_PROVIDER: .*{reason}"):
        make_configured(tmp_path, f"python:{provider}")


@pytest.mark.parametrize(
    "provider", ["remote", "python", "python:module", "python:a b:c", "python:a:b:c", "python:../a:b"]
)
def test_a_provider_that_names_no_factory_is_rejected(monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    monkeypatch.setenv("TOOLSCOUT_EMBEDDING_PROVIDER", provider)
    with pytest.raises(ConfigurationError, match=r"must be local, openai or python:package\.module:factory"):
        load_settings()
    monkeypatch.setenv("TOOLSCOUT_EMBEDDING_PROVIDER", "python:a.b_2:c")
    assert load_settings().embedding_provider == "python:a.b_2:c"


async def test_only_the_settings_name_code(tmp_path: Path, write_module: Callable[[str, str], None]) -> None:
    write_module("plugin_of_the_database", "raise RuntimeError('imported')")
    with pytest.raises(
        ConfigurationError, match="set TOOLSCOUT_EMBEDDING_PROVIDER to python:plugin_of_the_database:m,"
    ):
        make_embedder(make_settings(tmp_path), "python:plugin_of_the_database:m:words:1")
    settings = make_settings(tmp_path, embedding_provider=EXAMPLE)
    with pytest.raises(ConfigurationError, match=f"but the embedder is {EXAMPLE}:trigrams-512-v1 now"):
        make_embedder(settings, f"{EXAMPLE}:trigrams-512-v0")
    embedder = make_embedder(settings, f"{EXAMPLE}:trigrams-512-v1")
    await embedder.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        [[3, 4], [0, 2]],
        ((3.0, 4.0), (0.0, 2.0)),
        np.array([[3, 4], [0, 2]], np.float64),
        [np.array([3, 4]), np.array([0, 2])],
    ],
)
async def test_anything_like_an_array_becomes_unit_vectors(answer: Any) -> None:
    async with open_embedder(Plugin(lambda _: answer)) as embedder:
        for vectors in (await embedder.embed_queries(["a", "b"]), await embedder.embed_documents(["a", "b"])):
            np.testing.assert_allclose(vectors, [[0.6, 0.8], [0.0, 1.0]], atol=1e-6)
            assert vectors.dtype == np.float32


async def test_async_methods_run_on_the_event_loop_and_others_on_a_thread() -> None:
    threads = []

    async def embed_later(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        threads.append(threading.current_thread())
        return embed_lengths(texts)

    def embed(texts: list[str]) -> list[list[float]]:
        threads.append(threading.current_thread())
        return embed_lengths(texts)

    for method in (embed_later, partial(embed_later), embed):
        async with open_embedder(Plugin(method)) as embedder:
            assert (await embedder.embed_queries(["a"])).shape == (1, 2)
    main = threading.current_thread()
    assert [thread is main for thread in threads] == [True, True, False]


async def test_documents_come_in_batches_of_the_size_that_the_plugin_wants() -> None:
    batches = []

    def embed(texts: list[str]) -> list[list[float]]:
        batches.append(texts)
        return embed_lengths(texts)

    async with open_embedder(Plugin(embed)) as embedder:
        assert (await embedder.embed_documents(("a", "bb", "ccc"))).shape == (3, 2)
        assert (await embedder.embed_documents([])).shape[0] == 0
    assert batches == [["a", "bb"], ["ccc"]]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([[1, 2]], "wrong_count"),
        ([1, 2], "wrong_count"),
        ([[1, 2, 3], [1, 2, 3]], "wrong_dimension"),
        ([[1, float("nan")], [1, 2]], "not_finite"),
        ([[1, 1e300], [1, 2]], "not_finite"),
        ([[0, 0], [1, 2]], "no_direction"),
        ([[1], [1, 2]], "malformed"),
        (["a", "b"], "malformed"),
        (None, "wrong_count"),
        ({"data": []}, "malformed"),
    ],
)
async def test_every_answer_is_checked(answer: Any, reason: str) -> None:
    async with open_embedder(Plugin(lambda _: answer)) as embedder:
        embedder.expect_dimension(2)
        assert (await embed_and_fail(embedder)).reason == reason


@pytest.mark.parametrize(
    ("error", "reason", "is_outage"),
    [
        (ValueError("secret"), "plugin_failed", False),
        (KeyError("secret"), "plugin_failed", False),
        (StopIteration("secret"), "plugin_failed", False),
        (TimeoutError("secret"), "timeout", True),
        (ConnectionRefusedError("secret"), "unreachable", True),
        (EmbeddingFailed("status_503", "busy"), "status_503", True),
    ],
)
async def test_every_exception_is_an_embedding_failure_without_its_details(
    error: Exception, reason: str, is_outage: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_texts: list[str]) -> None:
        raise error

    async def fail_later(_texts: list[str]) -> None:
        if not isinstance(error, StopIteration):  # Python turns it into a RuntimeError itself
            raise error
        raise RuntimeError from error

    for method in (fail, fail_later):
        async with open_embedder(Plugin(method)) as embedder:
            failure = await embed_and_fail(embedder)
            assert (failure.reason, failure.retryable) == (reason, is_outage)
            assert "secret" not in failure.message
    assert ("secret" in caplog.text) == (not isinstance(error, EmbeddingFailed))


async def test_a_slow_query_ends_at_its_budget_and_later_ones_succeed() -> None:
    may_answer = threading.Event()

    def embed(texts: list[str]) -> list[list[float]]:
        may_answer.wait()
        return embed_lengths(texts)

    async with open_embedder(Plugin(embed)) as embedder:
        queries = QueryEmbedder(embedder, CircuitBreaker(5, 60), Metrics(), budget_s=0.05, cache_bytes=10_000)
        started = time.monotonic()
        with pytest.raises(EmbeddingFailed) as failure:
            await queries.embed("alice", ("slow",))
        assert failure.value.reason == "timeout"
        assert time.monotonic() - started < 5
        may_answer.set()
        assert (await embedder.embed_queries(["quick"])).shape == (1, 2)


class SlowPlugin(Plugin):
    """Embeds one query each time the test allows it."""

    def __init__(self) -> None:
        super().__init__(self.embed)
        self.texts: list[str] = []
        self.started = threading.Semaphore(0)
        self.may_answer = threading.Semaphore(0)

    def embed(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        self.started.release()
        self.may_answer.acquire()
        return embed_lengths(texts)


async def test_queries_that_wait_for_one_users_queries_neither_fail_nor_open_the_breaker() -> None:
    plugin, breaker = SlowPlugin(), CircuitBreaker(2, 60)
    async with open_embedder(plugin) as embedder:
        queries = QueryEmbedder(embedder, breaker, Metrics(), budget_s=10, cache_bytes=10_000, max_wait_s=0.05)
        flood = [asyncio.create_task(queries.embed("alice", (f"long {number}",))) for number in range(6)]
        await asyncio.to_thread(plugin.started.acquire)
        other = asyncio.create_task(queries.embed("bob", ("quick",)))
        answers = await asyncio.gather(*flood[1:], return_exceptions=True)
        assert {error.reason for error in answers if isinstance(error, EmbeddingFailed)} == {"busy"}
        with pytest.raises(EmbeddingFailed, match="wait"):
            await other
        assert not breaker.is_open
        other = asyncio.create_task(queries.embed("bob", ("quick",)))
        await asyncio.sleep(0)
        plugin.may_answer.release(10)
        assert (await other).generated
        assert (await flood[0]).generated
    assert plugin.texts == ["long 0", "quick"]


async def test_the_users_of_a_plugin_take_turns() -> None:
    plugin = SlowPlugin()
    async with open_embedder(plugin) as embedder:
        flood = [asyncio.create_task(embedder.embed_queries([f"{n}"], QueryTicket("alice"))) for n in range(5)]
        await asyncio.to_thread(plugin.started.acquire)
        other = asyncio.create_task(embedder.embed_queries(["quick"], QueryTicket("bob")))
        await asyncio.sleep(0)
        plugin.may_answer.release(10)
        await asyncio.gather(*flood, other)
    assert plugin.texts[:2] == ["0", "quick"]


async def test_queries_behind_a_call_that_hangs_open_the_breaker() -> None:
    plugin, breaker = SlowPlugin(), CircuitBreaker(3, 60)
    async with open_embedder(plugin) as embedder:
        queries = QueryEmbedder(embedder, breaker, Metrics(), budget_s=0.05, cache_bytes=10_000, max_wait_s=10)
        for user_id in ("alice", "bob", "carol"):
            with pytest.raises(EmbeddingFailed, match="did not answer in time"):
                await queries.embed(user_id, ("rain?",))
        with pytest.raises(EmbeddingFailed, match="given time to recover"):
            await queries.embed("dora", ("rain?",))
        plugin.may_answer.release(10)


async def test_a_batch_of_documents_has_a_timeout() -> None:
    may_answer = threading.Event()
    async with open_embedder(Plugin(lambda _: may_answer.wait()), timeout_s=0.05) as embedder:
        with pytest.raises(EmbeddingFailed) as failure:
            await embedder.embed_documents(["slow"])
        assert failure.value.reason == "timeout"
        may_answer.set()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_plugin_is_closed_once(is_async: bool) -> None:
    closed = []

    class Closing(Plugin):
        def aclose(self) -> Any:
            closed.append(self)
            return asyncio.sleep(0) if is_async else None

    async with open_embedder(Closing(embed_lengths)) as embedder:
        await embedder.aclose()
        assert (await embed_and_fail(embedder)).reason == "closed"
    assert len(closed) == 1


async def test_a_plugin_that_fails_to_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Plugin):
        def aclose(self) -> None:
            raise OSError("still busy")

    async with open_embedder(Failing(embed_lengths)):
        pass
    assert "failed to close" in caplog.text


def test_the_settings_of_an_embedder_cannot_be_reloaded() -> None:
    assert "embedding_provider" in Settings.model_fields
    assert "embedding_provider" not in RELOADABLE

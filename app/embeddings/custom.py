"""The operator's own embedder: `TOOLSCOUT_EMBEDDING_PROVIDER=python:package.module:factory`.

Only the setting names code. A model id in the database, which has the same form, never causes an import.
"""

import asyncio
import importlib
import inspect
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, cast

import numpy as np

from app.embeddings.base import EmbedderPlugin, QueryTicket, Vectors, check_vectors
from app.embeddings.time_budget import embed_in_time
from app.errors import ConfigurationError, EmbeddingFailed
from app.limits.fair_thread import FairExecutor
from app.settings import Settings

logger = logging.getLogger("toolscout.embeddings")

PROVIDER = "python"
DEFAULT_BATCH_SIZE = 32
MAX_BATCH_SIZE = 2_048

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+:-]{0,127}")


def make_custom_embedder(settings: Settings) -> "CustomEmbedder":
    """Call the factory that the settings name, or raise `ConfigurationError` that says what is wrong with it."""
    source = settings.embedding_provider
    module, name = source.removeprefix(f"{PROVIDER}:").split(":")
    factory = _import_factory(module, name)
    try:
        plugin = factory(settings) if _takes_settings(factory) else factory()
        _check_plugin(plugin, source)
    except ConfigurationError:
        raise
    except Exception as error:  # boundary: the operator's code
        raise _explain(f"{source} raised {type(error).__name__}: {error}") from error
    return CustomEmbedder(plugin, source, document_timeout_s=settings.index_embed_timeout_s)


class CustomEmbedder:
    """Checks every answer of a plug-in. Its methods that are not async run on threads, one for each of the two."""

    is_local = False

    def __init__(self, plugin: EmbedderPlugin, source: str, *, document_timeout_s: float) -> None:
        self.batch_size: int = getattr(plugin, "batch_size", DEFAULT_BATCH_SIZE)
        self._plugin = plugin
        self._model = f"{source}:{plugin.model}"
        self._document_timeout_s = document_timeout_s
        self._dimension: int | None = None
        self._documents = _MethodCaller(plugin, "embed_documents")
        self._queries = _MethodCaller(plugin, "embed_queries")
        self._closed = False

    @property
    def model(self) -> str:
        return self._model

    def load(self) -> None:
        """Nothing to load: the factory has done it."""

    def expect_dimension(self, dimension: int) -> None:
        self._dimension = dimension

    async def embed_documents(self, texts: Sequence[str], user_id: str = "") -> Vectors:
        batches = []
        for start in range(0, len(texts), self.batch_size):
            batch, ticket = list(texts[start : start + self.batch_size]), QueryTicket(user_id)
            embedding = self._embed(self._documents, batch, ticket)
            batches.append(await embed_in_time(embedding, ticket, budget_s=self._document_timeout_s))
        return np.concatenate(batches) if batches else np.empty((0, self._dimension or 0), np.float32)

    async def embed_queries(self, texts: Sequence[str], ticket: QueryTicket | None = None) -> Vectors:
        return await self._embed(self._queries, list(texts), ticket or QueryTicket(""))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for caller in (self._documents, self._queries):
            caller.close()
        close = getattr(self._plugin, "aclose", None)
        try:
            if close is not None and inspect.isawaitable(closing := close()):
                await closing
        except Exception:  # boundary: the operator's code
            logger.exception("the embedder %s failed to close", self._model)

    async def _embed(self, caller: "_MethodCaller", texts: list[str], ticket: QueryTicket) -> Vectors:
        if self._closed:
            raise _closed()
        try:
            answer = await caller.call(texts, ticket)
            vectors = _to_vectors(await answer if inspect.isawaitable(answer) else answer)
        except EmbeddingFailed:
            raise
        except Exception as error:  # boundary: the operator's code
            raise self._translate(error) from error
        return check_vectors(vectors, count=len(texts), dimension=self._dimension)

    def _translate(self, error: Exception) -> EmbeddingFailed:
        """Callers see the message, so the details, which may be secret, are in the log alone."""
        logger.warning("the embedder %s failed", self._model, exc_info=error)
        if isinstance(error, TimeoutError):
            return EmbeddingFailed("timeout", "the embedder did not answer in time")
        if isinstance(error, ConnectionError):
            return EmbeddingFailed("unreachable", "the embedder cannot be reached")
        return EmbeddingFailed("plugin_failed", f"the embedder raised {type(error).__name__}")


class _MethodCaller:
    """Calls a method of the plug-in: an async one at once, others on a thread, where all users have their turns."""

    def __init__(self, plugin: EmbedderPlugin, method: Literal["embed_documents", "embed_queries"]) -> None:
        self._plugin = plugin
        self._method = method
        self._executor = FairExecutor(f"plugin-{method}")
        self._exceeded: Future[Any] | None = None
        """The last call that was given up while the plug-in worked on it."""

    async def call(self, texts: list[str], ticket: QueryTicket) -> Any:
        embed = getattr(self._plugin, self._method)
        if inspect.iscoroutinefunction(embed):
            return await embed(texts)
        future = self._executor.submit(ticket.user_id, partial(_call, embed, texts))
        ticket.is_waiting = lambda: not (future.running() or future.done() or self._is_stuck())
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.running():
                self._exceeded = future
            raise

    def close(self) -> None:
        """Do not wait for a call, which may hang."""
        self._executor.close(_closed())

    def _is_stuck(self) -> bool:
        """Whether the plug-in is still at a call that was given up. Who waits behind it waits for the plug-in."""
        return self._exceeded is not None and not self._exceeded.done()


def _call(embed: Callable[[list[str]], Any], texts: list[str]) -> Any:
    try:
        answer = embed(texts)
    except StopIteration as error:  # asyncio cannot pass it on from a thread, and its caller would wait for ever
        raise RuntimeError("the embedder raised StopIteration") from error
    return answer if inspect.isawaitable(answer) else _to_vectors(answer)


def _closed() -> EmbeddingFailed:
    return EmbeddingFailed("closed", "the embedder is closed")


def _to_vectors(answer: Any) -> Vectors:
    try:
        with np.errstate(over="ignore"):  # too large a number becomes infinity, which `check_vectors` rejects
            return np.asarray(answer, dtype=np.float32)
    except (TypeError, ValueError) as error:
        message = f"the embedder returned a {type(answer).__name__} that is no array of numbers"
        raise EmbeddingFailed("malformed", message) from error


def _import_factory(module_name: str, name: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _explain(f"cannot import {module_name}, because it needs the module {error.name}") from error
        raise _explain(
            f"there is no module {error.name}: install its package into the environment of Toolscout, or set "
            "PYTHONPATH to the folder that contains it"
        ) from error
    except Exception as error:  # boundary: the operator's code
        raise _explain(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        problem = "has no function" if factory is None else "has something else than a function as"
        raise _explain(f"the module {module_name} {problem} {name!r}")
    return cast("Callable[..., Any]", factory)


def _takes_settings(factory: Callable[..., Any]) -> bool:
    """Whether the factory has a positional parameter; one with a default counts, too."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some functions of extension modules have no signature
        return False
    return any(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)


def _check_plugin(plugin: Any, source: str) -> None:
    """Raise `ConfigurationError` unless this is an `EmbedderPlugin`."""
    if inspect.isawaitable(plugin):
        if inspect.iscoroutine(plugin):
            plugin.close()
        raise _explain(f"{source} is async; the factory must return the embedder itself")
    missing = [name for name in ("embed_documents", "embed_queries") if not callable(getattr(plugin, name, None))]
    if missing:
        raise _explain(f"{source} returned a {type(plugin).__name__}, which has no method {' and no '.join(missing)}")
    model = getattr(plugin, "model", None)
    if not isinstance(model, str) or not _MODEL_NAME.fullmatch(model):
        raise _explain(
            f"the attribute `model` of what {source} returned is {model!r}; it must be the name of the model: up to "
            "128 letters, digits or . _ / @ + : -"
        )
    size = getattr(plugin, "batch_size", DEFAULT_BATCH_SIZE)
    if not isinstance(size, int) or not 1 <= size <= MAX_BATCH_SIZE:
        raise _explain(f"the attribute `batch_size` of what {source} returned is {size!r}, not 1 to {MAX_BATCH_SIZE}")


def _explain(problem: str) -> ConfigurationError:
    return ConfigurationError(f"TOOLSCOUT_EMBEDDING_PROVIDER: {problem}")

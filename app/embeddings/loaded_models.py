"""The registered models as loaded by this process. It watches the list, so that a switch needs no restart.

A request reads its model once, as part of its scope, and looks up everything else by that id. So its vectors, rows and
threshold belong to one model, even if another becomes active meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from app.db.engine import Database
from app.db.notifications import POLL_S
from app.embeddings.base import Embedder, QueryTicket, Vectors
from app.embeddings.query_embedder import QueryEmbedder
from app.embeddings.repository import EmbeddingModel, fetch_models
from app.errors import ConfigurationError, EmbeddingFailed, QueryFailed, Unavailable

logger = logging.getLogger("toolscout.embeddings")


@dataclass(frozen=True)
class LoadedModel:
    model: EmbeddingModel
    embedder: Embedder
    queries: QueryEmbedder
    error: str | None = None
    """Why this process cannot embed with the model."""


class Models:
    def __init__(
        self,
        database: Database,
        make_embedder: Callable[[EmbeddingModel], Embedder],
        make_query_embedder: Callable[[Embedder], QueryEmbedder],
        configured: str | None,
        on_change: Callable[[str, int], None] = lambda _model, _dimension: None,
    ) -> None:
        """Call `refresh` before use.

        `make_embedder` raises `ConfigurationError` if the settings lack what a model needs. `configured` is the id of
        the model that the settings name, if it can be loaded. `on_change` is called with the id and the dimension of
        the current model whenever it changes.
        """
        self._database = database
        self._make_embedder = make_embedder
        self._make_query_embedder = make_query_embedder
        self._configured = configured
        self._on_change = on_change
        self._loaded: dict[str, LoadedModel] = {}
        self._registered: Sequence[LoadedModel] = ()
        self._current: str | None = None
        self._logged_warnings: tuple[str, ...] = ()
        self._refreshing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    @property
    def current(self) -> LoadedModel:
        """The model for new requests: the active one, unless this process cannot load it."""
        if self._current is None:
            raise ConfigurationError("no embedding model is active yet")
        return self._loaded[self._current]

    def get(self, model_id: str) -> LoadedModel:
        """Return a model by its id, even if it has been dropped since: a request ends with the model it began with."""
        return self._loaded[model_id]

    @property
    def warnings(self) -> tuple[str, ...]:
        failure = None if self.current.error is not None else self.current.queries.warning
        return tuple(filter(None, (self._find_problem(), failure)))

    def _find_problem(self) -> str | None:
        """Say what is wrong with the choice of the model, if anything."""
        active, current = self._registered[0], self.current
        if active.model.id != current.model.id:
            return (
                f"cannot load the active model {active.model.id}: {active.error}; "
                f"still serving {current.model.id} until it is dropped"
            )
        if current.error is not None:
            return f"cannot embed with {active.model.id}: {current.error}; tools are found by words alone"
        if self._configured not in (None, active.model.id):
            return (
                f"{active.model.id} is active and keeps serving, but these settings are for {self._configured}: "
                f"run `toolscout model use {self._configured}` to switch"
            )
        return None

    def start(self) -> None:
        self._poller = asyncio.create_task(self._poll())

    def notify(self) -> None:
        """Read the list again soon: another process may have changed it."""
        self._changed.set()

    async def stop(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        for loaded in self._loaded.values():
            await loaded.embedder.aclose()

    async def refresh(self) -> Sequence[LoadedModel]:
        """Read the list of models from the database. Return all registered models, the active one first."""
        async with self._refreshing:
            models = await fetch_models(self._database)
            self._registered = [await self._get_or_load(model) for model in models]
            before, self._current = self._current, self._choose_current()
            if self._current != before:
                self._on_change(self.current.model.id, self.current.model.dimension)
            self._log_new_warnings()
            return self._registered

    async def _poll(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                with suppress(Unavailable, QueryFailed):
                    await self.refresh()
            except Exception:  # boundary: if the poller ended, this process would never see another model
                logger.exception("failed to refresh the embedding models")

    async def _get_or_load(self, model: EmbeddingModel) -> LoadedModel:
        """Keep the embedder and its cache if only the calibration or the active flag has changed."""
        loaded = self._loaded.get(model.id)
        if loaded is None or loaded.model.dimension != model.dimension:
            loaded = await asyncio.to_thread(self._load, model)
        self._loaded[model.id] = loaded = replace(loaded, model=model)
        return loaded

    def _load(self, model: EmbeddingModel) -> LoadedModel:
        embedder: Embedder
        try:
            embedder, message = self._make_embedder(model), None
            embedder.load()
        except ConfigurationError as error:
            embedder, message = UnavailableEmbedder(model.id), error.message
        embedder.expect_dimension(model.dimension)
        return LoadedModel(model, embedder, self._make_query_embedder(embedder), message)

    def _choose_current(self) -> str | None:
        """Choose the active model. If it cannot be loaded, stay with the previous one as long as its rows exist."""
        ids = [loaded.model.id for loaded in self._registered]
        if self._current in ids and self._registered[0].error is not None:
            return self._current
        return ids[0] if ids else self._current

    def _log_new_warnings(self) -> None:
        for warning in set(self.warnings) - set(self._logged_warnings):
            logger.warning(warning)
        self._logged_warnings = self.warnings


class UnavailableEmbedder:
    """Stands in for an embedder that cannot be built with these settings."""

    batch_size = 1
    is_local = False

    def __init__(self, model: str) -> None:
        self._model = model

    @property
    def model(self) -> str:
        return self._model

    def load(self) -> None:
        """Nothing to load."""

    def expect_dimension(self, dimension: int) -> None:
        """Nothing to check."""

    async def embed_documents(self, _texts: Sequence[str], _user_id: str = "") -> Vectors:
        raise EmbeddingFailed("not_configured", f"the settings lack what {self._model} needs")

    async def embed_queries(self, texts: Sequence[str], _ticket: QueryTicket | None = None) -> Vectors:
        return await self.embed_documents(texts)

    async def aclose(self) -> None:
        """Nothing to close."""

"""The registered models as this process knows them: looked up all the time, so that another one takes over unasked.

A request takes its model once, as part of its scope, and asks for the rest by that name: its vectors, rows and
threshold are of one model, also if another becomes active meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from app.db.engine import Database
from app.embeddings.base import Embedder, Vectors
from app.embeddings.query_embedder import QueryEmbedder
from app.embeddings.repository import EmbeddingModel, registered_models
from app.errors import ConfigurationError, EmbeddingFailed, QueryFailed, Unavailable

logger = logging.getLogger("toolscout.embeddings")

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class LoadedModel:
    model: EmbeddingModel
    embedder: Embedder
    queries: QueryEmbedder
    trouble: str | None = None
    """Why this process cannot embed with it."""


class Models:
    def __init__(
        self,
        database: Database,
        build: Callable[[EmbeddingModel], Embedder],
        queries: Callable[[Embedder], QueryEmbedder],
        wanted: str | None,
        on_serving: Callable[[str, int], None] = lambda _model, _dimension: None,
    ) -> None:
        """`build` raises `ConfigurationError` where the settings do not allow for a model; `wanted` is the one that
        they name, if it can be had. `on_serving` is told which one serves, and its dimension, whenever that changes."""
        self._database = database
        self._build = build
        self._queries = queries
        self._wanted = wanted
        self._on_serving = on_serving
        self._known: dict[str, LoadedModel] = {}
        self._registered: Sequence[LoadedModel] = ()
        self._serving: str | None = None
        self._told: tuple[str, ...] = ()
        self._looking = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    @property
    def serving(self) -> LoadedModel:
        """What a request that begins now is answered by: the active one, unless it cannot be had here."""
        if self._serving is None:
            raise ConfigurationError("no embedding model is active yet")
        return self._known[self._serving]

    def named(self, model_id: str) -> LoadedModel:
        """Also one that has been dropped since: whoever began with it ends with it."""
        return self._known[model_id]

    @property
    def warnings(self) -> tuple[str, ...]:
        active, serving = self._registered[0].model, self.serving
        if active.id != serving.model.id:
            return (f"CANNOT SERVE the active model, {active.id}: {self._known[active.id].trouble}; {_still(serving)}",)
        if serving.trouble is not None:
            return (f"CANNOT EMBED with {active.id}, so tools are found by their words alone: {serving.trouble}",)
        if self._wanted not in (None, active.id):
            return (
                f"settings name the model {self._wanted}; still serving the active one, {active.id} "
                "(`toolscout model use` makes the change)",
            )
        return ()

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for kept in self._known.values():
            await kept.embedder.aclose()

    async def refresh(self) -> Sequence[LoadedModel]:
        """All that are registered by now, the active one first."""
        async with self._looking:
            async with self._database.system_transaction() as session:
                found = await registered_models(session)
            self._registered = [await self._kept(model) for model in found]
            before, self._serving = self._serving, self._served()
            if self._serving != before:
                self._on_serving(self.serving.model.id, self.serving.model.dimension)
            self._tell()
            return self._registered

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                with suppress(Unavailable, QueryFailed):
                    await self.refresh()
            except Exception:  # the watch's boundary: one that ended would leave this process behind for good
                logger.exception("the registered models could not be looked up")

    async def _kept(self, model: EmbeddingModel) -> LoadedModel:
        """As it is known already, with its caches, where only what its numbers mean has changed."""
        known = self._known.get(model.id)
        if known is None or known.model.dimension != model.dimension:
            known = await asyncio.to_thread(self._made, model)
        self._known[model.id] = known = replace(known, model=model)
        return known

    def _made(self, model: EmbeddingModel) -> LoadedModel:
        try:
            embedder, trouble = self._build(model), None
        except ConfigurationError as error:
            embedder, trouble = UnavailableEmbedder(model.id), error.message
        embedder.expect_dimension(model.dimension)
        return LoadedModel(model, embedder, self._queries(embedder), trouble)

    def _served(self) -> str | None:
        """Where the active one cannot be had, the one that was served so far, while its rows are there."""
        ids = [kept.model.id for kept in self._registered]
        if self._serving in ids and self._registered[0].trouble is not None:
            return self._serving
        return ids[0] if ids else self._serving

    def _tell(self) -> None:
        """Once, when it begins."""
        for warning in set(self.warnings) - set(self._told):
            logger.warning(warning)
        self._told = self.warnings


def _still(serving: LoadedModel) -> str:
    return f"still serving {serving.model.id}, until it is dropped"


class UnavailableEmbedder:
    """Stands for an embedder that the settings do not allow for."""

    batch_size = 1
    is_local = False

    def __init__(self, model: str) -> None:
        self._model = model

    @property
    def model(self) -> str:
        return self._model

    def expect_dimension(self, dimension: int) -> None:
        """There is nothing to check."""

    async def embed_documents(self, _texts: Sequence[str]) -> Vectors:
        raise EmbeddingFailed("not_configured", f"{self._model} cannot be had with these settings")

    embed_queries = embed_documents

    async def aclose(self) -> None:
        """There is nothing to close."""

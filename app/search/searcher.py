"""Embed a query and search a user's visible tools for it.

Discovery, explanations, evaluation and inline search are all built on the `Searcher`.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from app.auth.users import User
from app.catalog.projects import Project, ProjectCache
from app.catalog.visibility import Scope
from app.db.engine import BatchReader, Database, Reader
from app.embeddings.base import Vector
from app.embeddings.calibration import UserCalibration
from app.embeddings.loaded_models import Models
from app.embeddings.repository import EmbeddingModel
from app.errors import EmbeddingFailed, QueryFailed
from app.limits.fair_queue import FairScheduler
from app.observability.metrics import Metrics
from app.observability.tracing import Tracing, trace_call
from app.search.glossary import Glossary
from app.search.large_tenant import LargeTenantSearch
from app.search.learned import NOTHING_LEARNED, Learned, LearnedCache
from app.search.postgres import Evidence, HybridSearch, SearchResult
from app.search.query import Query, parse_query
from app.search.questions import QuestionCache
from app.search.scoring import ScoringParams, Strategy
from app.search.term_stats import TermStats

logger = logging.getLogger("toolscout.search")


@dataclass(frozen=True)
class SearchOptions:
    """Where and how to search, with every default resolved except the model's calibrated threshold."""

    scope: Scope
    strategy: Strategy
    threshold: float | None
    """None: the model's calibrated threshold."""
    limit: int
    requested_limit: int | None = None
    """The limit of the request, the project or the user; None: the limit is the default."""
    fill: bool = False
    """Return as many tools as the limit allows, and not only those that the message needs."""
    own_calibration: UserCalibration | None = None
    """What replaces the model's calibration for this user."""
    shift: float = 0.0
    """By how many logits this user's outcomes raise the chance that a tool fits."""
    learned: bool = True
    """Whether examples that were learnt from this user's messages count, and whether more are learnt."""
    cloud: bool = False
    """Search through the cloud; `strategy` is that of a search which cannot, such as over tools of a request."""
    enabled: bool = True
    """False: the project does not search, and answers with core tools alone."""
    confined: bool = False
    """Whether the caller's key is bound to the project, so that tools outside of it do not exist for the caller."""
    catalog_version: int = 0
    """Of the user, when the request began. What is cached of an earlier version is not used."""
    examples_version: int = 0


@dataclass(frozen=True)
class QueryEmbedding:
    """The embedding of each text of a query, or the reason why there is none."""

    strategy: Strategy
    """What can be searched with: `bm25` if the embedder failed."""
    vectors: Sequence[Vector] | None = None
    reason: str | None = None
    generated: bool = False
    """False: the vectors were cached, or none are needed."""


@dataclass(frozen=True)
class Searcher:
    database: Database
    models: Models
    hybrid_search: HybridSearch
    large_tenant_search: LargeTenantSearch
    glossary: Glossary
    scheduler: FairScheduler
    metrics: Metrics
    learned: bool = True
    """Whether examples that were learnt from uses count."""
    tracing: Tracing = field(default_factory=Tracing)
    learned_cache: LearnedCache = field(default_factory=LearnedCache)
    projects: ProjectCache = field(default_factory=ProjectCache)

    @cached_property
    def questions(self) -> QuestionCache:
        return QuestionCache(self.glossary)

    @property
    def model(self) -> EmbeddingModel:
        """The model for new requests; a request in progress uses the model of its scope."""
        return self.models.current.model

    @trace_call("embed", "reason")
    async def embed_query(self, query: Query, options: SearchOptions) -> QueryEmbedding:
        """Embed the texts of a query; if the embedder fails, fall back to `bm25`.

        Call it before opening a session: no connection is held while waiting for an embedder.
        """
        if options.strategy == "bm25":
            return QueryEmbedding("bm25")
        user_id = options.scope.user_id
        try:
            loaded = self.models.get(options.scope.model)
            # The embedder's queue is fair by itself. The slot also spreads a user's crowd, so that the other steps of
            # its requests do not come all at once.
            async with self.scheduler.slot(user_id) if loaded.embedder.is_local else nullcontext():
                embedded = await loaded.queries.embed(user_id, query.texts)
        except EmbeddingFailed as error:
            logger.warning("query embedding failed, searching by words alone", extra={"reason": error.reason})
            return QueryEmbedding("bm25", reason=f"embedder_{error.reason}")
        return QueryEmbedding(options.strategy, embedded.vectors, generated=embedded.generated)

    async def embed_messages(self, user_id: str, messages: Sequence[str]) -> tuple[str, Sequence[Vector]]:
        """Embed messages as they would be searched for. Return the id of the model, too.

        Raise `EmbeddingFailed` if the embedder fails.
        """
        loaded = self.models.current
        if not messages:
            return loaded.model.id, ()
        texts = tuple(parse_query(message).search_text for message in messages)
        return loaded.model.id, (await loaded.queries.embed(user_id, texts)).vectors

    def make_params(self, query: Query, options: SearchOptions, embedding: QueryEmbedding) -> ScoringParams:
        calibration = self.models.get(options.scope.model).model.calibration
        return ScoringParams(
            query=query,
            strategy=embedding.strategy,
            threshold=options.threshold,
            tags=options.scope.tags or (),
            calibration=calibration.personalize(options.own_calibration).shift(options.shift),
            fill=options.fill,
            learned=self.learned and options.learned,
        )

    def choose_example_vector(self, query: Query, options: SearchOptions, embedding: QueryEmbedding) -> Vector | None:
        """Return the vector that says what the message is about: read alone, or in its context if it says too little
        by itself."""
        if embedding.vectors is None:
            return None
        calibration = self.models.get(options.scope.model).model.calibration
        is_complete = not query.context or calibration.score_tool_need(embedding.vectors[0]) > 0
        return embedding.vectors[0 if is_complete else -1]

    async def find(
        self,
        reader: Reader,
        query: Query,
        options: SearchOptions,
        embedding: QueryEmbedding,
        *,
        limit: int | None,
        ann: bool = False,
        stats: TermStats | None = None,
    ) -> SearchResult:
        """Return the best hits, or the whole ranking if `limit` is None.

        `ann`: the user is so large that candidates are taken from indexes; every other user is searched exactly.
        `stats` are what `prepare` returned, if it was called.
        """
        scope, vectors = options.scope, embedding.vectors
        params = self.make_params(query, options, embedding)
        learned = await self._get_learned(reader, options, embedding)
        if ann and limit is not None:
            found = await self.large_tenant_search.find(reader, scope, params, vectors, limit=limit, learned=learned)
            if found is not None:
                return found
        return await self.hybrid_search.find(reader, scope, params, vectors, limit=limit, learned=learned, stats=stats)

    async def read_evidence(
        self,
        reader: Reader,
        query: Query,
        options: SearchOptions,
        embedding: QueryEmbedding,
        tool_ids: Sequence[str],
    ) -> dict[str, Evidence]:
        """Return why each of these tools ranks where it does, by id; tools that are not visible are left out."""
        params = self.make_params(query, options, embedding)
        learned = await self._get_learned(reader, options, embedding)
        return await self.hybrid_search.read_evidence(
            reader, options.scope, params, embedding.vectors, tool_ids, learned
        )

    async def prepare(
        self, scope: Scope, queries: Sequence[Query], user: User
    ) -> tuple[Project | None, TermStats | None]:
        """Return the project, and count the terms of the queries. Read all that searches in Postgres need besides the
        tools, in one round trip, unless it is cached.

        Raise `NotFound` if the project of the scope does not exist. There are no counts if they cannot be read: the
        search fails, too, and has a fallback.
        """
        version, at_least = user.catalog_version, scope.get_versions(user)
        reader = BatchReader(self.database, scope.user_id, at_least=at_least)
        if user.ann:  # counting reads all rows of the user, which the search through indexes need not
            return await self.read_project(reader, scope, version), None
        try:
            project, stats, _, _ = await asyncio.gather(
                self.read_project(reader, scope, version),
                self.hybrid_search.count_terms(reader, scope, queries, version),
                self.hybrid_search.read_tags(reader, scope, version),
                self._read_learned(reader, scope, version, user.examples_version),
            )
        except QueryFailed:
            reader_alone = self.database.reader(scope.user_id, at_least=at_least)
            return await self.read_project(reader_alone, scope, version), None
        return project, stats

    async def read_project(self, reader: Reader, scope: Scope, version: int) -> Project | None:
        """Return the project of the scope, if it has one. Raise `NotFound` if it does not exist."""
        if scope.project_id is None:
            return None
        return await self.projects.get(reader, scope.user_id, scope.project_id, version)

    async def _get_learned(self, reader: Reader, options: SearchOptions, embedding: QueryEmbedding) -> Learned:
        """Return the examples for a search in Postgres, which reads the priors from the rows of the tools."""
        if embedding.vectors is None:
            return NOTHING_LEARNED
        return await self._read_learned(reader, options.scope, options.catalog_version, options.examples_version)

    async def _read_learned(self, reader: Reader, scope: Scope, catalog_version: int, examples_version: int) -> Learned:
        known = self.learned_cache.get(scope, catalog_version, examples_version)
        return await self.learned_cache.read(reader, scope) if known is None else known

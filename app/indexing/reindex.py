"""The deed: make what is indexed of a server equal to what it offers, as it was pushed or as the server says itself.

It embeds first and applies in one transaction, so that the old index serves until then. With the embedder down it
applies without vectors: the tools are found by their words, and the vectors follow.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from app.catalog.policy import Policy
from app.catalog.servers import Server, get_endpoint, get_server, record_contact
from app.catalog.visibility import ServerLock, lock_server, read_policy
from app.crypto import Sealer
from app.db.engine import Database
from app.embeddings.base import Embedder, Vector
from app.embeddings.models import LoadedModel
from app.embeddings.repository import lock_models_shared
from app.errors import EmbeddingFailed
from app.indexing import queue, store
from app.indexing.documents import text_hash
from app.indexing.parsing import Listing, parse_listing
from app.indexing.plan import CountTokens, IndexTarget, MissingVector, ModelUpdate, Plan, StoredTool, make_plan
from app.mcp_client.pool import McpPool
from app.mcp_types import Endpoint
from app.observability.metrics import Metrics, count_embedding_failures, observe_duration
from app.observability.tracing import Tracing, trace_call
from app.text.strict_json import Json, parse_json

logger = logging.getLogger("toolscout.indexing")

_FAILURES_OF_SINGLE_TEXTS = 5
_NAMES_TOLD = 10


@dataclass(frozen=True)
class Indexer:
    """What a run needs, built once."""

    database: Database
    models: Callable[[], Awaitable[Sequence[LoadedModel]]]
    """All that are registered at this moment, the active one first."""
    count_tokens: CountTokens
    metrics: Metrics
    max_tools: int
    ann_above: int
    mcp_pool: McpPool
    sealer: Sealer
    computing: asyncio.Semaphore
    """Many servers are waited for at once, few are embedded at once."""
    tracing: Tracing = field(default_factory=Tracing)


@trace_call("reindex")
async def reindex_server(indexer: Indexer, run: queue.Claim) -> queue.RunState:
    while True:
        try:
            return await _reindex_once(indexer, run)
        except _Changed:
            logger.info("the server or the models were changed meanwhile, indexing it anew", extra={"run_id": run.id})


class _Changed(Exception):
    """Something is not what it was when the plan was made: the server has another name, which is part of what is
    searched, or another address; or there are other models."""


async def _reindex_once(indexer: Indexer, run: queue.Claim) -> queue.RunState:
    server, listing = await _offered(indexer, run)
    async with indexer.computing:
        return await _index(indexer, run, server, listing)


async def _index(indexer: Indexer, run: queue.Claim, server: Server, listing: Listing) -> queue.RunState:
    active, *others = await indexer.models()
    async with indexer.database.transaction(run.user_id) as session:
        policy = await read_policy(session)
        stored = await store.stored_tools(session, run.user_id, run.server_id, active.model.id)
    offered_before = any(not tool.vanished for tool in stored.values())
    if offered_before and not listing.tools and not run.accept_empty:
        return await _refuse_empty(indexer, run, listing)
    place = IndexTarget(server.id, server.name, active.model.id, active.model.dimension)
    plan = await _planned(indexer, listing, stored, place, force=run.force)
    embedding = Embedding(indexer, active.embedder, _Report(indexer, run, len(listing.tools)))
    await embedding.gather(plan.wanted, afresh=run.force)
    outcome = queue.RunSummary(
        added=plan.added,
        changed=plan.changed,
        unchanged=plan.unchanged,
        removed=len(plan.removed_ids),
        embedded=embedding.computed,
        refused_count=listing.refused_count,
        refused=[asdict(refusal) for refusal in listing.refused],
        warnings=[*_told(policy, run, server, listing, plan), *embedding.warnings],
    )
    seen = ServerLock(server.name, server.config_version)
    own = ModelUpdate(place, plan, embedding.vectors)
    shares = [own, *[await _share_of_another(indexer, run, server, listing, kept) for kept in others]]
    await _apply(indexer, run, seen, shares, outcome, total=len(listing.tools))
    return "succeeded"


async def _share_of_another(
    indexer: Indexer, run: queue.Claim, server: Server, listing: Listing, kept: LoadedModel
) -> ModelUpdate:
    """Of a model that is not active its rows follow every change; of its vectors those that somebody has had made
    before. The others are made before it becomes active: see filling.py."""
    place = IndexTarget(server.id, server.name, kept.model.id, kept.model.dimension)
    async with indexer.database.transaction(run.user_id) as session:
        stored = await store.stored_tools(session, run.user_id, run.server_id, place.model)
    plan = await _planned(indexer, listing, stored, place, force=False)
    return ModelUpdate(place, plan, await known_vectors(indexer, place.model, plan.wanted))


async def _planned(
    indexer: Indexer, listing: Listing, stored: Mapping[str, StoredTool], place: IndexTarget, *, force: bool
) -> Plan:
    # hashing and counting a thousand definitions takes a while: not on the event loop
    return await asyncio.to_thread(make_plan, listing.tools, stored, place, indexer.count_tokens, force=force)


def _told(policy: Policy, run: queue.Claim, server: Server, listing: Listing, plan: Plan) -> Iterator[str]:
    """What a person should know of."""
    if run.payload is not None and server.transport != "push":
        yield "this server is asked for its own list, which will take this one's place"
    yield from listing.warnings
    flagged = [tool.definition.name for tool in listing.tools if tool.findings]
    if flagged:
        yield f"flagged, see `findings` of the tool: {_some(flagged)}"
    if plan.unapproved and policy.hold_changed:
        yield f"changed, and held until approved: {_some(plan.unapproved)}"


def _some(names: Sequence[str]) -> str:
    further = len(names) - _NAMES_TOLD
    return ", ".join(names[:_NAMES_TOLD]) + (f" and {further} more" if further > 0 else "")


async def _offered(indexer: Indexer, run: queue.Claim) -> tuple[Server, Listing]:
    """No connection to the database is held while the server is asked."""
    async with indexer.database.transaction(run.user_id) as session:
        server = await get_server(session, run.user_id, run.server_id)
        asked = run.asks and server.transport != "push"
        if not asked and run.payload is None:
            return server, Listing(await store.stored_listing(session, run.user_id, run.server_id))
        endpoint = await get_endpoint(session, indexer.sealer, run.user_id, run.server_id) if asked else None
    if endpoint is not None:
        tools = await _asked(indexer, endpoint)
    else:
        tools = (await asyncio.to_thread(parse_json, run.payload or b"{}"))["tools"]
    return server, await asyncio.to_thread(parse_listing, tools, max_tools=indexer.max_tools)


async def _asked(indexer: Indexer, endpoint: Endpoint) -> list[Json]:
    with observe_duration(indexer.metrics.upstream_seconds, "list"):
        return await indexer.mcp_pool.list_tools(endpoint)


async def _refuse_empty(indexer: Indexer, run: queue.Claim, listing: Listing) -> queue.RunState:
    message = (
        "the list holds no usable tool, though the server had some; the old index stays (`?force=true` accepts it)"
    )
    refused = [asdict(refusal) for refusal in listing.refused]
    outcome = queue.RunSummary(refused_count=listing.refused_count, refused=refused, warnings=listing.warnings)
    async with indexer.database.transaction(run.user_id) as session:
        await queue.fail(session, run, "empty_listing", message, outcome)
    return "failed"


async def _apply(
    indexer: Indexer,
    run: queue.Claim,
    seen: ServerLock,
    shares: Sequence[ModelUpdate],
    outcome: queue.RunSummary,
    total: int,
) -> None:
    async with indexer.database.transaction(run.user_id) as session:
        models = await lock_models_shared(session)
        locked = await lock_server(session, run.user_id, run.server_id)
        await queue.fence(session, run)
        if locked != seen or models != [share.place.model for share in shares]:
            raise _Changed
        if _something_to_write(shares):
            await store.apply_updates(session, run.user_id, shares, run_id=run.id, ann_above=indexer.ann_above)
        if run.asks or run.payload is not None:
            await record_contact(session, run.user_id, run.server_id)
        await queue.succeed(session, run, outcome, total)


def _something_to_write(shares: Sequence[ModelUpdate]) -> bool:
    own, *others = shares
    return not own.plan.empty or any(share.plan.rows or share.vectors for share in others)


async def known_vectors(indexer: Indexer, model: str, wanted: Sequence[MissingVector]) -> dict[str, Vector]:
    """By tool, from the cache that all users share."""
    if not wanted:
        return {}
    hashes = {tool.tool_id: text_hash(tool.text) for tool in wanted}
    async with indexer.database.system_transaction() as session:
        known = await store.cached_vectors(session, model, list(hashes.values()))
    return {tool_id: known[key] for tool_id, key in hashes.items() if key in known}


@dataclass(frozen=True)
class _Report:
    """Tells a run's watchers how far its embedding is."""

    indexer: Indexer
    run: queue.Claim
    total: int

    async def __call__(self, left: int) -> None:
        done = self.total - max(left, 0)
        async with self.indexer.database.transaction(self.run.user_id) as session:
            await queue.report_progress(session, self.run, done, self.total)
        extra = {"run_id": self.run.id, "done": done, "total": self.total}
        logger.info("embedding", extra=extra)


class Embedding:
    """Collects vectors: from the cache that all users share, then batch by batch from the embedder."""

    def __init__(self, indexer: Indexer, embedder: Embedder, report: Callable[[int], Awaitable[None]]) -> None:
        """`report` is told, after every batch, how many are left."""
        self._indexer = indexer
        self._embedder = embedder
        self._report = report
        self.vectors: dict[str, Vector] = {}
        self.computed = 0
        self.warnings: list[str] = []

    async def gather(self, wanted: Sequence[MissingVector], *, afresh: bool = False) -> None:
        """As many as can be had: what the embedder cannot do now is left to be done later. `afresh`: it is asked again,
        whatever is known."""
        if not afresh:
            self.vectors |= await known_vectors(self._indexer, self._embedder.model, wanted)
        missing = [tool for tool in wanted if tool.tool_id not in self.vectors]
        size = self._embedder.batch_size
        try:
            for start in range(0, len(missing), size):
                await self._embed_all_or_each(missing[start : start + size])
                await self._report(len(missing) - start - size)
        except EmbeddingFailed as error:
            self.warnings.append(
                f"the embedder failed ({error.reason}): tools are found by their words until it recovers"
            )

    async def _embed_all_or_each(self, batch: Sequence[MissingVector]) -> None:
        """One text that the embedder does not take must not cost the others their vectors."""
        try:
            await self._embed(batch)
        except EmbeddingFailed as error:
            if error.retryable or len(batch) == 1:
                raise
            await self._embed_each(batch)

    async def _embed_each(self, batch: Sequence[MissingVector]) -> None:
        failures = 0
        for tool in batch:
            try:
                await self._embed([tool])
            except EmbeddingFailed as error:
                failures += 1
                # then it is not this or that text that it does not take
                if error.retryable or failures == _FAILURES_OF_SINGLE_TEXTS:
                    raise
                self.warnings.append(f"the tool {tool.tool_name!r} could not be embedded ({error.reason})")

    async def _embed(self, batch: Sequence[MissingVector]) -> None:
        metrics = self._indexer.metrics
        telling = self._indexer.tracing.span("embed")
        with telling, observe_duration(metrics.embedding_seconds, "index"), count_embedding_failures(metrics, "index"):
            vectors = await self._embedder.embed_documents([tool.text for tool in batch])
        self.vectors |= {tool.tool_id: vector for tool, vector in zip(batch, vectors, strict=True)}
        self.computed += len(batch)
        metrics.tools_embedded.inc(len(batch))
        by_text = {text_hash(tool.text): vector for tool, vector in zip(batch, vectors, strict=True)}
        async with self._indexer.database.system_transaction() as session:
            await store.cache_vectors(session, self._embedder.model, by_text)

"""Use case: index one server, from the pushed list or from the list that the server returns.

A run embeds first and then applies all changes in one transaction, so that the old index serves until then. While the
embedder is down, changes are applied without vectors: lexical search finds the tools, and the vectors follow later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from app.auth.users import get_user
from app.catalog.rules import Rule, RuleSet, get_rules
from app.catalog.server_copies import has_own_credentials, write_source_status
from app.catalog.servers import Server, get_server, record_contact, record_failure, record_listing
from app.catalog.shared_servers import SharedServer, get_shared_server, update_sharing
from app.catalog.visibility import ServerLock, lock_server, read_policy, recompute_visibility
from app.catalog.visibility_policy import Policy
from app.connections.connector import Connector
from app.connections.repository import wants_sign_in
from app.db.engine import Database, Session
from app.db.nodes import Nodes
from app.db.tables import SHARED_OWNER
from app.embeddings.loaded_models import LoadedModel
from app.embeddings.repository import EmbeddingModel, lock_models_shared
from app.errors import AuthorizationRequired, Forbidden, NotFound, ServerUnreachable
from app.indexing import public_listings, queue, store
from app.indexing.cache_scope import CacheScope, get_server_scope, get_user_scope
from app.indexing.document_embedder import DocumentEmbedder, load_vectors_of_inactive_model
from app.indexing.known_tools.matching import KnownTools
from app.indexing.parsing import Listing, parse_listing
from app.indexing.plan import CountTokens, IndexTarget, ModelUpdate, Plan, StoredTool, make_plan
from app.indexing.schedule import schedule_listing
from app.mcp_client.pool import McpPool
from app.mcp_types import Endpoint, ToolList
from app.observability.metrics import Metrics, observe_duration
from app.observability.tracing import Tracing, trace_call
from app.text.strict_json import parse_json

logger = logging.getLogger("toolscout.indexing")

_MAX_NAMES_IN_WARNING = 10


@dataclass(frozen=True)
class Indexer:
    """What an index run needs, built once."""

    database: Database
    nodes: Nodes
    models: Callable[[], Awaitable[Sequence[LoadedModel]]]
    """Returns all models that are registered now, the active one first."""
    count_tokens: CountTokens
    metrics: Metrics
    max_tools: int
    ann_above: int
    mcp_pool: McpPool
    connector: Connector
    computing: asyncio.Semaphore
    """Limits the listed runs that embed at once; many more may wait for their servers at the same time."""
    tracing: Tracing = field(default_factory=Tracing)
    known_tools: KnownTools = field(default_factory=KnownTools)
    """The tools that come with examples."""


@dataclass(frozen=True)
class _Source:
    """What a member's copy takes from its shared server."""

    shared: SharedServer
    listing: Listing
    approvals: Mapping[str, store.Approval]
    is_tried: bool = False
    """Whether the member's own credentials have been tried."""
    failure: ServerUnreachable | None = None


class _PlanOutdated(Exception):
    """The server's name or address, or the set of models, has changed since the plan was made."""


@trace_call("reindex")
async def reindex_server(indexer: Indexer, run: queue.Claim) -> queue.RunState:
    """Execute a claimed run, again from the start if the server or the models change meanwhile."""
    while True:
        async with indexer.database.transaction(run.user_id) as session:
            server = await get_server(session, run.user_id, run.server_id)
            fetches = run.fetch_from_server and server.transport != "push" and server.shared_id is None
            endpoint = await indexer.connector.read_endpoint(session, run.user_id, run.server_id) if fetches else None
        source = None if server.shared_id is None else await _load_source(indexer, run, server, server.shared_id)
        listing = await _load_listing(indexer, run, server, endpoint) if source is None else source.listing
        try:
            # pushes, which the worker limits otherwise, do not wait for listed runs
            async with nullcontext() if run.host is None else indexer.computing:
                return await _index(indexer, run, server, listing, source)
        except _PlanOutdated:
            logger.info("server or models changed during the index run, starting over", extra={"run_id": run.id})


async def _load_source(indexer: Indexer, run: queue.Claim, server: Server, shared_id: str) -> _Source:
    """Read what a copy takes from its shared server, and try the member's own credentials if a listing was wanted."""
    async with indexer.database.transaction(SHARED_OWNER) as session:
        try:
            shared = await get_shared_server(session, shared_id)
        except NotFound as error:
            # not `NotFound`, which means that the run was deleted with its server: this one must end by itself
            raise Forbidden("this server is no longer shared, and is about to be removed") from error
        listing = Listing(await store.read_effective_listing(session, SHARED_OWNER, shared_id))
        approvals = await store.read_approvals(session, SHARED_OWNER, shared_id)
    source = _Source(shared, listing, approvals)
    if not run.fetch_from_server or server.transport == "push" or not has_own_credentials(server):
        return source
    try:
        endpoint = await indexer.connector.get_endpoint(run.user_id, run.server_id, listing=True)
        # all members have the same tools, whatever it lists for one of them
        await indexer.connector.use(endpoint, indexer.mcp_pool.list_tools, listing=True)
    except ServerUnreachable as error:
        return replace(source, is_tried=True, failure=error)
    return replace(source, is_tried=True)


async def _load_listing(indexer: Indexer, run: queue.Claim, server: Server, endpoint: Endpoint | None) -> Listing:
    """Return the pushed list, the list from the server, or the stored one. No transaction is open while it waits.

    `endpoint`: where the server is asked, if it is.
    """
    if endpoint is not None:
        authorized = await indexer.connector.authorize(endpoint, listing=True)
        listed = await _fetch_tools(indexer, run, server, authorized)
    elif run.payload is not None:
        listed = ToolList((await asyncio.to_thread(parse_json, run.payload))["tools"])
    else:
        async with indexer.database.transaction(run.user_id) as session:
            return Listing(await store.read_listing(session, run.user_id, run.server_id))
    listing = await asyncio.to_thread(parse_listing, listed.tools, max_tools=indexer.max_tools)
    return replace(listing, ttl_s=listed.ttl_s)


async def _fetch_tools(indexer: Indexer, run: queue.Claim, server: Server, endpoint: Endpoint) -> ToolList:
    """Return the list of the server, or the public one that another run has fetched from its URL.

    A person who asks for a reindex gets what the server lists now, except for a new server: its first list may be
    another user's.
    """

    async def fetch() -> ToolList:
        with observe_duration(indexer.metrics.upstream_seconds, "list"):
            return await indexer.connector.use(endpoint, indexer.mcp_pool.fetch_tool_list, listing=True)

    is_new = server.status == "disconnected" and server.last_error is None
    fresh = run.force or (run.is_requested and not is_new)
    listed, is_shared = await public_listings.fetch_once(indexer.database, endpoint, fetch, fresh=fresh)
    if is_shared:
        # the address must be allowed for this user, too, as if it had been asked
        await indexer.mcp_pool.check(run.user_id, endpoint.transport, endpoint.server_name, endpoint.url)
    indexer.metrics.listings.labels("shared" if is_shared else "server").inc()
    return listed


async def _index(
    indexer: Indexer, run: queue.Claim, server: Server, listing: Listing, source: _Source | None
) -> queue.RunState:
    active, *inactive = await indexer.models()
    async with indexer.database.transaction(run.user_id) as session:
        user = await get_user(session, run.user_id)
        policy = await read_policy(session)
        rules = await get_rules(session, run.user_id)
        stored = await store.read_tools(session, run.user_id, run.server_id, active.model.id)
    # whether or not headers were issued this time: the scope must stay the same, or all texts are embedded again
    issued = indexer.connector.issues_credentials
    scope = get_server_scope(user, server, pushed=run.payload is not None, credentials_issued=issued)
    if source is not None and source.shared.server.name != server.name:
        scope = get_user_scope(user)  # the name is part of the texts, and another one is the member's alone
    target = await make_target(indexer, server, active.model, rules, scope, get_user_scope(user))
    was_listed = server.listed_at is not None or bool(stored)
    target = replace(target, was_listed=was_listed, is_copy=source is not None)
    had_tools = any(not tool.is_deleted for tool in stored.values())
    # the list of a shared server has been accepted already
    if had_tools and not listing.tools and not run.accept_empty and source is None:
        return await _refuse_empty(indexer, run, listing)
    plan = await _make_plan(indexer, listing, stored, target, force=run.force)
    embedder = DocumentEmbedder(
        indexer.database,
        active,
        indexer.metrics,
        indexer.tracing,
        run.user_id,
        partial(_report_progress, indexer, run, len(listing.tools)),
    )
    await embedder.embed(plan.count_missing_vectors, use_cache=not run.force)
    summary = queue.RunSummary(
        added=plan.added,
        changed=plan.changed,
        unchanged=plan.unchanged,
        removed=len(plan.removed_ids),
        embedded=embedder.new_count,
        refused_count=listing.refused_count,
        refused=[asdict(refusal) for refusal in listing.refused],
        warnings=[*_list_warnings(policy, run, server, listing, plan), *embedder.warnings],
    )
    updates = [ModelUpdate(target, plan, embedder.vectors)]
    updates += [await _plan_inactive_model(indexer, run, target, listing, loaded) for loaded in inactive]
    await _apply(indexer, run, server, updates, summary, source, total=len(listing.tools), ttl_s=listing.ttl_s)
    return "succeeded"


async def make_target(
    indexer: Indexer,
    server: Server,
    model: EmbeddingModel,
    rules: Sequence[Rule],
    scope: CacheScope,
    user_scope: CacheScope,
) -> IndexTarget:
    return IndexTarget(
        server_id=server.id,
        server_name=server.name,
        model=model.id,
        dimension=model.dimension,
        server_tags=server.tags,
        # compiling a hundred rules takes a while: off the event loop
        rules=await asyncio.to_thread(RuleSet, rules),
        known_tools=indexer.known_tools,
        cache_scope=scope,
        user_scope=user_scope,
    )


async def _plan_inactive_model(
    indexer: Indexer, run: queue.Claim, active: IndexTarget, listing: Listing, loaded: LoadedModel
) -> ModelUpdate:
    """Plan all rows of an inactive model, but only the vectors that the cache has.

    The other vectors are computed before the model becomes active, see backfill.py.
    """
    target = replace(active, model=loaded.model.id, dimension=loaded.model.dimension)
    async with indexer.database.transaction(run.user_id) as session:
        stored = await store.read_tools(session, run.user_id, run.server_id, target.model)
    plan = await _make_plan(indexer, listing, stored, target, force=False)
    vectors = await load_vectors_of_inactive_model(indexer.database, loaded.model, plan.count_missing_vectors)
    return ModelUpdate(target, plan, vectors)


async def _make_plan(
    indexer: Indexer, listing: Listing, stored: Mapping[str, StoredTool], target: IndexTarget, *, force: bool
) -> Plan:
    # in a thread: hashing and counting the tokens of a thousand definitions would block the event loop
    return await asyncio.to_thread(make_plan, listing.tools, stored, target, indexer.count_tokens, force=force)


async def _report_progress(indexer: Indexer, run: queue.Claim, total: int, left: int) -> None:
    done = total - max(left, 0)
    async with indexer.database.transaction(run.user_id) as session:
        await queue.report_progress(session, run, done, total)
    logger.info("embedding tools", extra={"run_id": run.id, "done": done, "total": total})


def _list_warnings(policy: Policy, run: queue.Claim, server: Server, listing: Listing, plan: Plan) -> Iterator[str]:
    if run.payload is not None and server.transport != "push":
        yield "this server has its own list, which replaces the pushed list at the next reindex"
    yield from listing.warnings
    flagged = [tool.definition.name for tool in listing.tools if tool.findings]
    if flagged:
        yield f"flagged, see `findings` of the tool: {_join_names(flagged)}"
    new = plan.new if policy.hold_new else ()
    changed = [name for name in plan.unapproved if name not in new] if policy.hold_changed else ()
    if changed:
        yield f"changed, and held until approved: {_join_names(changed)}"
    if new:
        yield f"new, and held until approved: {_join_names(new)}"


def _join_names(names: Sequence[str]) -> str:
    further = len(names) - _MAX_NAMES_IN_WARNING
    return ", ".join(names[:_MAX_NAMES_IN_WARNING]) + (f" and {further} more" if further > 0 else "")


async def _refuse_empty(indexer: Indexer, run: queue.Claim, listing: Listing) -> queue.RunState:
    message = (
        "the list contains no usable tool, but the server had tools before; the old index is kept "
        "(`?force=true` accepts the empty list)"
    )
    refused = [asdict(refusal) for refusal in listing.refused]
    summary = queue.RunSummary(refused_count=listing.refused_count, refused=refused, warnings=listing.warnings)
    async with indexer.database.transaction(run.user_id) as session:
        await queue.fail(session, run, "empty_listing", message, summary)
    return "failed"


async def _apply(
    indexer: Indexer,
    run: queue.Claim,
    server: Server,
    updates: Sequence[ModelUpdate],
    summary: queue.RunSummary,
    source: _Source | None,
    total: int,
    ttl_s: float | None,
) -> None:
    """Write all updates and the end of the run in one transaction, unless the plan is outdated."""
    async with indexer.database.transaction(run.user_id) as session:
        models = await lock_models_shared(session)
        locked = await lock_server(session, run.user_id, run.server_id)
        await queue.fence(session, run)
        seen = ServerLock(server.name, server.config_version)
        if locked != seen or models != [update.target.model for update in updates]:
            raise _PlanOutdated
        if _has_changes(updates):
            await store.apply_updates(session, run.user_id, updates, run_id=run.id, ann_above=indexer.ann_above)
        if run.user_id == SHARED_OWNER:
            await _notify_members(session, run, server, has_changes=_has_changes(updates))
        if run.fetch_from_server and source is None:
            await schedule_listing(session, run.user_id, run.server_id, ttl_s)
        if source is not None:
            await store.write_approvals(session, run.user_id, run.server_id, source.approvals)
            if run.fetch_from_server:
                await _record_copy_status(session, run, source)
        elif run.fetch_from_server or run.payload is not None:
            if server.listed_at is None:
                await record_listing(session, run.user_id, run.server_id)
            await _record_status(session, run, server)
        await queue.succeed(session, run, summary, total)


async def _record_copy_status(session: Session, run: queue.Claim, source: _Source) -> None:
    if not source.is_tried:
        await write_source_status(session, run.user_id, run.server_id, source.shared)
        await recompute_visibility(session, run.user_id, run.server_id)
    elif source.failure is None:
        await record_contact(session, run.user_id, run.server_id)
    else:
        await record_failure(session, run.user_id, run.server_id, source.failure.cause, source.failure.message)


async def _notify_members(session: Session, run: queue.Claim, server: Server, *, has_changes: bool) -> None:
    """Let the copies of a shared server follow if its tools have changed, or if it can be used again."""
    if has_changes or (run.fetch_from_server and server.status != "connected"):
        await update_sharing(session, run.server_id)


async def _record_status(session: Session, run: queue.Claim, server: Server) -> None:
    """A server may list its tools for anybody, and ask for a sign-in when they are called: it stays marked."""
    if server.status == "needs_authorization" and await wants_sign_in(session, run.user_id, run.server_id):
        required = AuthorizationRequired()
        await record_failure(session, run.user_id, run.server_id, required.cause, required.message)
    else:
        await record_contact(session, run.user_id, run.server_id)


def _has_changes(updates: Sequence[ModelUpdate]) -> bool:
    active, *inactive = updates
    return not active.plan.is_empty or any(update.plan.rows or update.vectors for update in inactive)

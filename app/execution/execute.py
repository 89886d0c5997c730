"""Run a visible tool on its MCP server, at most once.

The visibility filter of discovery decides here too: only a tool that can be found can be run. A request that may have
reached the server is never sent again by Toolscout, nor for a caller that repeats it with the same idempotency key.
"""

import asyncio
import hashlib
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter

from cachetools import TTLCache

from app.catalog import servers
from app.catalog.definitions import ToolDefinitionView, find_by_alias
from app.catalog.tool_keys import CORE_TOOL, is_tool_id, read_tool, require_visible_key
from app.catalog.tool_names import MIN_DIGEST, is_alias_of, parse_digest
from app.catalog.visibility import Scope
from app.connections.connector import Connector
from app.connections.links import add_link
from app.connections.tickets import Ticket
from app.crypto import Sealer
from app.db.engine import Database, Session
from app.errors import (
    AmbiguousTool,
    AuthorizationRequired,
    Conflict,
    InvalidInput,
    ServerUnreachable,
    ToolFailed,
    ToolNotFound,
    ToolscoutError,
    Unavailable,
)
from app.execution.argument_validation import check_arguments, check_serializable, remove_invalid_parts
from app.execution.call_record import CallRecord
from app.execution.confirmations import take_token_from_state
from app.execution.content_cache import ContentCache
from app.execution.models import ExecutionRequest, ExecutionResult, TargetTool
from app.execution.progress import ProgressReports
from app.execution.results import truncate
from app.execution.shutdown import fail_on_shutdown
from app.mcp_client.connection import INPUT_REQUIRED
from app.mcp_client.pool import McpPool
from app.mcp_types import Endpoint
from app.observability.metrics import Metrics, observe_duration
from app.observability.tracing import Tracing, trace_call
from app.text.strict_json import Json
from app.usage.counters import UsageCounters
from app.usage.learning import Learner

_HEX = re.compile(rf"[0-9a-f]{{{MIN_DIGEST},64}}")
_NO_DIGEST = "-"
_MAX_SCHEMA_BYTES = 32 * 1024 * 1024
_SCHEMA_TTL_S = 3600.0
_SCHEMA_ENTRY_BYTES = 500
_SHUTTING_DOWN = "the service is shutting down and stopped waiting for the result; the tool may have run"


@dataclass(frozen=True)
class Executor:
    """The dependencies of `execute`, built once."""

    database: Database
    mcp_pool: McpPool
    connector: Connector
    sealer: Sealer
    metrics: Metrics
    usage_counters: UsageCounters
    learner: Learner
    timeout_s: float
    max_timeout_s: float
    """The highest timeout that a request can set; higher ones count as this one."""
    max_result_bytes: int
    max_resource_bytes: int
    shutdown: asyncio.Event
    """Set when the service stops waiting for running calls."""
    usable_schemas: TTLCache[bytes, str] = field(
        default_factory=lambda: TTLCache(
            _MAX_SCHEMA_BYTES, _SCHEMA_TTL_S, getsizeof=lambda schema: _SCHEMA_ENTRY_BYTES + sys.getsizeof(schema)
        )
    )
    """The valid parts of input schemas, by the SHA-256 digest of the schema."""
    content_cache: ContentCache = field(default_factory=ContentCache)
    tracing: Tracing = field(default_factory=Tracing)
    confirm_destructive: bool = False
    """Whether calls of tools that say that they are destructive need a confirmation."""

    def limit_timeout(self, requested_s: float | None) -> float:
        return self.timeout_s if requested_s is None else min(requested_s, max(self.timeout_s, self.max_timeout_s))


@trace_call("execute", "truncated")
async def execute(
    executor: Executor, request: ExecutionRequest, progress: ProgressReports | None = None
) -> ExecutionResult:
    """Raise `ToolNotFound`, `AmbiguousTool`, `ArgumentsInvalid`, `AuthorizationRequired`, `ConfirmationRequired` or
    `ServerUnreachable` if nothing was run, `ToolFailed` if the call failed or its outcome is unknown."""
    timeout_s = executor.limit_timeout(request.timeout_s)
    record = CallRecord(executor.database, executor.sealer, executor.usage_counters, executor.learner, request)
    # when the block ends: store the outcome, audit the call, count it; then make the link, which may take seconds
    async with _offer_sign_in(executor, record), record.audit_call():
        request = await _resolve_key(executor, request)
        record.set_request(request)
        async with _name_tool_in_errors(executor, request):
            check_serializable(request.arguments)
            if request.dialogue is not None:
                check_serializable(request.dialogue.responses or {})
            # Before the tool is looked up: a finished call is replayed even if the tool has become invisible since.
            if (earlier := await record.replay()) is not None:
                return earlier
        tool = await _find_tool(executor, request)
        record.set_tool(tool)
        await _check_arguments(executor, tool.definition.input_schema, request.arguments)
        if tool.endpoint.transport == "push":
            message = "this server is of type `push`: Toolscout finds its tools, your backend runs them"
            raise ServerUnreachable("push", message)
        needs_confirmation = executor.confirm_destructive and tool.says_destructive
        if needs_confirmation:
            request = take_token_from_state(request)
            record.set_request(request)
        # Before the call is confirmed, and its key claimed: nobody should confirm what cannot be run yet.
        tool = replace(tool, endpoint=await executor.connector.authorize(tool.endpoint))
        if (earlier := await record.claim(timeout_s, needs_confirmation=needs_confirmation)) is not None:
            return earlier
        if progress is not None:
            progress.started.set()
        if executor.shutdown.is_set():
            raise Unavailable("the service is shutting down; nothing was run")
        record.start()
        result = await _call_server(executor, request, tool, timeout_s, progress)
        record.finish(result)
        if needs_confirmation and result.result.get("resultType") == INPUT_REQUIRED:
            return await record.confirm_continuation(result)
        return result


async def execute_with_progress(
    executor: Executor, request: ExecutionRequest, on_report: Callable[[Json], Awaitable[None]]
) -> ExecutionResult:
    """Execute, and await `on_report` with each progress report. Cancelling this function cancels the call."""
    progress = ProgressReports()
    call = asyncio.create_task(execute(executor, request, progress))
    try:
        async for report in progress.stream(call):
            if report is not None:
                await on_report(report)
        return call.result()
    finally:
        call.cancel()


@asynccontextmanager
async def _name_tool_in_errors(executor: Executor, request: ExecutionRequest) -> AsyncIterator[None]:
    """Look the tool up to name it in an error that occurs before it is known."""
    try:
        yield
    except (InvalidInput, Conflict, ToolFailed) as error:
        if error.called_tool is None:
            with suppress(ToolscoutError):
                error.called_tool = (await _find_tool(executor, request)).names
        raise


@asynccontextmanager
async def _offer_sign_in(executor: Executor, record: CallRecord) -> AsyncIterator[None]:
    """Add where the user signs in to the error of a call that needs it."""
    try:
        yield
    except AuthorizationRequired as error:
        if record.tool is not None:
            endpoint, actor = record.tool.endpoint, record.request.actor
            ticket = Ticket(endpoint.user_id, endpoint.server_id, actor)
            await add_link(executor.connector, executor.sealer, error, ticket)
        raise


async def _resolve_key(executor: Executor, request: ExecutionRequest) -> ExecutionRequest:
    """Return the request with the tool's id as its key, so that every form of the key is the same request."""
    if request.tool_key is None or is_tool_id(request.tool_key):
        return request
    async with executor.database.transaction(request.scope.user_id) as session:
        tool_id = await require_visible_key(session, request.scope, request.tool_key)
    return replace(request, tool_key=tool_id, given_key=request.tool_key)


async def _find_tool(executor: Executor, request: ExecutionRequest) -> TargetTool:
    scope = request.scope
    async with executor.database.transaction(scope.user_id) as session:
        if request.tool_key is not None:
            definition = await read_tool(session, scope, request.tool_key, request.given_key)
        else:
            definition = await _find_by_alias(session, scope, request.alias or "")
        assert definition.server_id is not None  # noqa: S101 only core tools have no server
        endpoint = await servers.get_endpoint(session, executor.sealer, scope.user_id, definition.server_id)
    return TargetTool(definition, endpoint)


async def _find_by_alias(session: Session, scope: Scope, alias: str) -> ToolDefinitionView:
    digest = parse_digest(alias)
    candidates = await find_by_alias(session, scope, alias, digest if _HEX.fullmatch(digest) else _NO_DIGEST)
    if any(candidate.server_id is None for candidate in candidates):
        raise ToolNotFound(CORE_TOOL)
    matches = [candidate for candidate in candidates if is_alias_of(alias, candidate)]
    if len(matches) > 1:
        choices = [(tool.tool_id, f"{tool.server_name}.{tool.name}") for tool in matches]
        raise AmbiguousTool(alias, sorted(choices, key=itemgetter(1)))
    # A tool key may stand for an alias, because errors name the tools that may be meant by their keys.
    return matches[0] if matches else await read_tool(session, scope, alias)


async def _check_arguments(executor: Executor, schema: str, arguments: Json) -> None:
    """Invalid parts of a schema are skipped; the server validates them."""
    digest = hashlib.sha256(schema.encode()).digest()
    usable = executor.usable_schemas.get(digest)
    if usable is None:
        usable = await asyncio.to_thread(remove_invalid_parts, schema)
        executor.usable_schemas[digest] = usable
    await asyncio.to_thread(check_arguments, usable, arguments)


async def _call_server(
    executor: Executor,
    request: ExecutionRequest,
    tool: TargetTool,
    timeout_s: float,
    progress: ProgressReports | None,
) -> ExecutionResult:
    on_progress = None if progress is None else progress.report
    endpoint, started = tool.endpoint, time.perf_counter()

    def call(endpoint: Endpoint) -> Awaitable[Json]:
        return executor.mcp_pool.call_tool(
            endpoint, tool.definition.name, request.arguments, timeout_s, on_progress, request.dialogue
        )

    with observe_duration(executor.metrics.upstream_seconds, "call"):
        async with fail_on_shutdown(executor.shutdown, ToolFailed(_SHUTTING_DOWN, outcome="unknown")):
            answer = await executor.connector.use(endpoint, call)
    duration_ms = round((time.perf_counter() - started) * 1000, 2)
    result, truncated = truncate(answer, executor.max_result_bytes)
    if truncated and answer.get("resultType") == INPUT_REQUIRED:
        raise ToolFailed("the tool asks the user for input, but its question is too large", outcome="failed")
    return ExecutionResult(result, tool.definition.tool_id, endpoint.server_id, duration_ms, truncated)

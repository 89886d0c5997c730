"""The deed: run a visible tool on its server, once, and say how it went.

Visible? -> arguments valid? -> the server, once -> audit. What can be found can be run: the same filter decides. A call
that may have reached the server is never repeated, neither by us nor, where the caller sends a key, for the caller.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from app.audit.record import SUCCEEDED, record_event
from app.cache import TtlCache
from app.catalog import servers
from app.catalog.definitions import ToolDefinitionView, find_by_alias, read_definitions
from app.catalog.tool_names import MIN_DIGEST, is_alias_of, parse_digest
from app.catalog.tools import tool_exists
from app.catalog.visibility import Scope
from app.crypto import Sealer
from app.db.engine import Database, Session
from app.errors import (
    DatabaseDown,
    QueryFailed,
    ServerUnreachable,
    ToolFailed,
    ToolNotFound,
    ToolscoutError,
    ToolTimedOut,
    Unavailable,
)
from app.execution import idempotency
from app.execution.results import make_serializable, truncate
from app.execution.validation import check_arguments, check_serializable, usable_schema
from app.mcp_client.connection import INPUT_REQUIRED, OnProgress
from app.mcp_client.pool import McpPool
from app.observability.metrics import Metrics, timed
from app.observability.tracing import Tracing, traced
from app.text.strict_json import Dialogue, Endpoint, Json, canonical_json
from app.usage.counters import UsageCounters

logger = logging.getLogger("toolscout.execution")

_HEX = re.compile(rf"[0-9a-f]{{{MIN_DIGEST},64}}")
_NO_DIGEST = "-"

TOOL_ERROR = "tool_error"
CANCELLED = "cancelled"
_SCHEMAS_REMEMBERED = 10_000
_REMEMBERED_S = 3600.0
_REPORTS_WAITING = 100
_MAX_REPORT = 1_000
_STOPPED = "the service is being stopped and could not wait for the answer any longer; it may have run"
_BROKEN_OFF = "the first caller went away, or the service stopped, before there was an answer; it may have run"


@dataclass(frozen=True)
class Executor:
    """What a call needs, built once."""

    database: Database
    mcp_pool: McpPool
    sealer: Sealer
    metrics: Metrics
    usage_counters: UsageCounters
    timeout_s: float
    max_result_bytes: int
    shutdown: asyncio.Event
    """Set when the service waits no longer for what it has begun."""
    usable_schemas: TtlCache[bytes, str] = field(default_factory=lambda: TtlCache(_SCHEMAS_REMEMBERED, _REMEMBERED_S))
    """What of a schema is valid, by a digest of its text."""
    tracing: Tracing = field(default_factory=Tracing)


@dataclass(frozen=True)
class ExecutionRequest:
    """Either `tool_key` or `alias`, the name that a model knows the tool by, says which tool is meant."""

    scope: Scope
    actor: str
    arguments: Json = field(repr=False)
    tool_key: str | None = None
    alias: str | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    dialogue: Dialogue | None = None
    """Where the caller can be asked for more."""


@dataclass(frozen=True)
class ExecutionResult:
    result: Json = field(repr=False)
    tool_key: str
    server_id: str
    duration_ms: float
    truncated: bool


@dataclass(frozen=True)
class _Tool:
    offer: ToolDefinitionView
    endpoint: Endpoint


class ProgressReports:
    """For whoever watches a call: `begun` once everything is checked and the server is about to be asked."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._reports: asyncio.Queue[Json] = asyncio.Queue(_REPORTS_WAITING)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """A server that reports faster than anybody listens is not heard in full."""
        with suppress(asyncio.QueueFull):
            shown = None if message is None else message[:_MAX_REPORT]
            self._reports.put_nowait({"progress": progress, "total": total, "message": shown})

    async def reports(self, running: asyncio.Task[Any], pause_s: float | None = None) -> AsyncIterator[Json | None]:
        """Each as it comes, until the call has ended; None after each pause in which none came."""
        report: asyncio.Task[Json] | None = None
        try:
            while True:
                report = report or asyncio.create_task(self._reports.get())
                await asyncio.wait({running, report}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if report.done():
                    yield report.result()
                    report = None
                elif running.done():
                    return
                else:
                    yield None
        finally:
            if report is not None:
                report.cancel()


@traced("execute", "truncated")
async def execute(
    executor: Executor, call: ExecutionRequest, progress: ProgressReports | None = None
) -> ExecutionResult:
    """Raises `ToolNotFound`, `ArgumentsInvalid`, `ServerUnreachable` or `ToolFailed`."""
    record = CallRecord(executor, call)
    async with record.kept():
        check_serializable(call.arguments)
        if call.dialogue is not None:
            check_serializable(call.dialogue.responses or {})
        # before anything else: what has run has run, whatever became of the tool since
        if (earlier := await record.replay()) is not None:
            return earlier
        tool = await _find(executor, call)
        record.tool = tool
        await _check_arguments(executor, tool.offer.input_schema, call.arguments)
        if tool.endpoint.transport == "push":
            raise ServerUnreachable("push", "its server's tools are pushed: whoever pushes them runs them")
        if (earlier := await record.claim()) is not None:
            return earlier
        if progress is not None:
            progress.begun.set()
        return await record.run(progress)


async def execute_with_progress(
    executor: Executor, call: ExecutionRequest, tell: Callable[[Json], Awaitable[None]]
) -> ExecutionResult:
    """The same, with a word about each report of progress. Whoever gives up waiting ends the call."""
    progress = ProgressReports()
    running = asyncio.create_task(execute(executor, call, progress))
    try:
        async for report in progress.reports(running):
            if report is not None:
                await tell(report)
        return running.result()
    finally:
        running.cancel()


async def _find(executor: Executor, call: ExecutionRequest) -> _Tool:
    async with executor.database.transaction(call.scope.user_id) as session:
        offer = await _meant(session, call)
        assert offer.server_id is not None  # noqa: S101 only core tools have none
        endpoint = await servers.get_endpoint(session, executor.sealer, call.scope.user_id, offer.server_id)
    return _Tool(offer, endpoint)


async def _meant(session: Session, call: ExecutionRequest) -> ToolDefinitionView:
    if call.tool_key is not None:
        offers = await read_definitions(session, call.scope, [call.tool_key], core=False)
        if call.tool_key not in offers.tools:
            raise ToolNotFound("there is no such tool, or it may not be used")
        return offers.tools[call.tool_key]
    return await _meant_by_alias(session, call.scope, call.alias or "")


async def _meant_by_alias(session: Session, scope: Scope, alias: str) -> ToolDefinitionView:
    digest = parse_digest(alias)
    offers = await find_by_alias(session, scope, alias, digest if _HEX.fullmatch(digest) else _NO_DIGEST)
    if any(offer.server_id is None for offer in offers):
        raise ToolNotFound("this is a core tool: the application runs it, not Toolscout")
    meant = [offer for offer in offers if is_alias_of(alias, offer)]
    if len(meant) > 1:
        raise ToolNotFound("several servers offer a tool of this name: say which by `tool_key`")
    if not meant:
        raise ToolNotFound("there is no tool of this name, or it may not be used")
    return meant[0]


async def _check_arguments(executor: Executor, schema: str, arguments: Json) -> None:
    """What in a schema is itself not valid checks nothing: the server will."""
    digest = hashlib.sha256(schema.encode()).digest()
    known = executor.usable_schemas.get(digest)
    if known is None:
        known = await asyncio.to_thread(usable_schema, schema)
        executor.usable_schemas.put(digest, known)
    await asyncio.to_thread(check_arguments, known, arguments)


@asynccontextmanager
async def _given_up_on(shutdown: asyncio.Event) -> AsyncIterator[None]:
    """What has not ended by then ends here, while there is still somebody to tell its caller and to write it down."""
    try:
        async with asyncio.timeout(None) as patience:
            watching = asyncio.create_task(_end_with(shutdown, patience))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError as error:
        if not patience.expired():
            raise
        raise ToolFailed(_STOPPED, outcome="unknown") from error


async def _end_with(shutdown: asyncio.Event, patience: asyncio.Timeout) -> None:
    await shutdown.wait()
    patience.reschedule(asyncio.get_running_loop().time())


class CallRecord:
    """What is written down about one call, before and after: who may repeat it, and that it happened."""

    def __init__(self, executor: Executor, call: ExecutionRequest) -> None:
        self._executor = executor
        self._call = call
        self._started = time.perf_counter()
        self._claimed = False
        self._replayed = False
        self._begun = False
        self._executed: ExecutionResult | None = None
        self.tool: _Tool | None = None

    @property
    def _timeout_s(self) -> float:
        return self._executor.timeout_s if self._call.timeout_s is None else self._call.timeout_s

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Also where the caller has gone: what was done must be known."""
        outcome, failure = ToolscoutError.code, None
        try:
            yield
            outcome = self._told_outcome
        except ToolscoutError as error:
            outcome, failure = error.code, error
            raise
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        finally:
            if not self._replayed:
                await asyncio.shield(self._write(outcome, failure))

    @property
    def _told_outcome(self) -> str:
        """That it ran well, that it ran and said itself that it failed, or that it wants to know more first."""
        result = {} if self._executed is None else self._executed.result
        if result.get("resultType") == INPUT_REQUIRED:
            return INPUT_REQUIRED
        return TOOL_ERROR if result.get("isError") is True else SUCCEEDED

    async def claim(self) -> ExecutionResult | None:
        """The answer of an earlier call with the same key, or nothing and the right to run it."""
        earlier = await self._earlier(partial(idempotency.claim_key, timeout_s=self._timeout_s))
        self._claimed = earlier is None
        return earlier

    async def replay(self) -> ExecutionResult | None:
        """The answer of an earlier call with the same key, if there was one."""
        return await self._earlier(idempotency.get_stored_response)

    async def _earlier(self, answer_of: Callable[..., Awaitable[Json | None]]) -> ExecutionResult | None:
        call, key = self._call, self._call.idempotency_key
        if key is None:
            return None
        request = canonical_json([call.tool_key, call.alias, call.arguments, call.timeout_s, call.scope.project_id])
        async with self._executor.database.transaction(call.scope.user_id) as session:
            answer = await answer_of(session, self._executor.sealer, call.scope.user_id, key, request)
        self._replayed = answer is not None
        return None if answer is None else _replayed(answer)

    async def run(self, progress: ProgressReports | None) -> ExecutionResult:
        executor, tool = self._executor, self._found
        on_progress: OnProgress | None = None if progress is None else progress.report
        started = time.perf_counter()
        if executor.shutdown.is_set():
            raise Unavailable("the service is being stopped; nothing was run")
        self._begun = True
        with timed(executor.metrics.upstream_seconds, "call"):
            result = await self._call_until(executor.shutdown, on_progress)
        duration_ms = round((time.perf_counter() - started) * 1000, 2)
        asks = result.get("resultType") == INPUT_REQUIRED
        result, truncated = truncate(make_serializable(result), executor.max_result_bytes)
        if asks and truncated:
            raise ToolFailed("the tool asks its user for more, in a question larger than we take", outcome="failed")
        self._executed = ExecutionResult(result, tool.offer.tool_id, tool.endpoint.server_id, duration_ms, truncated)
        return self._executed

    async def _call_until(self, shutdown: asyncio.Event, on_progress: OnProgress | None) -> Json:
        call, tool = self._call, self._found
        async with _given_up_on(shutdown):
            return await self._executor.mcp_pool.call_tool(
                tool.endpoint, tool.offer.name, call.arguments, self._timeout_s, on_progress, call.dialogue
            )

    @property
    def _found(self) -> _Tool:
        assert self.tool is not None  # noqa: S101 nothing is claimed or run before it is found
        return self.tool

    async def _write(self, outcome: str, failure: ToolscoutError | None) -> None:
        """A tool that has run has run: that the database is away now does not take its answer from the caller."""
        self._count(outcome, failure)
        try:
            async with self._executor.database.transaction(self._call.scope.user_id) as session:
                await self._note_contact(session, failure)
                await self._settle(session, failure)
                await self._audit(session, outcome)
        except (DatabaseDown, QueryFailed):
            logger.exception("a call could not be written down", extra={"outcome": outcome})

    def _count(self, outcome: str, failure: ToolscoutError | None) -> None:
        """Only what may have run; a tool that asks its user for more is counted once it has its answer."""
        if not self._begun or isinstance(failure, ServerUnreachable) or outcome == INPUT_REQUIRED:
            return
        succeeded = None if outcome == CANCELLED else outcome == SUCCEEDED
        self._executor.usage_counters.called(self._call.scope.user_id, self._found.offer.tool_id, succeeded=succeeded)

    async def _settle(self, session: Session, failure: ToolscoutError | None) -> None:
        """The answer is kept for whoever repeats the call; where nothing was run, the key is free again."""
        user_id, key = self._call.scope.user_id, self._call.idempotency_key
        if not self._claimed or key is None:
            return
        if isinstance(failure, ServerUnreachable | Unavailable):
            await idempotency.release_key(session, user_id, key)
        else:
            await idempotency.store_response(
                session, self._executor.sealer, user_id, key, _answer(self._executed, failure)
            )

    async def _note_contact(self, session: Session, failure: ToolscoutError | None) -> None:
        if self.tool is None:
            return
        endpoint = self.tool.endpoint
        this = session, endpoint.user_id, endpoint.server_id
        if self._executed is not None:
            await servers.record_contact(*this, endpoint.config_version)
        elif isinstance(failure, ServerUnreachable) and failure.cause != "push":
            await servers.record_failure(*this, failure.cause, failure.message, endpoint.config_version)

    async def _audit(self, session: Session, outcome: str) -> None:
        duration_ms = (time.perf_counter() - self._started) * 1000
        user_id, actor, target = self._call.scope.user_id, self._call.actor, await self._target(session)
        await record_event(session, user_id, actor, "tool.execute", target, outcome=outcome, duration_ms=duration_ms)

    async def _target(self, session: Session) -> str | None:
        """Also where it may not be used: who tries a tool that is held is worth knowing."""
        if self.tool is not None:
            return self.tool.offer.tool_id
        asked, user_id = self._call.tool_key, self._call.scope.user_id
        return asked if asked is not None and await tool_exists(session, user_id, asked) else None


def _answer(executed: ExecutionResult | None, failure: ToolscoutError | None) -> Json:
    if executed is not None:
        return {"executed": asdict(executed)}
    if not isinstance(failure, ToolFailed):
        failure = ToolFailed(_BROKEN_OFF, outcome="unknown")
    failed = {"timed_out": isinstance(failure, ToolTimedOut), "message": failure.message, "outcome": failure.outcome}
    return {"failed": failed}


def _replayed(answer: dict[str, Any]) -> ExecutionResult:
    if "executed" in answer:
        return ExecutionResult(**answer["executed"])
    failed = answer["failed"]
    kind = ToolTimedOut if failed["timed_out"] else ToolFailed
    raise kind(failed["message"], outcome=failed["outcome"])

"""The record of one call: its idempotency key, its audit event, its usage count and the status of its server.

    new ──► claimed ──► started ──► done
     └────► replayed

new       nothing has been sent; no idempotency key is held
replayed  an earlier call with the same idempotency key has answered: nothing is sent or recorded again
claimed   this call holds its idempotency key, if it has one, has used up its confirmation, if it needs one, and may be
          sent
started   the request may have reached the server; it is never sent again
done      the server has answered

A call that fails stays in the state that it has reached, and that state decides what is recorded.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from enum import Enum
from typing import Any

from app.audit.record import SUCCEEDED, record_event
from app.catalog import servers
from app.catalog.tools import get_definition_hash, tool_exists
from app.conversations.calls import note_call
from app.crypto import Sealer
from app.db.engine import Database, Session
from app.errors import (
    CalledTool,
    ConfirmationRequired,
    DatabaseDown,
    QueryFailed,
    ServerUnreachable,
    ToolFailed,
    ToolscoutError,
    ToolTimedOut,
    Unavailable,
)
from app.execution import idempotency
from app.execution.confirmations import (
    Confirmation,
    add_token_to_state,
    create_confirmation,
    redeem_confirmation,
)
from app.execution.models import ExecutionRequest, ExecutionResult, TargetTool
from app.mcp_client.connection import INPUT_REQUIRED
from app.text.strict_json import Json, canonical_json
from app.usage.counters import UsageCounters
from app.usage.learning import Learner

logger = logging.getLogger("toolscout.execution")

TOOL_ERROR = "tool_error"
CANCELLED = "cancelled"
_INTERRUPTED = "the first caller disconnected, or the service stopped, before the tool answered; it may have run"


_CONFIRM = (
    "this tool says that it is destructive, and nothing was run: let the user confirm the call, then send the same "
    "call with this `confirmation_token`"
)
_UNUSABLE = "the token belongs to another call, was used already, or has expired"


class _NotConfirmed(Exception):
    """Rolls a transaction back. Never raised out of this module."""


class CallState(Enum):
    NEW = "new"
    REPLAYED = "replayed"
    CLAIMED = "claimed"
    STARTED = "started"
    DONE = "done"


_NEXT_STATES = {
    CallState.NEW: {CallState.REPLAYED, CallState.CLAIMED},
    CallState.REPLAYED: set(),
    CallState.CLAIMED: {CallState.STARTED},
    CallState.STARTED: {CallState.DONE},
    CallState.DONE: set(),
}


class CallRecord:
    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        usage_counters: UsageCounters,
        learner: Learner,
        request: ExecutionRequest,
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._usage_counters = usage_counters
        self._learner = learner
        self.request = request
        self._created_at = time.perf_counter()
        self._state = CallState.NEW
        self.tool: TargetTool | None = None
        self._result: ExecutionResult | None = None

    @asynccontextmanager
    async def audit_call(self) -> AsyncIterator[None]:
        """Record the outcome when the block ends, even if the caller has disconnected and cancelled the call."""
        outcome, failure = ToolscoutError.code, None
        try:
            yield
            outcome = _result_outcome(self._result)
        except ToolscoutError as error:
            outcome, failure = error.code, error
            if self.tool is not None:
                error.called_tool = self.tool.names
            raise
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        finally:
            if self._state is not CallState.REPLAYED:
                await asyncio.shield(self._record(outcome, failure))

    async def replay(self) -> ExecutionResult | None:
        """Return the result of an earlier call with the same idempotency key, or raise its error; None if there is
        no such call."""
        user_id, key = self.request.scope.user_id, self.request.idempotency_key
        if key is None:
            return None
        async with self._database.transaction(user_id) as session:
            stored = await idempotency.get_stored_response(
                session, self._sealer, user_id, key, self._identify_request()
            )
        return self._replay(stored)

    def set_request(self, request: ExecutionRequest) -> None:
        """Replace the request by one with the tool's id as its key."""
        self.request = request

    def set_tool(self, tool: TargetTool) -> None:
        self.tool = tool

    async def claim(self, timeout_s: float, *, needs_confirmation: bool = False) -> ExecutionResult | None:
        """Claim the idempotency key, use up the confirmation and return None; or replay an earlier call, as `replay`
        does. Raise `ConfirmationRequired` if the call needs a confirmation and its token is not one for it."""
        claiming = asyncio.create_task(self._claim(timeout_s, needs_confirmation=needs_confirmation))
        try:
            earlier = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # Whether the key was claimed decides what is recorded: a key that nobody releases would look like a call
            # that still runs.
            await asyncio.wait({claiming})
            if claiming.exception() is None and claiming.result() is None:
                self._enter(CallState.CLAIMED)
            raise
        if earlier is None:
            self._enter(CallState.CLAIMED)
        return earlier

    async def confirm_continuation(self, result: ExecutionResult) -> ExecutionResult:
        """Return the question of a confirmed call with a new token in its state: the user's answer to it continues the
        same call, which needs no second confirmation."""
        try:
            confirmation = await self._create_confirmation()
        except (DatabaseDown, QueryFailed):
            logger.exception("failed to confirm the continuation of a tool call")
            return result
        state = add_token_to_state(confirmation.token, result.result.get("requestState"))
        return replace(result, result=result.result | {"requestState": state})

    def start(self) -> None:
        self._enter(CallState.STARTED)

    def finish(self, result: ExecutionResult) -> None:
        self._enter(CallState.DONE)
        self._result = result

    def _enter(self, state: CallState) -> None:
        assert state in _NEXT_STATES[self._state], f"{self._state} -> {state}"  # noqa: S101
        self._state = state

    async def _claim(self, timeout_s: float, *, needs_confirmation: bool) -> ExecutionResult | None:
        user_id, key = self.request.scope.user_id, self.request.idempotency_key
        if key is None and not needs_confirmation:
            return None
        stored: Json | None = None
        try:
            async with self._database.transaction(user_id) as session:
                if key is not None:
                    request = self._identify_request()
                    stored = await idempotency.claim_key(session, self._sealer, user_id, key, request, timeout_s)
                if needs_confirmation and stored is None and not await self._redeem_confirmation(session):
                    raise _NotConfirmed
        except _NotConfirmed as error:  # the claim of the key is rolled back
            confirmation = await self._create_confirmation()
            message = _CONFIRM if self.request.confirmation_token is None else f"{_UNUSABLE}; {_CONFIRM}"
            raise ConfirmationRequired(message, **asdict(confirmation)) from error
        return self._replay(stored)

    def _replay(self, stored: Json | None) -> ExecutionResult | None:
        if stored is None:
            return None
        self._enter(CallState.REPLAYED)
        return _load_outcome(stored)

    def _identify_request(self) -> bytes:
        """Return what must be equal in requests with the same idempotency key."""
        request = self.request
        fields = [request.tool_key, request.alias, request.arguments, request.timeout_s, request.scope.project_id]
        return canonical_json(fields)

    async def _redeem_confirmation(self, session: Session) -> bool:
        user_id, token = self.request.scope.user_id, self.request.confirmation_token
        return token is not None and await redeem_confirmation(
            session, self._sealer, user_id, token, await self._identify_call(session)
        )

    async def _create_confirmation(self) -> Confirmation:
        user_id = self.request.scope.user_id
        async with self._database.transaction(user_id) as session:
            return await create_confirmation(session, self._sealer, user_id, await self._identify_call(session))

    async def _identify_call(self, session: Session) -> bytes:
        """Return what a confirmation is bound to. The definition is read in the transaction that uses it up."""
        assert self.tool is not None  # noqa: S101 only a call whose tool was found needs a confirmation
        scope, tool_id = self.request.scope, self.tool.definition.tool_id
        definition_hash = await get_definition_hash(session, scope.user_id, tool_id)
        return canonical_json([tool_id, definition_hash, scope.project_id, self.request.arguments])

    async def _record(self, outcome: str, failure: ToolscoutError | None) -> None:
        """Log a database failure instead of raising it: the caller still gets the result of a tool that has run."""
        self._count_usage(outcome, failure)
        try:
            async with self._database.transaction(self.request.scope.user_id) as session:
                await self._update_server_status(session, failure)
                await self._store_outcome(session, failure)
                await self._audit(session, outcome)
        except (DatabaseDown, QueryFailed):
            logger.exception("failed to record a tool call", extra={"outcome": outcome})
        conversation, has_started = self.request.conversation, self._state in (CallState.STARTED, CallState.DONE)
        if conversation is not None and self.tool is not None and has_started:
            await note_call(self._database, conversation, self.tool.definition.tool_id)

    def _count_usage(self, outcome: str, failure: ToolscoutError | None) -> None:
        """Count a call that may have run. One that asks the user for input is counted once it has its answer."""
        if self._state not in (CallState.STARTED, CallState.DONE):
            return
        if isinstance(failure, ServerUnreachable) or outcome == INPUT_REQUIRED:
            return
        assert self.tool is not None  # noqa: S101 a call starts only after its tool was found
        succeeded = None if outcome == CANCELLED else outcome == SUCCEEDED
        user_id, tool_id = self.request.scope.user_id, self.tool.definition.tool_id
        self._usage_counters.record_call(user_id, tool_id, succeeded=succeeded)
        if succeeded:
            self._learner.record_call(user_id, tool_id, self.request.discovery_id)

    async def _update_server_status(self, session: Session, failure: ToolscoutError | None) -> None:
        if self.tool is None:
            return
        endpoint = self.tool.endpoint
        server = session, endpoint.user_id, endpoint.server_id
        if self._state is CallState.DONE:
            await servers.record_contact(*server, endpoint.config_version)
        elif isinstance(failure, ServerUnreachable) and failure.cause != "push":
            await servers.record_failure(*server, failure.cause, failure.message, endpoint.config_version)

    async def _store_outcome(self, session: Session, failure: ToolscoutError | None) -> None:
        """Store the outcome under the idempotency key, for repeated calls; release the key if nothing was run."""
        user_id, key = self.request.scope.user_id, self.request.idempotency_key
        if key is None or self._state is CallState.NEW:
            return
        if self._state is CallState.CLAIMED or isinstance(failure, ServerUnreachable | Unavailable):
            await idempotency.release_key(session, user_id, key)
        else:
            outcome = _dump_outcome(self._result, failure, self.tool)
            await idempotency.store_response(session, self._sealer, user_id, key, outcome)

    async def _audit(self, session: Session, outcome: str) -> None:
        duration_ms = (time.perf_counter() - self._created_at) * 1000
        user_id, actor, target = self.request.scope.user_id, self.request.actor, await self._audit_target(session)
        await record_event(session, user_id, actor, "tool.execute", target, outcome=outcome, duration_ms=duration_ms)

    async def _audit_target(self, session: Session) -> str | None:
        """Also name a tool that exists but is not visible: attempts to run a held tool belong in the audit log."""
        if self.tool is not None:
            return self.tool.definition.tool_id
        tool_key, user_id = self.request.tool_key, self.request.scope.user_id
        return tool_key if tool_key is not None and await tool_exists(session, user_id, tool_key) else None


def _result_outcome(executed: ExecutionResult | None) -> str:
    result = {} if executed is None else executed.result
    if result.get("resultType") == INPUT_REQUIRED:
        return INPUT_REQUIRED
    return TOOL_ERROR if result.get("isError") is True else SUCCEEDED


def _dump_outcome(result: ExecutionResult | None, failure: ToolscoutError | None, tool: TargetTool | None) -> Json:
    if result is not None:
        return {"executed": asdict(result)}
    if not isinstance(failure, ToolFailed):
        failure = ToolFailed(_INTERRUPTED, outcome="unknown")
    failed = {"timed_out": isinstance(failure, ToolTimedOut), "message": failure.message, "outcome": failure.outcome}
    return {"failed": failed, "called_tool": None if tool is None else list(tool.names)}


def _load_outcome(stored: dict[str, Any]) -> ExecutionResult:
    if "executed" in stored:
        return ExecutionResult(**stored["executed"])
    failed = stored["failed"]
    error_type = ToolTimedOut if failed["timed_out"] else ToolFailed
    error = error_type(failed["message"], outcome=failed["outcome"])
    if (names := stored.get("called_tool")) is not None:  # versions up to 0.2 did not store the names
        error.called_tool = CalledTool(*names)
    raise error

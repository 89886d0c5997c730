"""The meta-tool that runs tools: `tool_execute`."""

import logging
from collections.abc import Sequence

from app.auth.permissions import Permission
from app.errors import ArgumentsInvalid, ConfirmationRequired, ToolscoutError
from app.execution.batch import Outcome, execute_batch
from app.execution.execute import Executor, execute, execute_with_progress
from app.execution.models import ExecutionRequest, ExecutionResult
from app.mcp_server import batch_results, confirmation, responses
from app.mcp_server.tool_call import ToolCall
from app.observability.logging import request_id
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.mcp")


async def execute_tool(call: ToolCall) -> Json:
    return await (_execute_calls(call) if "calls" in call.arguments else _execute_call(call))


async def _execute_call(call: ToolCall) -> Json:
    executor, arguments = call.container.executor, call.arguments
    request = ExecutionRequest(
        scope=call.scope,
        actor=call.caller.actor,
        arguments=arguments.get("arguments", {}),
        tool_key=arguments["toolKey"],
        dialogue=None if call.dialogue is None else confirmation.take_answer(call.dialogue),
        confirmation_token=arguments.get("confirmationToken"),
    )
    try:
        if call.on_progress is None:
            executed = await execute(executor, request)
        else:
            executed = await execute_with_progress(executor, request, call.on_progress)
    except ConfirmationRequired as error:
        if call.dialogue is None or not confirmation.can_ask(call.dialogue):
            raise
        return confirmation.make_question(error, request.arguments)
    return _render_result(executor, executed)


async def _execute_calls(call: ToolCall) -> Json:
    """Run several calls. None of them has a dialogue: a question would make the client repeat all of them."""
    calls = call.arguments["calls"]
    if call.arguments.get("arguments"):
        problem = "put the arguments into each of the calls"
        error = {"loc": ["arguments", "arguments"], "msg": problem, "type": "not"}
        raise ArgumentsInvalid(f"arguments.arguments: {problem}", errors=[error])
    requests = [
        ExecutionRequest(
            scope=call.scope,
            actor=call.caller.actor,
            arguments=each.get("arguments", {}),
            tool_key=each["toolKey"],
            confirmation_token=each.get("confirmationToken"),
        )
        for each in calls
    ]
    if not call.caller.has_permission(Permission.ADMINISTER):
        # the request itself has counted as the first
        call.container.rate_limiter.acquire(call.scope.user_id, len(calls) - 1, taken=1)
    outcomes = await execute_batch(call.container.executor, requests, call.on_progress)
    return batch_results.render_results([each["toolKey"] for each in calls], _render_outcomes(call, outcomes))


def _render_outcomes(call: ToolCall, outcomes: Sequence[Outcome]) -> list[Json]:
    """Show each input schema only once."""
    results: list[Json] = []
    shown_in: dict[str, str] = {}
    for position, outcome in enumerate(outcomes):
        schema = outcome.schema if isinstance(outcome, ArgumentsInvalid) else None
        results.append(_render_outcome(call, outcome, shown_in.get(schema or "")))
        if schema is not None:
            shown_in.setdefault(schema, f"calls[{position}]")
    return results


def _render_outcome(call: ToolCall, outcome: Outcome, schema_shown_in: str | None) -> Json:
    if isinstance(outcome, ExecutionResult):
        return _render_result(call.container.executor, outcome, "the results together are")
    if isinstance(outcome, ConfirmationRequired) and call.dialogue is not None and confirmation.can_ask(call.dialogue):
        return confirmation.refuse_in_batch(outcome)
    if isinstance(outcome, ToolscoutError):
        return responses.render_error(outcome, schema_shown_in)
    # boundary of the interface: the caller gets no internals
    logger.error("unexpected error", exc_info=outcome)
    return responses.render_error(
        ToolscoutError(f"unexpected error; it is in the log with request id {request_id.get()}")
    )


def _render_result(executor: Executor, executed: ExecutionResult, subject: str = "the whole result is") -> Json:
    if executed.truncated:
        return responses.mark_truncated(executed.result, executor.max_result_bytes, subject)
    return responses.forward_result(executed.result)

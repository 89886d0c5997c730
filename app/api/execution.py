"""REST: run a tool."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from app.api.openapi import describe_stream
from app.api.problems import problem_body
from app.api.sse import HEARTBEAT, HEARTBEAT_S, MEDIA_TYPE, render_event, stream_response
from app.api.strict_route import StrictRoute
from app.catalog.visibility import Scope
from app.conversations.repository import make_key
from app.dependencies import ContainerDep, ExecuteCaller, Tenant, reject_repeated, run_while_connected
from app.errors import ArgumentsInvalid, ToolscoutError
from app.execution.execute import Executor, execute
from app.execution.models import ExecutionRequest, ExecutionResult
from app.execution.progress import ProgressReports
from app.schemas.execution import ExecuteBody, ExecuteOut, IdempotencyKey
from app.text.strict_json import dump_json

router = APIRouter(tags=["execution"], route_class=StrictRoute)

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ExecuteOut,
        "content": describe_stream("`progress`, then `result` with an ExecuteOut, or `error` with a Problem"),
    }
}


@router.post("/execute", name="execute", response_model=ExecuteOut, responses=_RESPONSES)
async def execute_tool(
    body: ExecuteBody,
    request: Request,
    tenant: Tenant,
    container: ContainerDep,
    caller: ExecuteCaller,
    idempotency_key: Annotated[IdempotencyKey | None, Header(description="makes the call safe to repeat")] = None,
) -> Response:
    """Run a visible tool once. A caller that disconnects cancels the call. With `Accept: text/event-stream` the
    response is a stream of `progress` events that ends with a `result` or an `error` event."""
    reject_repeated(request, "Idempotency-Key")
    alias, arguments = (None, body.arguments or {}) if body.tool_call is None else body.tool_call.parse()
    if not isinstance(arguments, dict):
        raise ArgumentsInvalid("the arguments must be an object")
    call = ExecutionRequest(
        scope=Scope(tenant.id, container.model.id, project_id=caller.resolve_project(body.project_id)),
        actor=caller.actor,
        arguments=arguments,
        tool_key=body.tool_key,
        alias=alias,
        timeout_s=None if body.timeout_ms is None else body.timeout_ms / 1000,
        idempotency_key=idempotency_key,
        discovery_id=body.discovery_id,
        conversation=None if body.conversation_id is None else make_key(caller, body.conversation_id),
        confirmation_token=body.confirmation_token,
    )
    if MEDIA_TYPE in request.headers.get("accept", ""):
        return await run_while_connected(request, _execute_streaming(container.executor, call))
    executed = await run_while_connected(request, execute(container.executor, call))
    return Response(dump_json(vars(executed)), media_type="application/json")


async def _execute_streaming(executor: Executor, call: ExecutionRequest) -> Response:
    """Raise errors that occur before the request is sent to the server; everything after that is sent as events."""
    progress = ProgressReports()
    running = asyncio.create_task(execute(executor, call, progress))
    # Retrieve the exception even if the client disconnects, or asyncio logs it as never retrieved.
    running.add_done_callback(lambda task: task.cancelled() or task.exception())
    started = asyncio.create_task(progress.started.wait())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        running.cancel()
        raise
    finally:
        started.cancel()
    if running.done() and not progress.started.is_set():
        running.result()  # raises, unless this is the replayed result of an earlier call
    return stream_response(_events(running, progress))


async def _events(running: asyncio.Task[ExecutionResult], progress: ProgressReports) -> AsyncIterator[bytes]:
    try:
        async for report in progress.stream(running, HEARTBEAT_S):
            yield HEARTBEAT if report is None else render_event("progress", report)
        yield _final_event(running)
    finally:
        # A client that disconnects cancels the call.
        running.cancel()


def _final_event(running: asyncio.Task[ExecutionResult]) -> bytes:
    try:
        return render_event("result", vars(running.result()))
    except ToolscoutError as error:
        return render_event("error", problem_body(error))

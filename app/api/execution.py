"""REST: run a tool."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from app.api.problems import PROBLEM_RESPONSE, problem_body
from app.api.sse import HEARTBEAT, HEARTBEAT_S, MEDIA_TYPE, event, stream
from app.api.strict_json import StrictRoute
from app.catalog.visibility import Scope
from app.dependencies import ContainerDep, ExecuteCaller, Tenant
from app.errors import ArgumentsInvalid, InvalidInput, ToolscoutError
from app.execution.execute import ExecutionRequest, ExecutionResult, Executor, ProgressReports, execute
from app.schemas.base import Identifier, Input
from app.text.strict_json import parse_json

router = APIRouter(tags=["execution"], route_class=StrictRoute)

_MAX_TIMEOUT_MS = 3_600_000

IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


def _as_text(arguments: Any) -> Any:
    if not isinstance(arguments, str | None):
        raise ValueError("must be JSON text, as OpenAI sends it")
    return arguments


JsonText = Annotated[str | None, BeforeValidator(_as_text)]


class Function(BaseModel):
    name: str = Field(max_length=256)
    arguments: JsonText = None


class OpenAICall(BaseModel):
    """As in `choices[0].message.tool_calls`."""

    type: Literal["function"]
    function: Function

    def meaning(self) -> tuple[str, Any]:
        return self.function.name, _parsed(self.function.arguments)


class ResponsesCall(BaseModel):
    """As in `output` of the Responses API."""

    type: Literal["function_call"]
    name: str = Field(max_length=256)
    arguments: JsonText = None

    def meaning(self) -> tuple[str, Any]:
        return self.name, _parsed(self.arguments)


class AnthropicCall(BaseModel):
    """As in `content` of a message."""

    type: Literal["tool_use"]
    name: str = Field(max_length=256)
    input: Any = None

    def meaning(self) -> tuple[str, Any]:
        return self.name, {} if self.input is None else self.input


_CALLS: Sequence[tuple[str, type[BaseModel]]] = (
    ("function", OpenAICall),
    ("function_call", ResponsesCall),
    ("tool_use", AnthropicCall),
)


class ExecuteBody(Input):
    tool_key: Identifier | None = Field(None, description="from `POST /discover` or `GET /tools`")
    arguments: dict[str, Any] | None = Field(None, description="checked against the tool's input schema")
    tool_call: Annotated[OpenAICall | ResponsesCall | AnthropicCall, Field(discriminator="type")] | None = Field(
        None, description="instead of both: the model's own tool call, as OpenAI or Anthropic shape it"
    )
    timeout_ms: int | None = Field(None, ge=1, le=_MAX_TIMEOUT_MS, description="null: TOOLSCOUT_CALL_TIMEOUT_S")
    project_id: Identifier | None = Field(None, description="only what this project sees")

    @field_validator("tool_call", mode="before")
    @classmethod
    def _of_a_known_type(cls, call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        if "type" not in call:
            raise ValueError("its `type` is missing: `function`, `function_call` or `tool_use`")
        # read here, since the union would put the type into the path of every error
        shape = next((shape for name, shape in _CALLS if name == call["type"]), None)
        return call if shape is None else shape.model_validate(call)

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "ExecuteBody":
        if (self.tool_key is None) == (self.tool_call is None):
            raise ValueError("give either `tool_key` and `arguments`, or `tool_call`")
        if self.tool_call is not None and self.arguments is not None:
            raise ValueError("`tool_call` brings its own arguments")
        return self


class ExecuteOut(BaseModel):
    result: dict[str, Any] = Field(description="as the server gave it: `content`, `structuredContent`, `isError`")
    tool_key: str
    server_id: str
    duration_ms: float
    truncated: bool


def _parsed(arguments: str | None) -> Any:
    if not arguments:
        return {}
    try:
        return parse_json(arguments.encode())
    except InvalidInput as error:
        # the code by which a caller knows to hand it back to the model
        raise ArgumentsInvalid("the model's arguments are not valid JSON") from error


_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": ExecuteOut, "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
    502: PROBLEM_RESPONSE,
    504: PROBLEM_RESPONSE,
}


@router.post("/execute", response_model=ExecuteOut, responses=_RESPONSES)
async def execute_tool(
    body: ExecuteBody,
    request: Request,
    tenant: Tenant,
    container: ContainerDep,
    caller: ExecuteCaller,
    idempotency_key: Annotated[IdempotencyKey | None, Header(description="makes the call safe to repeat")] = None,
) -> Response:
    """Runs a tool that is visible to the caller, once. With `Accept: text/event-stream` its progress comes as events:
    `progress`, then `result` or `error`."""
    alias, arguments = (None, body.arguments or {}) if body.tool_call is None else body.tool_call.meaning()
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
    )
    if MEDIA_TYPE in request.headers.get("accept", ""):
        return await _streamed(container.executor, call)
    return Response(_shown(await execute(container.executor, call)), media_type="application/json")


def _shown(executed: ExecutionResult) -> bytes:
    return orjson.dumps(vars(executed))


async def _streamed(executor: Executor, call: ExecutionRequest) -> Response:
    """What is wrong before the server is asked is answered as always; from then on, all comes as events."""
    progress = ProgressReports()
    running = asyncio.create_task(execute(executor, call, progress))
    running.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, though nobody may listen
    beginning = asyncio.create_task(progress.begun.wait())
    try:
        await asyncio.wait({running, beginning}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        running.cancel()
        raise
    finally:
        beginning.cancel()
    if running.done() and not progress.begun.is_set():
        running.result()  # raises, unless the answer is that of an earlier call
    return stream(_events(running, progress))


async def _events(running: asyncio.Task[ExecutionResult], progress: ProgressReports) -> AsyncIterator[bytes]:
    try:
        async for report in progress.reports(running, HEARTBEAT_S):
            yield HEARTBEAT if report is None else event("progress", report)
        yield _last_event(running)
    finally:
        # whoever stops listening stops the call
        running.cancel()


def _last_event(running: asyncio.Task[ExecutionResult]) -> bytes:
    try:
        return event("result", vars(running.result()))
    except ToolscoutError as error:
        return event("error", problem_body(error))

"""What the handlers of MCP messages share: the caller and the project of a request, what its client can do, and how it
is cancelled and counted."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from app.auth.permissions import Caller
from app.catalog.projects import get_project
from app.container import Container
from app.errors import AuthorizationRequired, Conflict, InvalidInput, NotFound, ToolscoutError
from app.mcp_server import elicitation
from app.mcp_server.cancellation import CallCancelled, CallId, RunningCalls
from app.mcp_types import Dialogue
from app.observability.logging import request_id
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.mcp")

T = TypeVar("T")

REQUEST_CONTEXT = "toolscout.mcp_request_context"
_DIALOGUE_CAPABILITIES = frozenset({"elicitation", "sampling", "roots"})

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True)
class McpRequestContext:
    """What the handler of a message needs of its authenticated HTTP request. It is passed on in the ASGI scope."""

    container: Container
    caller: Caller
    session: str
    running_calls: RunningCalls

    def call_id(self, rpc_id: str | int | None) -> CallId:
        return self.caller.actor, self.caller.require_user().id, self.session, rpc_id


def get_request_context(context: Context) -> McpRequestContext:
    assert context.request is not None  # noqa: S101 requests come only over HTTP
    request: McpRequestContext = context.request.scope[REQUEST_CONTEXT]
    return request


def get_meta(context: Context) -> Json:
    """Return the `_meta` that the client has sent."""
    return (context.params or {}).get("_meta") or {}


async def resolve_project(request: McpRequestContext, requested: Any) -> str | None:
    """`_meta.projectId` narrows the scope of a call; it cannot leave the project of the URL or the key.

    Clients with a fixed set of fields send an empty one for none.
    """
    if requested is None or requested == "":
        return request.caller.resolve_project(None)
    if not isinstance(requested, str):
        raise InvalidInput("_meta.projectId must be a string")
    project_id = request.caller.resolve_project(requested)
    user = request.caller.require_user()
    async with request.container.database.transaction(user.id) as session:
        return (await get_project(session, user.id, project_id or requested)).id


def make_dialogue(context: Context) -> Dialogue:
    declared = context.session.client_capabilities
    capabilities = {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
    return Dialogue(
        capabilities={name: value for name, value in capabilities.items() if name in _DIALOGUE_CAPABILITIES},
        responses=elicitation.remove_sign_in_response(get_responses(context)),
        state=(context.params or {}).get("requestState"),
    )


def get_responses(context: Context) -> Json | None:
    """Return the user's answers to what an earlier result of this call has asked for."""
    return (context.params or {}).get("inputResponses")


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def make_sign_in_request(context: Context, request: McpRequestContext, error: AuthorizationRequired) -> Json | None:
    """Return the result that makes the client ask its user to sign in; for older clients, raise the error that does.

    Return None if the client cannot ask, or has asked already: a user who has not signed in then reads the link in
    words.
    """
    if error.authorization_url is None:
        return None
    if not is_modern(context) and elicitation.is_marked(request.session):
        raise elicitation.make_sign_in_error(error)
    dialogue, was_asked = make_dialogue(context), elicitation.has_sign_in_response(get_responses(context))
    if is_modern(context) and elicitation.can_open_urls(dialogue.capabilities) and not was_asked:
        return elicitation.make_sign_in_request(error, dialogue)
    return None


async def run_cancellable(context: Context, request: McpRequestContext, call: Coroutine[Any, Any, T]) -> T:
    """Run the call so that its client can cancel it."""
    try:
        return await request.running_calls.run(request.call_id(context.request_id), call)
    except CallCancelled as error:
        raise MCPError(REQUEST_CANCELLED, "the call was cancelled") from error


def make_rpc_error(error: ToolscoutError, code: int | None = None) -> MCPError:
    """Return the error for a message that is no call of a tool. By default the code says whose fault it is."""
    if code is None:
        is_parameter = isinstance(error, InvalidInput | NotFound | Conflict)
        code = INVALID_PARAMS if is_parameter else INVALID_REQUEST if error.status < 500 else INTERNAL_ERROR
    message = f"{error.code}: {error.message}"
    if isinstance(error, AuthorizationRequired) and error.authorization_url is not None:
        message = f"{message}. Sign in at {error.authorization_url}, then try again"
    return MCPError(code, message, {"code": error.code, "request_id": request_id.get(), **error.all_members})


@contextmanager
def count_call(request: McpRequestContext, name: str) -> Iterator[None]:
    """Count a call by its outcome. An unexpected error is logged, since the caller gets no internals."""
    outcome = "failed"
    try:
        yield
        outcome = "succeeded"
    except ToolscoutError:
        raise
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    except Exception as error:  # boundary of the interface
        logger.exception("unexpected error")
        message = f"unexpected error; it is in the log with request id {request_id.get()}"
        raise MCPError(INTERNAL_ERROR, message) from error
    finally:
        request.container.metrics.mcp_calls.labels(name, outcome).inc()

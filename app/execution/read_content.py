"""Read a resource, or get a prompt, from a visible server.

The same rules as for running a tool apply: the same servers, the same credentials, an audit event. Only a server that
shows something can be read from, whatever URI or name a caller sends.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.audit.actions import Action
from app.audit.record import SUCCEEDED, record_event
from app.catalog.visibility import Scope
from app.catalog.visible_servers import VisibleServer, list_servers_of_ui, list_visible_servers
from app.connections.links import add_link
from app.connections.tickets import Ticket
from app.errors import (
    AuthorizationRequired,
    Conflict,
    DatabaseDown,
    NotFound,
    QueryFailed,
    RequestRejected,
    ToolscoutError,
    Unavailable,
)
from app.execution.call_record import CANCELLED
from app.execution.execute import Executor
from app.execution.resource_uris import OwnUri, make_uri, parse_uri, rewrite_block
from app.execution.server_content import ServerContent, list_content_of
from app.execution.shutdown import fail_on_shutdown
from app.mcp_client.connection import INPUT_REQUIRED
from app.mcp_client.content import ContentRequest, matches_any_template
from app.mcp_meta import filter_meta, is_ui_uri
from app.mcp_types import Dialogue, Endpoint
from app.observability.metrics import observe_duration
from app.text.strict_json import Json, dump_json

logger = logging.getLogger("toolscout.execution")

_UNKNOWN_RESOURCE = "this resource does not exist, or you may not read it: resources/list lists those that you may read"
_UNKNOWN_PROMPT = "this prompt does not exist, or you may not use it: prompts/list lists those that you may use"
_MAX_CHOICES = 5


@dataclass(frozen=True)
class ContentCaller:
    """On whose behalf content is read."""

    scope: Scope
    actor: str
    dialogue: Dialogue | None = None
    """Set if the caller can answer questions of the server."""


@dataclass
class _AuditedRequest:
    server: VisibleServer | None = None
    outcome: str = ToolscoutError.code


async def read_resource(executor: Executor, caller: ContentCaller, uri: str) -> Json:
    """Return the contents of a resource, by our URI for it, or by the server's own if only one visible server has it.

    Raise `NotFound`, `Conflict`, `ServerUnreachable`, `AuthorizationRequired` or `RequestRejected`.
    """
    async with _audit(executor, caller, "resource.read") as audited:
        audited.server, own_uri = await _find_resource(executor, caller.scope, uri)
        request = ContentRequest("resources/read", {"uri": own_uri})
        answer = await _ask_server(executor, caller, audited, request)
        if audited.outcome == INPUT_REQUIRED:
            return answer
        contents = [_render_contents(audited.server.id, part, own_uri, uri) for part in answer["contents"]]
        return {"contents": contents} | _render_meta(answer)


async def get_prompt(executor: Executor, caller: ContentCaller, name: str, arguments: Json) -> Json:
    """Return a prompt by its name, `server.prompt`. Raise what `read_resource` raises."""
    async with _audit(executor, caller, "prompt.get") as audited:
        audited.server, own_name = await _find_prompt(executor, caller.scope, name)
        request = ContentRequest("prompts/get", {"name": own_name, "arguments": arguments})
        answer = await _ask_server(executor, caller, audited, request)
        if audited.outcome == INPUT_REQUIRED:
            return answer
        messages = [
            message | {"content": rewrite_block(audited.server.id, message["content"])}
            for message in answer["messages"]
        ]
        described = {"description": answer["description"]} if answer.get("description") is not None else {}
        return described | {"messages": messages} | _render_meta(answer)


def _render_contents(server_id: str, part: Json, own_uri: str, given_uri: str) -> Json:
    """Return a part of a resource under the URI that the caller knows it by."""
    uri = given_uri if part["uri"] == own_uri else make_uri(server_id, part["uri"])
    return {name: value for name, value in part.items() if name != "_meta"} | {"uri": uri} | _render_meta(part)


def _render_meta(part: Json) -> Json:
    meta = filter_meta(part.get("_meta"))
    return {"_meta": meta} if meta else {}


async def _find_resource(executor: Executor, scope: Scope, uri: str) -> tuple[VisibleServer, str]:
    """Return the server of the resource, and the server's own URI for it."""
    async with executor.database.transaction(scope.user_id) as session:
        servers = await list_visible_servers(session, scope)
        # tools name their user interfaces by the servers' own URIs, and servers need not list them
        of_ui = set(await list_servers_of_ui(session, scope, uri)) if is_ui_uri(uri) else set()
    own: OwnUri | None = parse_uri(uri)
    if own is not None:
        found = [server for server in servers if server.id == own.server_id]
    else:
        found = [server for server in servers if server.id in of_ui]
        found = found or await _find_listing_servers(executor, scope.user_id, servers, uri)
    if not found:
        raise NotFound(_UNKNOWN_RESOURCE)
    if len(found) > 1:
        choices = ", ".join(make_uri(server.id, uri) for server in found[:_MAX_CHOICES])
        raise Conflict(f"several servers have this resource: read one of {choices}")
    return found[0], uri if own is None else own.uri


async def _find_listing_servers(
    executor: Executor, user_id: str, servers: Sequence[VisibleServer], uri: str
) -> list[VisibleServer]:
    """Return the servers that list the resource; if none does, those with a template for it."""
    listed = await list_content_of(executor, user_id, servers, "resources")
    found = [content.server for content in listed if any(item["uri"] == uri for item in content.items)]
    if found:
        return found
    listed = await list_content_of(executor, user_id, servers, "resource_templates")
    # in a thread, because there may be many templates, and others wait for the event loop
    return await asyncio.to_thread(_select_by_template, listed, uri)


def _select_by_template(listed: Sequence[ServerContent], uri: str) -> list[VisibleServer]:
    return [
        content.server
        for content in listed
        if matches_any_template((item["uriTemplate"] for item in content.items), uri)
    ]


async def _find_prompt(executor: Executor, scope: Scope, name: str) -> tuple[VisibleServer, str]:
    """Return the server of the prompt, and the server's own name for it. Names of servers may contain dots: of those
    that fit, the longest counts whose server lists the prompt."""
    async with executor.database.transaction(scope.user_id) as session:
        servers = await list_visible_servers(session, scope)
    fitting = [server for server in servers if name.startswith(f"{server.name}.")]
    found = sorted(fitting, key=lambda server: len(server.name), reverse=True)
    if not found:
        raise NotFound(_UNKNOWN_PROMPT)
    if len(found) > 1:
        listed = await list_content_of(executor, scope.user_id, found, "prompts")
        having = [
            content.server
            for content in listed
            if any(f"{content.server.name}.{prompt['name']}" == name for prompt in content.items)
        ]
        found = having or found
    return found[0], name.removeprefix(f"{found[0].name}.")


async def _ask_server(
    executor: Executor, caller: ContentCaller, audited: _AuditedRequest, request: ContentRequest
) -> Json:
    assert audited.server is not None  # noqa: S101 the callers have found it
    endpoint = await executor.connector.get_endpoint(caller.scope.user_id, audited.server.id)

    async def send(endpoint: Endpoint) -> Json:
        return await executor.mcp_pool.request_content(endpoint, request, executor.timeout_s, caller.dialogue)

    stopping = Unavailable("the service is shutting down; try again in a few seconds")
    with observe_duration(executor.metrics.upstream_seconds, "read"):
        async with fail_on_shutdown(executor.shutdown, stopping):
            answer = await executor.connector.use(endpoint, send)
    if len(dump_json(answer)) > executor.max_resource_bytes:
        limit = executor.max_resource_bytes
        raise RequestRejected(f"the server's answer is larger than {limit} bytes (TOOLSCOUT_MAX_RESOURCE_BYTES)")
    audited.outcome = INPUT_REQUIRED if answer.get("resultType") == INPUT_REQUIRED else SUCCEEDED
    return answer


@asynccontextmanager
async def _audit(executor: Executor, caller: ContentCaller, action: Action) -> AsyncIterator[_AuditedRequest]:
    """Record the outcome when the block ends. Add where the user signs in to the error of a server that wants it."""
    audited, started = _AuditedRequest(), time.perf_counter()
    try:
        yield audited
    except ToolscoutError as error:
        audited.outcome = error.code
        if isinstance(error, AuthorizationRequired) and audited.server is not None:
            ticket = Ticket(caller.scope.user_id, audited.server.id, caller.actor)
            await add_link(executor.connector, executor.sealer, error, ticket)
        raise
    except asyncio.CancelledError:
        audited.outcome = CANCELLED
        raise
    finally:
        duration_ms = (time.perf_counter() - started) * 1000
        await asyncio.shield(_record(executor, caller, action, audited, duration_ms))


async def _record(
    executor: Executor, caller: ContentCaller, action: Action, audited: _AuditedRequest, duration_ms: float
) -> None:
    """Log a failure of the database instead of raising it: the caller still gets what was read."""
    user_id, target = caller.scope.user_id, None if audited.server is None else audited.server.id
    try:
        async with executor.database.transaction(user_id) as session:
            await record_event(
                session, user_id, caller.actor, action, target, outcome=audited.outcome, duration_ms=duration_ms
            )
    except (DatabaseDown, QueryFailed):
        logger.exception("failed to record a request for content", extra={"outcome": audited.outcome})

"""Resources and prompts of the user's servers, passed through by `/mcp/full`.

They are named so that they lead back to their servers: a prompt is `server.prompt`, a resource has a URI of ours. A
failure is a JSON-RPC error, whose `data` has the code that the REST API uses.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import mcp_types as types
import orjson
from mcp import MCPError

from app.auth.permissions import Permission
from app.catalog.visibility import Scope
from app.catalog.visible_servers import VisibleServer
from app.container import Container
from app.errors import AuthorizationRequired, InvalidInput, NotFound, RequestRejected, ToolscoutError
from app.execution.read_content import ContentCaller, get_prompt, read_resource
from app.execution.resource_uris import make_uri
from app.execution.server_content import ServerContent, list_content
from app.mcp_client.connection import INPUT_REQUIRED
from app.mcp_client.content import RESOURCE_NOT_FOUND, ContentKind
from app.mcp_server.request_context import (
    Context,
    McpRequestContext,
    count_call,
    get_meta,
    get_request_context,
    is_modern,
    make_dialogue,
    make_rpc_error,
    make_sign_in_request,
    resolve_project,
    run_cancellable,
)
from app.text.strict_json import Json

SERVER_META = "toolscout/server"
"""The name of the server that a resource or a prompt is of."""
URI_META = "toolscout/uri"
"""The server's own URI of a resource."""
_PAGE_SIZE = 100


class _Position(NamedTuple):
    """Where a page begins: at this item of the server with this name and id, or after it if it is gone."""

    server_name: str
    server_id: str
    item: int


class _ListedItem(NamedTuple):
    server: VisibleServer
    number: int
    item: Json


async def _list_resources(context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    listed = await _list(context, params, "resources/list", "resources", _render_resource)
    return types.ListResourcesResult.model_validate(listed)


async def _list_templates(
    context: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    listed = await _list(
        context, params, "resources/templates/list", "resource_templates", _render_template, "resourceTemplates"
    )
    return types.ListResourceTemplatesResult.model_validate(listed)


async def _list_prompts(context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    listed = await _list(context, params, "prompts/list", "prompts", _render_item)
    return types.ListPromptsResult.model_validate(listed)


async def _read_resource(context: Context, params: types.ReadResourceRequestParams) -> Any:
    async def read(container: Container, caller: ContentCaller) -> Json:
        return await read_resource(container.executor, caller, params.uri)

    result = await _answer(context, "resources/read", Permission.EXECUTE, read)
    return result if _is_question(result) else types.ReadResourceResult.model_validate(result)


async def _get_prompt(context: Context, params: types.GetPromptRequestParams) -> Any:
    async def get(container: Container, caller: ContentCaller) -> Json:
        return await get_prompt(container.executor, caller, params.name, params.arguments or {})

    result = await _answer(context, "prompts/get", Permission.EXECUTE, get)
    return result if _is_question(result) else types.GetPromptResult.model_validate(result)


PASSTHROUGH_HANDLERS = {
    "on_list_resources": _list_resources,
    "on_list_resource_templates": _list_templates,
    "on_read_resource": _read_resource,
    "on_list_prompts": _list_prompts,
    "on_get_prompt": _get_prompt,
}
"""The handlers, by the names of the SDK's parameters."""


def _is_question(result: Json) -> bool:
    return result.get("resultType") == INPUT_REQUIRED


async def _list(
    context: Context,
    params: types.PaginatedRequestParams | None,
    method: str,
    kind: ContentKind,
    render: Callable[[VisibleServer, Json], Json],
    field: str | None = None,
) -> Json:
    async def list_page(container: Container, caller: ContentCaller) -> Json:
        position = _decode_cursor(None if params is None else params.cursor)
        contents = await list_content(container.executor, caller.scope, kind)
        page = list(islice(_iterate_from(position, contents), _PAGE_SIZE + 1))
        more = {"nextCursor": _encode_cursor(page.pop())} if len(page) > _PAGE_SIZE else {}
        return {field or kind: [render(server, item) for server, _, item in page], **more}

    return await _answer(context, method, Permission.READ_TOOLS, list_page)


def _iterate_from(position: _Position | None, contents: Sequence[ServerContent]) -> Iterator[_ListedItem]:
    for server, items in ((content.server, content.items) for content in contents):
        first = 0
        if position is not None:
            if (server.name, server.id) < position[:2]:
                continue
            first = position.item if server.id == position.server_id else 0
        yield from (_ListedItem(server, number, items[number]) for number in range(first, len(items)))


def _encode_cursor(listed: _ListedItem) -> str:
    position = [listed.server.name, listed.server.id, listed.number]
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode()


def _decode_cursor(cursor: str | None) -> _Position | None:
    if cursor is None:
        return None
    try:
        name, server_id, item = orjson.loads(base64.urlsafe_b64decode(cursor))
        if isinstance(name, str) and isinstance(server_id, str) and type(item) is int and item >= 0:
            return _Position(name, server_id, item)
    except (binascii.Error, ValueError, TypeError):
        pass
    raise InvalidInput("this cursor is not one that the last page gave")


def _render_item(server: VisibleServer, item: Json) -> Json:
    """Return the item with its server's name: before the name for programs, and behind the title for people."""
    return item | {
        "name": f"{server.name}.{item['name']}",
        "title": f"{item.get('title') or item['name']} ({server.name})",
        "_meta": item.get("_meta", {}) | {SERVER_META: server.name},
    }


def _render_resource(server: VisibleServer, item: Json) -> Json:
    rendered = _render_item(server, item)
    meta = rendered["_meta"] | {URI_META: item["uri"]}
    return rendered | {"uri": make_uri(server.id, item["uri"]), "_meta": meta}


def _render_template(server: VisibleServer, item: Json) -> Json:
    return _render_item(server, item) | {"uriTemplate": make_uri(server.id, item["uriTemplate"])}


async def _answer(
    context: Context,
    method: str,
    permission: Permission,
    use: Callable[[Container, ContentCaller], Awaitable[Json]],
) -> Json:
    request = get_request_context(context)

    async def run() -> Json:
        try:
            with count_call(request, method):
                request.caller.require_permission(permission)
                return await use(request.container, await _make_caller(context, request))
        except AuthorizationRequired as error:
            question = make_sign_in_request(context, request, error)
            if question is None:
                raise _to_rpc_error(context, method, error) from error
            return question
        except ToolscoutError as error:
            raise _to_rpc_error(context, method, error) from error

    return await run_cancellable(context, request, run())


async def _make_caller(context: Context, request: McpRequestContext) -> ContentCaller:
    project_id = await resolve_project(request, get_meta(context).get("projectId"))
    scope = Scope(request.caller.require_user().id, request.container.model.id, project_id=project_id)
    return ContentCaller(scope, request.caller.actor, make_dialogue(context) if is_modern(context) else None)


def _to_rpc_error(context: Context, method: str, error: ToolscoutError) -> MCPError:
    is_unknown = isinstance(error, NotFound) or (isinstance(error, RequestRejected) and error.is_callers_fault)
    if is_unknown and method == "resources/read" and not is_modern(context):
        return make_rpc_error(error, RESOURCE_NOT_FOUND)
    return make_rpc_error(error, types.INVALID_PARAMS if is_unknown else None)

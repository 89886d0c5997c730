"""Resources and prompts of a server. Listing and reading them has no effect on the server, so that a failed request may
be sent again."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

from mcp import MCPError
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    GetPromptRequest,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsRequest,
    ListPromptsResult,
    ListResourcesRequest,
    ListResourcesResult,
    ListResourceTemplatesRequest,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequest,
    ReadResourceResult,
)
from pydantic import TypeAdapter, ValidationError

from app.errors import RequestRejected, ServerUnreachable
from app.mcp_client.connection import INPUT_REQUIRED, Connection, can_answer, dump_result
from app.mcp_client.outcomes import OutcomeUnknown, error_text
from app.mcp_meta import MAX_ICON_BYTES
from app.mcp_types import Dialogue
from app.text.strict_json import Json

ContentKind = Literal["resources", "resource_templates", "prompts"]

RESOURCE_NOT_FOUND = -32002
"""Of the older protocol. The newest one uses `INVALID_PARAMS`."""

_MAX_PAGES = 100
_MAX_LIST_BYTES = 1024 * 1024
"""Of one kind. A server need not be slow to be a burden: lists are read whenever a client asks for them."""
_MAX_TEMPLATE_URI = 2_000
_MAX_VARIABLES = 20
"""Of a template. Matching takes time for each variable and each character of the URI."""
_MAX_TRIED_TEMPLATES = 50
_CANNOT_ANSWER = "the server asks the user for input, which this caller cannot answer"
_CALLERS_FAULTS = (INVALID_PARAMS, RESOURCE_NOT_FOUND)


@dataclass(frozen=True)
class ContentList:
    items: list[Json]
    is_declared: bool = True
    """False if the server says that it has nothing of this kind, and so was not asked."""


@dataclass(frozen=True)
class ContentRequest:
    method: Literal["resources/read", "prompts/get"]
    params: Json


@dataclass(frozen=True)
class _Kind:
    capability: Literal["resources", "prompts"]
    request: type[Any]
    result: type[Any]


_KINDS: Mapping[ContentKind, _Kind] = {
    "resources": _Kind("resources", ListResourcesRequest, ListResourcesResult),
    "resource_templates": _Kind("resources", ListResourceTemplatesRequest, ListResourceTemplatesResult),
    "prompts": _Kind("prompts", ListPromptsRequest, ListPromptsResult),
}
_READ: TypeAdapter[Any] = TypeAdapter(ReadResourceResult | InputRequiredResult)
_PROMPT: TypeAdapter[Any] = TypeAdapter(GetPromptResult | InputRequiredResult)
_REQUESTS: Mapping[str, tuple[type[Any], TypeAdapter[Any]]] = {
    "resources/read": (ReadResourceRequest, _READ),
    "prompts/get": (GetPromptRequest, _PROMPT),
}


async def list_content(connection: Connection, kind: ContentKind, max_items: int) -> ContentList:
    """Return the items of all pages, up to `max_items`. A server that does not declare them is not asked."""
    described = _KINDS[kind]
    if getattr(connection.capabilities, described.capability) is None:
        return ContentList([], is_declared=False)
    with _translate_errors():
        async with asyncio.timeout(connection.limits.list_s):
            return ContentList(await _list_pages(connection, kind, max_items))


async def _list_pages(connection: Connection, kind: ContentKind, max_items: int) -> list[Json]:
    """Return the first items, as many as the limits admit, without icons that are too large to be shown. A cursor that
    is repeated ends the list."""
    described, items, cursor = _KINDS[kind], list[Json](), None
    bytes_left, seen_cursors = _MAX_LIST_BYTES, set[str]()
    for _ in range(_MAX_PAGES):
        request = described.request(params=PaginatedRequestParams(cursor=cursor))
        try:
            page = await connection.request(partial(connection.client.session.send_request, request, described.result))
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:  # templates are optional
                return items
            raise
        for item in getattr(page, kind):
            item.icons = [icon for icon in item.icons or () if len(icon.src) <= MAX_ICON_BYTES] or None
            bytes_left -= len(item.model_dump_json())
            if bytes_left < 0 or len(items) >= max_items:
                return items
            items.append(dump_result(item))
        cursor = page.next_cursor
        if cursor is None or cursor in seen_cursors:
            break
        seen_cursors.add(cursor)
    return items


async def request_content(
    connection: Connection, request: ContentRequest, timeout_s: float, dialogue: Dialogue | None
) -> Json:
    """Return the server's answer. With a dialogue it may be a question to the user."""
    answers = {} if dialogue is None else {"inputResponses": dialogue.responses, "requestState": dialogue.state}
    request_type, adapter = _REQUESTS[request.method]
    sent = request_type.model_validate({"method": request.method, "params": request.params | answers})
    capabilities = None if dialogue is None else dialogue.capabilities
    with _translate_errors():
        async with asyncio.timeout(timeout_s):
            result = await connection.request(
                partial(connection.client.session.send_request, sent, adapter), capabilities
            )
    answer = dump_result(result)
    if isinstance(result, InputRequiredResult):
        if dialogue is None or not can_answer(dialogue, result):
            raise RequestRejected(_CANNOT_ANSWER)
        return answer | {"resultType": INPUT_REQUIRED}
    answer.pop("resultType", None)
    return answer


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ServerUnreachable("timeout", "the server did not answer in time") from error
    except OutcomeUnknown as error:
        raise error.failure from error
    except MCPError as error:
        message = f"the server answered with error {error.code}: {error_text(error)}"
        raise RequestRejected(message, is_callers_fault=error.code in _CALLERS_FAULTS) from error
    except ValidationError:  # "from None": the cause quotes what the server sent
        raise ServerUnreachable("protocol", "the server's answer is not valid MCP") from None


def matches_any_template(templates: Iterable[str], uri: str) -> bool:
    """Return whether the URI is one of a template with a fixed scheme. A template that cannot be read has none.

    Both come from strangers, so that the work is bounded: longer URIs match nothing, and of the templates that begin as
    the URI does, only the first are tried.
    """
    if len(uri) > _MAX_TEMPLATE_URI:
        return False
    fitting = (each for each in templates if _has_beginning_of(each, uri))
    return any(_matches(each, uri) for each in islice(fitting, _MAX_TRIED_TEMPLATES))


def _has_beginning_of(template: str, uri: str) -> bool:
    literal = template.partition("{")[0]
    return ":" in literal and uri.startswith(literal)


def _matches(template: str, uri: str) -> bool:
    try:
        return UriTemplate.parse(template, max_variables=_MAX_VARIABLES).match(uri) is not None
    except InvalidUriTemplate:
        return False

"""REST: a user's servers, the tools pushed for them, and the runs that index them."""

import asyncio
import re
import time
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from app.api.intake import StrictRoute, require_json
from app.api.shapes import Input, Items, Name, Output, Tags, given, items
from app.catalog import servers
from app.catalog.servers import NewServer, Transport
from app.catalog.tools import recount
from app.dependencies import Paged, Reading, Session, Tenant, Wired, Writing
from app.errors import InvalidInput
from app.indexing import jobs
from app.indexing.jobs import Run, RunState
from app.protocol import parse_json
from app.wiring import Container

router = APIRouter(tags=["servers"], route_class=StrictRoute)

_HEADER_NAME = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
_WAIT_LIMIT_S = 300.0
_WAIT_STEP_S = 0.05

HeaderValue = Annotated[str, StringConstraints(max_length=8_192, pattern=r"^[\x20-\x7e\t]*$")]
Wait = Annotated[bool, Query(description="answer when the run has ended (at most five minutes)")]
Force = Annotated[bool, Query(description="embed everything anew, and accept an empty list")]


class _ServerFields(Input):
    @field_validator("url", check_fields=False)
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        return None if value is None else checked_url(value)

    @field_validator("headers", check_fields=False)
    @classmethod
    def _headers(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if wrong := [name for name in value or {} if not _HEADER_NAME.match(name)]:
            raise ValueError(f"{wrong[0][:40]!r} is not a header name")
        return value


class NewServerBody(_ServerFields):
    name: Name = Field(examples=["github"])
    transport: Transport = Field(examples=["push"])
    description: str = Field("", max_length=4_000)
    url: str | None = Field(None, max_length=2_048)
    headers: dict[str, HeaderValue] = Field({}, max_length=32, description="stored sealed, never shown again")
    tags: Tags = []
    enabled: bool = True

    @model_validator(mode="after")
    def _url_where_one_connects(self) -> "NewServerBody":
        check_transport(self.transport, self.url)
        return self


class ServerChanges(_ServerFields):
    name: Name = ""
    description: str = Field("", max_length=4_000)
    transport: Transport = "push"
    url: str | None = Field(None, max_length=2_048)
    headers: dict[str, HeaderValue] | None = Field(None, max_length=32)
    tags: Tags = []
    enabled: bool = True


class ServerOut(Output):
    id: str
    user_id: str
    name: str
    description: str
    transport: Transport
    url: str | None
    header_names: list[str]
    tags: list[str]
    enabled: bool
    status: str
    last_error: str | None
    config_version: int
    tool_count: int
    pending_count: int
    created_at: datetime
    updated_at: datetime


class Progress(Output):
    done: int
    total: int


class RunOut(Output):
    id: str
    server_id: str
    state: RunState
    progress: Progress
    counts: dict[str, int]
    refused: list[dict[str, Any]]
    warnings: list[str]
    error: dict[str, str] | None
    created_at: datetime
    finished_at: datetime | None


class PushBody(Input):
    tools: list[Any] = Field(
        max_length=100_000,
        description="the server's whole list, as MCP tools",
        examples=[
            [{"name": "search_repositories", "description": "Search repositories", "inputSchema": {"type": "object"}}]
        ],
    )


# Not declared as a parameter: FastAPI would parse megabytes, on the event loop, before it looks at the key.
_PUSH_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": PushBody.model_json_schema()}}}
}


def checked_push(body: bytes) -> bytes:
    try:
        PushBody.model_validate(parse_json(body))
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in error.errors()]) from error
    return body


def checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError("not a valid URL") from error
    # some readers take a backslash for a slash and connect to another host than others
    if not valid or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("not a valid http(s) URL")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("must hold neither credentials nor a fragment; credentials go into `headers`")
    return url


def check_transport(transport: Transport, url: str | None) -> None:
    if transport == "stdio":
        raise ValueError("stdio servers run code: only the operator can configure them")
    if transport == "push" and url is not None:
        raise ValueError("a push server has no URL: its tools are sent to PUT /servers/{id}/tools")
    if transport in ("streamable_http", "sse") and url is None:
        raise ValueError(f"a {transport} server needs a URL")


def show_run(run: Run) -> RunOut:
    progress = {"done": run.done, "total": run.total}
    return RunOut.model_validate({**vars(run), "counts": run.all_counts, "progress": progress})


@router.post("/servers", status_code=201)
async def create_server(
    body: NewServerBody, session: Session, tenant: Tenant, container: Wired, _: Writing
) -> ServerOut:
    wanted = NewServer(**body.model_dump())
    return ServerOut.model_validate(await servers.create_server(session, container.sealer, tenant.id, wanted))


@router.get("/servers")
async def list_servers(session: Session, tenant: Tenant, page: Paged, _: Reading) -> Items[ServerOut]:
    return items(await servers.list_servers(session, tenant.id, page), ServerOut.model_validate)


@router.get("/servers/{server_id}")
async def get_server(server_id: str, session: Session, tenant: Tenant, _: Reading) -> ServerOut:
    return ServerOut.model_validate(await servers.get_server(session, tenant.id, server_id))


@router.patch("/servers/{server_id}")
async def change_server(
    server_id: str, body: ServerChanges, session: Session, tenant: Tenant, container: Wired, _: Writing
) -> ServerOut:
    before = await servers.get_server(session, tenant.id, server_id)
    changes = given(body)
    try:
        check_transport(changes.get("transport", before.transport), changes.get("url", before.url))
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    after = await servers.update_server(session, container.sealer, tenant.id, server_id, changes)
    if after.name != before.name and after.tool_count:
        # the server's name is part of what is searched
        await jobs.enqueue(session, tenant.id, server_id, None, force=False)
        container.worker.wake()
    return ServerOut.model_validate(after)


@router.delete("/servers/{server_id}", status_code=204)
async def delete_server(server_id: str, session: Session, tenant: Tenant, container: Wired, _: Writing) -> Response:
    await servers.delete_server(session, tenant.id, server_id)
    await recount(session, tenant.id, container.settings.search_ann_above)
    return Response(status_code=204)


@router.put("/servers/{server_id}/tools", status_code=202, responses={200: {"model": RunOut}}, openapi_extra=_PUSH_BODY)
async def push_tools(
    server_id: str,
    request: Request,
    response: Response,
    tenant: Tenant,
    container: Wired,
    _: Writing,
    *,
    wait: Wait = False,
    force: Force = False,
) -> RunOut:
    """Replaces the server's tools by this list. The list is stored with its run: 202 means that it will be done."""
    require_json(request)
    body = await asyncio.to_thread(checked_push, await request.body())
    async with container.database.transaction(tenant.id) as session:
        await servers.get_server(session, tenant.id, server_id)
        run = await jobs.enqueue(session, tenant.id, server_id, body, force=force)
    return await _accepted(container, run, response, wait=wait)


@router.post("/servers/{server_id}/reindex", status_code=202, responses={200: {"model": RunOut}})
async def reindex(
    server_id: str,
    response: Response,
    tenant: Tenant,
    container: Wired,
    _: Writing,
    *,
    wait: Wait = False,
    force: Force = False,
) -> RunOut:
    """Embeds the server's tools where their vectors are missing or out of date; with `force`, all of them."""
    async with container.database.transaction(tenant.id) as session:
        await servers.get_server(session, tenant.id, server_id)
        run = await jobs.enqueue(session, tenant.id, server_id, None, force=force)
    return await _accepted(container, run, response, wait=wait)


@router.post("/reindex", status_code=202)
async def reindex_all(
    session: Session, tenant: Tenant, container: Wired, _: Writing, *, force: Force = False
) -> Items[RunOut]:
    server_ids = await servers.server_ids_of(session, tenant.id)
    runs = [await jobs.enqueue(session, tenant.id, server_id, None, force=force) for server_id in server_ids]
    container.worker.wake()
    return Items(items=[show_run(run) for run in runs])


@router.get("/servers/{server_id}/runs")
async def list_runs(server_id: str, session: Session, tenant: Tenant, page: Paged, _: Reading) -> Items[RunOut]:
    await servers.get_server(session, tenant.id, server_id)
    return items(await jobs.list_runs(session, tenant.id, server_id, page), show_run)


@router.get("/runs/{run_id}")
async def get_run(run_id: str, session: Session, tenant: Tenant, _: Reading) -> RunOut:
    return show_run(await jobs.get_run(session, tenant.id, run_id))


async def _accepted(container: Container, run: Run, response: Response, *, wait: bool) -> RunOut:
    container.worker.wake()
    if wait:
        run = await _ended(container, run)
        response.status_code = 200 if run.finished else 202
    return show_run(run)


async def _ended(container: Container, run: Run) -> Run:
    """Looks again and again, each time in a short transaction of its own: the run may be on another replica."""
    deadline = time.monotonic() + _WAIT_LIMIT_S
    pause_s = _WAIT_STEP_S
    while not run.finished and not container.draining.is_set() and time.monotonic() < deadline:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.5)
        async with container.database.transaction(run.user_id) as session:
            run = await jobs.get_run(session, run.user_id, run.id)
    return run

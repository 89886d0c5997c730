"""REST: make the index equal to what a server offers, and watch it being done."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.api.sse import HEARTBEAT, HEARTBEAT_S, MEDIA_TYPE, event, stream
from app.api.strict_json import StrictRoute, require_json
from app.catalog import servers
from app.container import Container
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, PageParams, Session, Tenant
from app.errors import NotFound, QueryInterrupted, Unavailable
from app.indexing import queue
from app.indexing.queue import Run
from app.management import runs as manage_runs
from app.schemas.base import Items, render_page
from app.schemas.runs import PushBody, RunOut, render_run
from app.text.strict_json import parse_json

router = APIRouter(tags=["runs"], route_class=StrictRoute)

_WAIT_LIMIT_S = 300.0
_WAIT_STEP_S = 0.05
_WAIT_LONGEST_STEP_S = 0.5

Wait = Annotated[bool, Query(description="answer when the run has ended (at most five minutes)")]
Force = Annotated[bool, Query(description="embed everything anew, and accept an empty list")]


# Not declared as a parameter: FastAPI would parse megabytes, on the event loop, before it looks at the key.
_PUSH_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": PushBody.model_json_schema()}}}
}


def parse_push(body: bytes) -> bytes:
    try:
        PushBody.model_validate(parse_json(body))
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in error.errors()]) from error
    return body


@router.put("/servers/{server_id}/tools", status_code=202, responses={200: {"model": RunOut}}, openapi_extra=_PUSH_BODY)
async def push_tools(
    server_id: str,
    request: Request,
    response: Response,
    tenant: Tenant,
    container: ContainerDep,
    caller: CatalogWriteCaller,
    *,
    wait: Wait = False,
    force: Force = False,
) -> RunOut:
    """Replaces the server's tools by this list. The list is stored with its run: 202 means that it will be done."""
    require_json(request)
    body = await asyncio.to_thread(parse_push, await request.body())
    run = await manage_runs.push_tools(
        container.database, container.worker, tenant.id, server_id, body, force=force, actor=caller.actor
    )
    return await _accepted(container, run, response, wait=wait)


@router.post("/servers/{server_id}/reindex", status_code=202, responses={200: {"model": RunOut}})
async def reindex(
    server_id: str,
    response: Response,
    tenant: Tenant,
    container: ContainerDep,
    caller: CatalogWriteCaller,
    *,
    wait: Wait = False,
    force: Force = False,
) -> RunOut:
    """Asks the server for its tools and indexes what has changed; those of a pushed server are embedded where their
    vectors are missing or out of date. Who asks while others do gets the same run."""
    run = await manage_runs.request_reindex(
        container.database, container.worker, tenant.id, server_id, force=force, actor=caller.actor
    )
    return await _accepted(container, run, response, wait=wait)


@router.post("/reindex", status_code=202, responses={200: {"model": Items[RunOut]}})
async def reindex_all(
    response: Response,
    tenant: Tenant,
    container: ContainerDep,
    caller: CatalogWriteCaller,
    *,
    wait: Wait = False,
    force: Force = False,
) -> Items[RunOut]:
    """All servers of the user."""
    runs = await manage_runs.request_reindex_of_all(
        container.database, container.worker, tenant.id, force=force, actor=caller.actor
    )
    if wait:
        runs = await asyncio.gather(*(_ended(container, run) for run in runs))
        response.status_code = 200 if all(run.finished for run in runs) else 202
    return Items(items=[render_run(run) for run in runs])


@router.get("/servers/{server_id}/runs")
async def list_runs(
    server_id: str, session: Session, tenant: Tenant, page: PageParams, _: CatalogReadCaller
) -> Items[RunOut]:
    """The newest first."""
    await servers.get_server(session, tenant.id, server_id)
    return render_page(await queue.list_runs(session, tenant.id, server_id, page), render_run)


@router.get("/runs/{run_id}")
async def get_run(run_id: str, session: Session, tenant: Tenant, _: CatalogReadCaller) -> RunOut:
    """How far it is, what it has counted and refused, and why it failed."""
    return render_run(await queue.get_run(session, tenant.id, run_id))


@router.get("/runs/{run_id}/events", response_class=Response, responses={200: {"content": {MEDIA_TYPE: {}}}})
async def watch_run(run_id: str, tenant: Tenant, container: ContainerDep, _: CatalogReadCaller) -> Response:
    """The run as server-sent events: `progress` whenever it has moved, `run` when it has ended. Each holds the run."""
    run = await _look(container, tenant.id, run_id)
    return stream(_events(container, run))


async def _events(container: Container, run: Run) -> AsyncIterator[bytes]:
    yield _shown_event(run)
    async for seen in _watched(container, run):
        yield HEARTBEAT if seen is None else _shown_event(seen)


def _shown_event(run: Run) -> bytes:
    return event("run" if run.finished else "progress", render_run(run).model_dump(mode="json"))


async def _watched(container: Container, run: Run) -> AsyncIterator[Run | None]:
    """The run each time that it has changed, and None now and then in between."""
    silent_since = time.monotonic()
    async for seen in _looks(container, run):
        if seen != run:
            run, silent_since = seen, time.monotonic()
            yield run
        elif time.monotonic() - silent_since > HEARTBEAT_S:
            silent_since = time.monotonic()
            yield None


async def _accepted(container: Container, run: Run, response: Response, *, wait: bool) -> RunOut:
    if wait:
        run = await _ended(container, run)
        response.status_code = 200 if run.finished else 202
    return render_run(run)


async def _ended(container: Container, run: Run) -> Run:
    deadline = time.monotonic() + _WAIT_LIMIT_S
    async for seen in _looks(container, run):
        run = seen
        if time.monotonic() > deadline:
            break
    return run


async def _looks(container: Container, run: Run) -> AsyncIterator[Run]:
    """Again and again until it has ended, each time in a short transaction: the run may be on another replica."""
    pause_s = _WAIT_STEP_S
    while not run.finished and not container.draining.is_set():
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _WAIT_LONGEST_STEP_S)
        try:
            # for a moment: the run was accepted, and goes on all the same
            with suppress(Unavailable, QueryInterrupted):
                run = await _look(container, run.user_id, run.id)
        except NotFound:
            return  # the server was deleted meanwhile, and its runs with it
        yield run


async def _look(container: Container, user_id: str, run_id: str) -> Run:
    async with container.database.transaction(user_id) as session:
        return await queue.get_run(session, user_id, run_id)

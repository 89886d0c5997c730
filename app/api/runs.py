"""REST: push tool lists, reindex servers, and watch the runs."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.api.openapi import describe_body, describe_stream
from app.api.sse import HEARTBEAT, HEARTBEAT_S, render_event, stream_response
from app.api.strict_route import StrictRoute, require_json
from app.catalog import servers
from app.container import Container
from app.dependencies import (
    CatalogReadCaller,
    CatalogWriteCaller,
    ContainerDep,
    PageParams,
    Session,
    Tenant,
    run_while_connected,
)
from app.errors import QueryInterrupted, Unavailable
from app.indexing import queue
from app.indexing.queue import Run
from app.management import runs as manage_runs
from app.schemas.base import Items, render_page
from app.schemas.runs import PushBody, RunOut, render_run
from app.text.strict_json import parse_json

router = APIRouter(tags=["runs"], route_class=StrictRoute)

_WAIT_LIMIT_S = 300.0
_POLL_INTERVAL_S = 0.05
_MAX_POLL_INTERVAL_S = 0.5

Wait = Annotated[bool, Query(description="respond when the run has finished (after five minutes at the latest)")]
Force = Annotated[bool, Query(description="embed all tools again, and accept an empty list")]


# Not declared as a parameter: FastAPI would parse megabytes on the event loop before the key is checked.
_PUSH_BODY = describe_body("PushBody")
_RUN_EVENTS = describe_stream("`progress` after each change, `run` at the end, each with a RunOut")


def parse_push(body: bytes) -> bytes:
    """Validate a pushed list and return it unchanged."""
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
    """Replace the server's tools by this list. It is stored with its run: 202 means that it will be indexed."""
    require_json(request)
    body = await asyncio.to_thread(parse_push, await request.body())
    run = await manage_runs.push_tools(
        container.database, container.worker, tenant.id, server_id, body, force=force, actor=caller.actor
    )
    return await _respond(container, run, request, response, wait=wait)


@router.post("/servers/{server_id}/reindex", status_code=202, responses={200: {"model": RunOut}})
async def reindex_server(
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
    """List the server's tools and index what has changed. For a server of type `push`, embed the stored tools whose
    vectors are missing or outdated. Concurrent requests share a run."""
    run = await manage_runs.request_reindex(
        container.database, container.worker, tenant.id, server_id, force=force, actor=caller.actor
    )
    return await _respond(container, run, request, response, wait=wait)


@router.post("/reindex", status_code=202, responses={200: {"model": Items[RunOut]}})
async def reindex_all(
    request: Request,
    response: Response,
    tenant: Tenant,
    container: ContainerDep,
    caller: CatalogWriteCaller,
    *,
    wait: Wait = False,
    force: Force = False,
) -> Items[RunOut]:
    """Reindex all servers of the user."""
    runs = await manage_runs.request_reindex_of_all(
        container.database, container.worker, tenant.id, force=force, actor=caller.actor
    )
    if wait:
        runs = await run_while_connected(request, _wait_for_runs(container, runs))
        response.status_code = 200 if all(run.is_finished for run in runs) else 202
    return Items(items=[render_run(run) for run in runs])


@router.get("/servers/{server_id}/runs")
async def list_runs(
    server_id: str, session: Session, tenant: Tenant, page: PageParams, _: CatalogReadCaller
) -> Items[RunOut]:
    """List the server's runs, newest first."""
    await servers.get_server(session, tenant.id, server_id)
    return render_page(await queue.list_runs(session, tenant.id, server_id, page), render_run)


@router.get("/runs/{run_id}")
async def get_run(run_id: str, session: Session, tenant: Tenant, _: CatalogReadCaller) -> RunOut:
    """Return the progress, the counts, the refused tools and the error of a run."""
    return render_run(await queue.get_run(session, tenant.id, run_id))


@router.get("/runs/{run_id}/events", response_class=Response, responses={200: {"content": _RUN_EVENTS}})
async def watch_run(run_id: str, tenant: Tenant, container: ContainerDep, _: CatalogReadCaller) -> Response:
    """Stream the run as server-sent events: `progress` after each change, `run` at its end. Each contains the run."""
    async with container.database.transaction(tenant.id) as session:
        run = await queue.get_run(session, tenant.id, run_id)
    return stream_response(_stream_run(container, run))


async def _stream_run(container: Container, run: Run) -> AsyncIterator[bytes]:
    """Yield an event for the run as it is, and for each change; heartbeats in between."""
    yield _render_event(run)
    last_sent = time.monotonic()
    async for [current] in _poll_runs(container, [run]):
        if current != run:
            run, last_sent = current, time.monotonic()
            yield _render_event(run)
        elif time.monotonic() - last_sent > HEARTBEAT_S:
            last_sent = time.monotonic()
            yield HEARTBEAT


def _render_event(run: Run) -> bytes:
    return render_event("run" if run.is_finished else "progress", render_run(run).model_dump(mode="json"))


async def _respond(container: Container, run: Run, request: Request, response: Response, *, wait: bool) -> RunOut:
    if wait:
        [run] = await run_while_connected(request, _wait_for_runs(container, [run]))
        response.status_code = 200 if run.is_finished else 202
    return render_run(run)


async def _wait_for_runs(container: Container, runs: list[Run]) -> list[Run]:
    deadline = time.monotonic() + _WAIT_LIMIT_S
    async for current in _poll_runs(container, runs):
        runs = current
        if time.monotonic() > deadline:
            break
    return runs


async def _poll_runs(container: Container, runs: Sequence[Run]) -> AsyncIterator[list[Run]]:
    """Read the runs of a user again and again until all have finished. Other replicas may be processing them.

    One statement reads all of them, and no connection is held in between.
    """
    pause_s = _POLL_INTERVAL_S
    newest = {run.id: run for run in runs}
    pending = {run.id for run in runs if not run.is_finished}
    while pending and not container.draining.is_set():
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _MAX_POLL_INTERVAL_S)
        # a short outage of the database does not affect an accepted run
        with suppress(Unavailable, QueryInterrupted):
            found = await _read_runs(container, runs[0].user_id, pending)
            newest.update(found)
            # a run that is not found was deleted, with its server
            pending = {run.id for run in found.values() if not run.is_finished}
        yield list(newest.values())


async def _read_runs(container: Container, user_id: str, run_ids: Collection[str]) -> dict[str, Run]:
    async with container.database.transaction(user_id) as session:
        return await queue.get_runs(session, user_id, run_ids)

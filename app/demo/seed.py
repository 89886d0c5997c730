"""A user to try things with: eight invented servers with some sixty tools, on a database that has no user yet."""

import asyncio
from importlib.resources import files
from typing import Any

import orjson

from app.accounts.keys import NewKey, create_key
from app.accounts.users import create_user, list_users
from app.catalog.servers import NewServer, create_server
from app.database.engine import Session
from app.database.paging import PageRequest
from app.indexing import jobs
from app.protocol import Json
from app.wiring import Container

DEMO_USER = "demo"
_LOOK_AGAIN_S = 0.1


def catalogue() -> list[Json]:
    content = orjson.loads((files("app.demo") / "catalogue.json").read_bytes())
    servers: list[Json] = content["servers"]
    return servers


async def seed_demo(container: Container) -> str | None:
    """The demo user's key, the one time that it is made; None where there is any user already."""
    async with container.database.system_transaction() as session:
        if (await list_users(session, PageRequest(limit=1))).items:
            return None
        await create_user(session, DEMO_USER, "Demo user")
        runs = [await _queue(container, session, server) for server in catalogue()]
        _, key = await create_key(session, NewKey("user", name="demo", user_id=DEMO_USER))
    container.worker.wake()
    if container.settings.index_concurrency:  # else another process does the work
        await _ended(container, runs)
    return key


async def _queue(container: Container, session: Session, server: dict[str, Any]) -> jobs.Run:
    wanted = NewServer(server["name"], "push", description=server["description"], tags=server["tags"])
    made = await create_server(session, container.sealer, DEMO_USER, wanted)
    return await jobs.enqueue(session, DEMO_USER, made.id, orjson.dumps({"tools": server["tools"]}), force=False)


async def _ended(container: Container, runs: list[jobs.Run]) -> None:
    """So that the first question is answered from a whole index."""
    while runs:
        async with container.database.transaction(DEMO_USER) as session:
            seen = [await jobs.get_run(session, DEMO_USER, run.id) for run in runs]
        runs = [run for run in seen if not run.finished]
        await asyncio.sleep(_LOOK_AGAIN_S)

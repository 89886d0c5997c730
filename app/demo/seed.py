"""The demo user: eight invented servers with about sixty tools, created in a database without users."""

import asyncio
from importlib.resources import files
from typing import Any

import orjson

from app import audit
from app.auth.keys import NewKey, create_key
from app.auth.users import create_user, list_users
from app.catalog.servers import NewServer, create_server
from app.container import Container
from app.db.engine import Session
from app.db.pagination import PageRequest
from app.indexing import queue
from app.text.strict_json import Json

DEMO_USER = "demo"
_POLL_INTERVAL_S = 0.1


def load_catalogue() -> list[Json]:
    content = orjson.loads((files("app.demo") / "catalogue.json").read_bytes())
    servers: list[Json] = content["servers"]
    return servers


async def seed_demo(container: Container) -> str | None:
    """Create the demo user, queue its tools and return its key. Return None if there already is a user."""
    async with container.database.system_transaction() as session:
        if (await list_users(session, PageRequest(limit=1))).items:
            return None
        await create_user(session, DEMO_USER, "Demo user")
        for server in load_catalogue():
            await _add_server(container, session, server)
        key, secret = await create_key(session, NewKey("user", name="demo", user_id=DEMO_USER))
        await audit.record(session, DEMO_USER, queue.SYSTEM, "key.create", key.id)
    container.worker.notify()
    return secret


async def _add_server(container: Container, session: Session, server: dict[str, Any]) -> None:
    new_server = NewServer(server["name"], "push", description=server["description"], tags=server["tags"])
    created = await create_server(session, container.sealer, DEMO_USER, new_server)
    await queue.enqueue(session, DEMO_USER, created.id, orjson.dumps({"tools": server["tools"]}), force=False)


async def finish_demo(container: Container) -> None:
    """Wait until the tools are indexed, so that the first search covers the whole catalogue."""
    if not container.settings.runs_worker:  # another process runs the worker
        return
    statement = "SELECT count(*) FROM index_runs WHERE user_id = %(user_id)s AND finished_at IS NULL"
    unfinished = 1
    while unfinished:
        await asyncio.sleep(_POLL_INTERVAL_S)
        async with container.database.transaction(DEMO_USER) as session:
            [(unfinished,)] = await session.rows(statement, {"user_id": DEMO_USER})

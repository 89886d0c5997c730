"""The demo user, created in a database without users: eight invented servers, whose tools are found and do not run, and
one real server, whose tools run."""

import asyncio
from importlib.resources import files

import orjson

from app.catalog.servers import NewServer
from app.container import Container
from app.indexing.queue import SYSTEM
from app.management.seeding import SeedServer, seed_user
from app.mcp_client.stdio_servers import DEMO_PROGRAM
from app.settings import DEMO_USER
from app.text.strict_json import Json

__all__ = ["DEMO_USER", "finish_demo", "load_catalogue", "seed_demo"]

_TOOLBOX = NewServer(
    DEMO_PROGRAM,
    "stdio",
    description="Clock, time zones, unit conversion, calculator, notes and text statistics; its tools really run",
    tags=["utilities"],
)
_POLL_INTERVAL_S = 0.1


def load_catalogue() -> list[Json]:
    content = orjson.loads((files("app.demo") / "catalogue.json").read_bytes())
    servers: list[Json] = content["servers"]
    return servers


async def seed_demo(container: Container) -> str | None:
    """Create the demo user, queue its tools and return its key. Return None if there already is a user."""
    return await seed_user(
        container.database,
        container.sealer,
        container.worker,
        DEMO_USER,
        "Demo user",
        [*(_make_seed_server(server) for server in load_catalogue()), SeedServer(_TOOLBOX)],
        actor=SYSTEM,
    )


def _make_seed_server(server: Json) -> SeedServer:
    new_server = NewServer(server["name"], "push", description=server["description"], tags=server["tags"])
    return SeedServer(new_server, orjson.dumps({"tools": server["tools"]}))


async def finish_demo(container: Container) -> None:
    """Wait until the tools are indexed, so that the first search covers the whole catalogue.

    A run that has failed and will be tried again is not waited for: the service works without it.
    """
    if not container.settings.runs_worker:  # another process runs the worker
        return
    statement = """
        SELECT count(*) FROM index_runs WHERE user_id = %(user_id)s AND finished_at IS NULL AND error IS NULL
    """
    unfinished = 1
    while unfinished:
        await asyncio.sleep(_POLL_INTERVAL_S)
        async with container.database.transaction(DEMO_USER) as session:
            [(unfinished,)] = await session.rows(statement, {"user_id": DEMO_USER})

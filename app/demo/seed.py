"""A user to try things with: eight invented servers with some sixty tools, on a database that has no user yet."""

import asyncio
from importlib.resources import files

import orjson

from app.catalog.servers import NewServer
from app.container import Container
from app.indexing.queue import SYSTEM
from app.management.seeding import SeedServer, seed_user
from app.text.strict_json import Json

DEMO_USER = "demo"
_LOOK_AGAIN_S = 0.1


def catalogue() -> list[Json]:
    content = orjson.loads((files("app.demo") / "catalogue.json").read_bytes())
    servers: list[Json] = content["servers"]
    return servers


async def seed_demo(container: Container) -> str | None:
    """The demo user's key, the one time that it is made; None where there is any user already. The tools are queued."""
    servers = [_seed_server(server) for server in catalogue()]
    return await seed_user(
        container.database,
        container.sealer,
        container.worker,
        DEMO_USER,
        "Demo user",
        servers,
        actor=SYSTEM,
    )


def _seed_server(server: Json) -> SeedServer:
    new_server = NewServer(server["name"], "push", description=server["description"], tags=server["tags"])
    return SeedServer(new_server, orjson.dumps({"tools": server["tools"]}))


async def finish_demo(container: Container) -> None:
    """Waits until the tools are indexed, so that the first question is answered from a whole catalogue."""
    if not container.settings.runs_worker:  # another process does the work
        return
    statement = "SELECT count(*) FROM index_runs WHERE user_id = %(user_id)s AND finished_at IS NULL"
    unfinished = 1
    while unfinished:
        await asyncio.sleep(_LOOK_AGAIN_S)
        async with container.database.transaction(DEMO_USER) as session:
            [(unfinished,)] = await session.rows(statement, {"user_id": DEMO_USER})

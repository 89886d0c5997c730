"""The deed: a server comes, is asked for its tools, and goes; each with its trace in the audit."""

from app import audit
from app.catalog import servers
from app.catalog.servers import NewServer, Server
from app.catalog.tools import recount
from app.database.engine import Session
from app.indexing import jobs
from app.indexing.jobs import Run
from app.sealing import Sealer


async def register_server(
    session: Session, sealer: Sealer, user_id: str, wanted: NewServer, actor: str
) -> tuple[Server, Run | None]:
    """With the run that asks it for its tools, unless those are pushed or nobody may use them yet."""
    server = await servers.create_server(session, sealer, user_id, wanted)
    await audit.record(session, user_id, actor, "server.create", server.id)
    if not server.enabled or server.transport == "push":
        return server, None
    return server, await jobs.enqueue(session, user_id, server.id, asked_by=actor)


async def remove_server(session: Session, user_id: str, server_id: str, ann_above: int, actor: str) -> None:
    await servers.delete_server(session, user_id, server_id)
    await recount(session, user_id, ann_above)
    await audit.record(session, user_id, actor, "server.delete", server_id)

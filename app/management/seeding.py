"""Fill an empty database with one user to try things with."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.audit.record import record_event
from app.auth.keys import NewKey, insert_key
from app.auth.users import insert_user, list_users
from app.catalog.servers import NewServer, insert_server
from app.crypto import Sealer
from app.db.engine import Database
from app.db.pagination import PageRequest
from app.indexing import queue
from app.indexing.worker import Worker


@dataclass(frozen=True)
class SeedServer:
    new_server: NewServer
    payload: bytes | None = None
    """Its tools, as they would be pushed; None: the server is asked for them."""


async def seed_user(
    database: Database,
    sealer: Sealer,
    worker: Worker,
    user_id: str,
    name: str,
    servers: Sequence[SeedServer],
    *,
    actor: str,
) -> str | None:
    """Create a user with servers whose tools are queued for indexing, and return a key of the user.

    Return None, and change nothing, if there is any user. All in one transaction: a start that is interrupted leaves
    no user without its key.
    """
    async with database.system_transaction() as session:
        if (await list_users(session, PageRequest(limit=1))).items:
            return None
        user = await insert_user(session, user_id, name)
        await record_event(session, user.id, actor, "user.create", user.id)
        for seed in servers:
            server = await insert_server(session, sealer, user.id, seed.new_server)
            await record_event(session, user.id, actor, "server.create", server.id)
            await queue.enqueue(session, user.id, server.id, seed.payload)
        key, secret = await insert_key(session, NewKey("user", name=user_id, user_id=user.id))
        await record_event(session, user.id, actor, "key.create", key.id)
        session.after_commit(worker.notify)
    return secret

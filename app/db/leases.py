"""Leases of background tasks that one process at a time does for all.

A lease saves work, it does not protect data: a process that stalls may go on after its lease has expired. What the task
does must be safe to do twice.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass, field

from app.db.engine import Database
from app.errors import QueryInterrupted, Unavailable

_ACQUIRE = """
    INSERT INTO task_leases (name, holder, lease_until)
    VALUES (%(name)s, %(holder)s, now() + make_interval(secs => %(seconds)s))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until
    WHERE task_leases.holder = excluded.holder OR task_leases.lease_until < now()
    RETURNING holder
"""
_RELEASE = "UPDATE task_leases SET lease_until = now() WHERE name = %(name)s AND holder = %(holder)s"


@dataclass(frozen=True)
class Lease:
    """The lease of a task, as one process sees it."""

    database: Database
    name: str
    seconds: float
    holder: str = field(default_factory=lambda: str(uuid.uuid4()))

    async def acquire(self) -> bool:
        """Take or renew it. Return False if another process holds it."""
        parameters = {"name": self.name, "holder": self.holder, "seconds": self.seconds}
        async with self.database.system_transaction() as session:
            return bool(await session.rows(_ACQUIRE, parameters))

    async def release(self) -> None:
        """Let another process take it at once. If the database is away, it expires."""
        with suppress(Unavailable, QueryInterrupted):
            async with self.database.system_transaction() as session:
                await session.rows(_RELEASE, {"name": self.name, "holder": self.holder})

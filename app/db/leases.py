"""Leases of background tasks that one process at a time does for all.

A lease saves work, it does not protect data: a process that stalls may go on after its lease has expired. What the task
does must be safe to do twice.
"""

from app.db.engine import Session

_ACQUIRE = """
    INSERT INTO task_leases (name, holder, lease_until)
    VALUES (%(name)s, %(holder)s, now() + make_interval(secs => %(seconds)s))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until
    WHERE task_leases.holder = excluded.holder OR task_leases.lease_until < now()
    RETURNING holder
"""
_RELEASE = "UPDATE task_leases SET lease_until = now() WHERE name = %(name)s AND holder = %(holder)s"


async def acquire_lease(session: Session, name: str, holder: str, seconds: float) -> bool:
    """Take or renew the lease of a task. Return False if another process holds it."""
    return bool(await session.rows(_ACQUIRE, {"name": name, "holder": holder, "seconds": seconds}))


async def release_lease(session: Session, name: str, holder: str) -> None:
    await session.rows(_RELEASE, {"name": name, "holder": holder})

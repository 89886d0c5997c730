"""Limits of what one user may have. They bound what a user costs the others; a user above a limit keeps what it has.

Each check locks the user until the end of the transaction, so that concurrent requests cannot pass it together.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from app.auth.keys import count_active_keys
from app.catalog.projects import count_projects
from app.catalog.rules import Rule
from app.catalog.servers import count_own_servers
from app.catalog.tags import read_used_tags
from app.catalog.visibility import lock_user
from app.db.engine import Session
from app.errors import LimitReached


@dataclass(frozen=True)
class Quotas:
    servers: int
    projects: int
    keys: int
    """Active ones: neither revoked nor expired."""
    tags: int
    """Different ones, of servers, tools and rules together."""


async def check_servers(session: Session, quotas: Quotas, user_id: str) -> None:
    """Raise `LimitReached` if the user may not have another server. Shared servers do not count."""
    await lock_user(session, user_id)
    if await count_own_servers(session, user_id) >= quotas.servers:
        raise LimitReached("servers", quotas.servers)


async def check_projects(session: Session, quotas: Quotas, user_id: str) -> None:
    await lock_user(session, user_id)
    if await count_projects(session, user_id) >= quotas.projects:
        raise LimitReached("projects", quotas.projects)


async def check_keys(session: Session, quotas: Quotas, user_id: str) -> None:
    await lock_user(session, user_id)
    if await count_active_keys(session, user_id) >= quotas.keys:
        raise LimitReached("active keys", quotas.keys)


async def check_tags(session: Session, quotas: Quotas, user_id: str, tags: Iterable[str]) -> None:
    """Raise `LimitReached` if the user would have too many different tags with these. Call it before storing them."""
    given = set(tags)
    if not given:
        return
    await lock_user(session, user_id)
    used = await read_used_tags(session, user_id)
    if given - used and len(given | used) > quotas.tags:
        raise LimitReached("different tags", quotas.tags)


def list_tags(rules: Iterable[Rule] | None) -> set[str]:
    return {tag for rule in rules or () for tag in rule.tags}

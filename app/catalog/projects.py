"""Projects: named parts of a user's tools, each with its own rules, limits and search strategy."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal

from sqlalchemy import Row, any_, delete, func, insert, literal, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from app.auth.keys import delete_keys
from app.db.engine import Reader, Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass, violated_constraint
from app.db.tables import projects
from app.errors import Conflict, NotFound
from app.limits.byte_cache import ByteCache

_MAX_CACHE_BYTES = 32 * 1024 * 1024
_SELECT_AS_JSON = """
    SELECT row_to_json(p) FROM projects p WHERE p.user_id = %(user_id)s AND p.id = %(project_id)s
"""

Optimization = Literal["bm25", "semantic", "hybrid", "cloud"]


@dataclass(frozen=True)
class Project:
    id: str
    name: str
    server_ids: Sequence[str] | None
    """None: all servers that the user has, now and later."""
    optimization: Optimization | None
    """How to search: by a strategy, or through the cloud; None: discovery returns core tools only."""
    read_only: bool
    limit: int | None
    similarity_threshold: float | None
    created_at: datetime
    updated_at: datetime


def project_from_json(stored: Mapping[str, Any]) -> Project:
    """Return the project for its row in JSON."""
    times = {name: datetime.fromisoformat(stored[name]) for name in ("created_at", "updated_at")}
    return Project(**{field.name: stored[field.name] for field in fields(Project)} | times)


def project_number(project_id: str) -> int:
    """Return the number by which search rows refer to a project: the first eight bytes of its id.

    They are unique enough among the projects of one user, and keep a row small that names a hundred. Return 0, which is
    no project, if the id is not a UUID.
    """
    try:
        return int.from_bytes(uuid.UUID(project_id).bytes[:8], signed=True)
    except ValueError:
        return 0


async def get_project(session: Session, user_id: str, project_id: str) -> Project:
    row = (await session.execute(select(projects).where(*_by_id(user_id, project_id)))).one_or_none()
    if row is None:
        raise project_not_found()
    return _to_project(row)


class ProjectCache:
    """Caches projects. An entry is valid for the catalogue version at which it was read: every change is a new one."""

    def __init__(self) -> None:
        self._cache: ByteCache[tuple[str, str], tuple[int, Project]] = ByteCache(
            _MAX_CACHE_BYTES, get_owner=itemgetter(0)
        )

    async def get(self, reader: Reader, user_id: str, project_id: str, version: int) -> Project:
        """Return the project of the user at this version or a later one. Raise `NotFound` if there is none."""
        cached = self._cache.get((user_id, project_id))
        if cached is not None and cached[0] >= version:
            return cached[1]
        rows = await reader.rows(_SELECT_AS_JSON, {"user_id": user_id, "project_id": project_id})
        if not rows:
            raise project_not_found()
        project = project_from_json(rows[0][0])
        self._cache[user_id, project_id] = version, project
        return project


async def list_projects(session: Session, user_id: str, page: PageRequest) -> Page[Project]:
    statement = select(projects).where(projects.c.user_id == user_id)
    return await fetch_page(session, statement, (projects.c.name, projects.c.id), page, _to_project)


async def list_all_projects(session: Session, user_id: str) -> list[Project]:
    rows = await session.execute(select(projects).where(projects.c.user_id == user_id).order_by(projects.c.id))
    return [_to_project(row) for row in rows]


async def read_project_names(session: Session, keys: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the names, by id, of projects of several users, each given as (user id, project id)."""
    statement = select(projects.c.id, projects.c.name).where(tuple_(projects.c.user_id, projects.c.id).in_(keys))
    return {row.id: row.name for row in await session.execute(statement)}


async def count_projects(session: Session, user_id: str) -> int:
    statement = select(func.count()).select_from(projects).where(projects.c.user_id == user_id)
    return int(await session.scalar(statement))


async def insert_project(session: Session, user_id: str, values: Mapping[str, Any]) -> Project:
    statement = insert(projects).values(user_id=user_id, id=str(uuid.uuid4()), **values).returning(projects)
    return await _execute_write(session, statement, values)


async def update_project(session: Session, user_id: str, project_id: str, values: Mapping[str, Any]) -> Project:
    statement = update(projects).where(*_by_id(user_id, project_id)).values(**values, updated_at=func.now())
    return await _execute_write(session, statement.returning(projects), values)


async def delete_project(session: Session, user_id: str, project_id: str) -> Sequence[str]:
    """Delete a project and the keys that are bound to it. Return the ids of those that were not revoked."""
    locked = select(projects.c.id).where(*_by_id(user_id, project_id)).with_for_update()
    if await session.scalar(locked) is None:
        raise project_not_found()
    key_ids = await delete_keys(session, user_id, project_id)
    await session.execute(delete(projects).where(*_by_id(user_id, project_id)))
    return key_ids


async def remove_server_from_projects(session: Session, user_id: str, server_id: str) -> None:
    """Drop a deleted server from the member lists of the user's projects."""
    members = projects.c.server_ids
    affected = projects.c.user_id == user_id, literal(server_id) == any_(members)
    await session.execute(update(projects).where(*affected).values(server_ids=func.array_remove(members, server_id)))


def project_not_found() -> NotFound:
    return NotFound("there is no such project")


async def _execute_write(session: Session, statement: Any, values: Mapping[str, Any]) -> Project:
    try:
        row = (await session.execute(statement)).one_or_none()
    except IntegrityError as error:
        if violated_constraint(error) != "projects_name":
            raise NotFound("there is no such user") from error
        raise Conflict(f"there is already a project named {values.get('name')!r}") from error
    if row is None:
        raise project_not_found()
    return _to_project(row)


def _by_id(user_id: str, project_id: str) -> tuple[Any, Any]:
    return projects.c.user_id == user_id, projects.c.id == project_id


def _to_project(row: Row[Any]) -> Project:
    return to_dataclass(Project, row)

"""From what a door was asked to what the deed understands.

What a request leaves open the project decides, then the user's settings, then we.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.auth.permissions import Caller
from app.auth.users import User
from app.catalog.projects import Project, get_project
from app.catalog.visibility import Scope
from app.discovery.discover import DEFAULT_LIMIT, Ask, Discoverer
from app.search.query import Query
from app.search.scoring import Strategy


@dataclass(frozen=True)
class Wishes:
    """What a request says; None where it leaves the choice to others."""

    query: Query
    project_id: str | None = None
    server_ids: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    strategy: Strategy | None = None
    limit: int | None = None
    threshold: float | None = None
    include_core_tools: bool = True
    max_tokens: int | None = None
    keep: Sequence[str] | None = None
    explain: bool = False
    trial: bool = False


async def resolved(discoverer: Discoverer, caller: Caller, wishes: Wishes) -> Ask:
    """Raises `NotFound` for a project that is not there, or that the caller's key is not bound to."""
    user = caller.require_user()
    project_id = caller.resolve_project(wishes.project_id)
    project = await _project(discoverer, user, project_id)
    own: Mapping[str, Any] = {} if project is None else vars(project)
    return Ask(
        query=wishes.query,
        scope=Scope(user.id, discoverer.model.id, wishes.server_ids, wishes.tags, project_id),
        strategy=_strategy(wishes, user, project),
        limit=wishes.limit or own.get("limit") or user.settings.get("limit") or DEFAULT_LIMIT,
        threshold=_threshold(wishes, own, user.settings),
        include_core_tools=wishes.include_core_tools,
        max_tokens=wishes.max_tokens,
        keep=wishes.keep or (),
        explain=wishes.explain,
        trial=wishes.trial,
    )


async def _project(discoverer: Discoverer, user: User, project_id: str | None) -> Project | None:
    if project_id is None:
        return None
    async with discoverer.database.transaction(user.id) as session:
        return await get_project(session, user.id, project_id)


def _strategy(wishes: Wishes, user: User, project: Project | None) -> Strategy | None:
    if project is None:
        return wishes.strategy or user.settings.get("strategy") or "hybrid"
    return None if project.optimization is None else wishes.strategy or project.optimization


def _threshold(wishes: Wishes, *defaults: Mapping[str, Any]) -> float | None:
    """Zero is a threshold like any other, so `or` would not do."""
    given = wishes.threshold, *(each.get("similarity_threshold") for each in defaults)
    return next((wish for wish in given if wish is not None), None)

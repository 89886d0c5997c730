"""Create, change and delete projects."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.audit.record import record_event
from app.catalog import projects
from app.catalog.projects import Project
from app.catalog.rules import Rule, check_rules, get_rules, store_rules
from app.catalog.servers import count_servers
from app.catalog.visibility import lock_user, recompute_visibility
from app.db.engine import Database, Session
from app.errors import InvalidInput, NotFound
from app.management.quotas import Quotas, check_projects, check_tags, list_tags


async def create_project(
    database: Database,
    user_id: str,
    values: Mapping[str, Any],
    rules: Sequence[Rule],
    quotas: Quotas,
    *,
    actor: str,
    has_cloud: bool,
) -> Project:
    """Raise `NotFound` for a member server that the user does not have, and `Conflict` for a name that is taken.

    `has_cloud`: projects may be searched through the cloud.
    """
    await check_rules(rules)
    if values.get("optimization") == "cloud" and not has_cloud:
        raise _cloud_not_configured()
    async with database.exclusive_transaction(user_id) as session:
        await check_projects(session, quotas, user_id)
        await check_tags(session, quotas, user_id, list_tags(rules))
        await _check_members(session, user_id, values.get("server_ids"))
        project = await projects.insert_project(session, user_id, values)
        await store_rules(session, user_id, project.id, rules)
        await recompute_visibility(session, user_id)
        await record_event(session, user_id, actor, "project.create", project.id)
    return project


async def change_project(
    database: Database,
    user_id: str,
    project_id: str,
    changes: Mapping[str, Any],
    rules: Sequence[Rule] | None,
    quotas: Quotas,
    *,
    actor: str,
    has_cloud: bool,
) -> tuple[Project, Sequence[Rule]]:
    """Update a project and return it with its rules. `rules` replace the stored ones; None keeps those.

    A project that is searched through the cloud already may stay so without one: it is searched by words meanwhile.
    """
    await check_rules(rules or ())
    async with database.exclusive_transaction(user_id) as session:
        await lock_user(session, user_id)
        await check_tags(session, quotas, user_id, list_tags(rules))
        await _check_members(session, user_id, changes.get("server_ids"))
        if changes.get("optimization") == "cloud" and not has_cloud:
            stored = await projects.get_project(session, user_id, project_id)
            if stored.optimization != "cloud":
                raise _cloud_not_configured()
        project = await projects.update_project(session, user_id, project_id, changes)
        if rules is not None:
            await store_rules(session, user_id, project_id, rules)
        await recompute_visibility(session, user_id)
        await record_event(session, user_id, actor, "project.change", project_id)
        return project, await get_rules(session, user_id, project_id)


async def delete_project(database: Database, user_id: str, project_id: str, *, actor: str) -> None:
    """Delete a project with its rules, and revoke the keys that are bound to it."""
    async with database.exclusive_transaction(user_id) as session:
        await lock_user(session, user_id)
        revoked_key_ids = await projects.delete_project(session, user_id, project_id)
        await store_rules(session, user_id, project_id, ())
        await recompute_visibility(session, user_id)
        await record_event(session, user_id, actor, "project.delete", project_id)
        for key_id in revoked_key_ids:
            await record_event(session, user_id, actor, "key.revoke", key_id)


def _cloud_not_configured() -> InvalidInput:
    return InvalidInput(
        "`optimization` is `cloud`, but this service knows no cloud: the operator sets TOOLSCOUT_CLOUD_URL; until then "
        "use `hybrid`, `semantic` or `bm25`"
    )


async def _check_members(session: Session, user_id: str, server_ids: Sequence[str] | None) -> None:
    if server_ids is not None and await count_servers(session, user_id, set(server_ids)) != len(set(server_ids)):
        raise NotFound("there is no such server")

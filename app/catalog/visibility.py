"""Which tools can be found and run: decided in one place, stored as one fact, read through one filter.

What may hide a tool is weighed by `verdicts.Judge`, and the outcome is stored in the tool's narrow search row. Search,
fallback, listing and execution read that row through `VISIBLE`, so that what is visible is what is callable.

The tenant predicate is the first barrier; row-level security, which the transaction's user id feeds, is the second.
Each alone suffices.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import select, update

from app.catalog.policy import Policy, PolicyEvaluator, ToolFacts, VisibilityDecision
from app.catalog.projects import all_projects, project_number
from app.catalog.rules import Rule, RuleSet, all_rules
from app.db.engine import Database, Session
from app.db.tables import USER_RULES, catalog_versions, mcp_servers, users
from app.errors import NotFound, ToolscoutError

logger = logging.getLogger("toolscout.catalog")

VISIBLE = """
    v.user_id = %(user_id)s
    AND v.model = %(model)s
    AND v.enabled
    AND (%(project)s::bigint IS NULL OR %(project)s::bigint = ANY(v.projects))
    AND (%(server_ids)s::text[] IS NULL OR v.server_id = ANY(%(server_ids)s::text[]))
    AND (%(tags)s::text[] IS NULL OR v.tags && %(tags)s::text[]
         OR (%(project_id)s::text IS NOT NULL AND v.project_tags -> %(project_id)s::text ?| %(tags)s::text[]))
"""
"""Follows WHERE; `v` is `mcp_tool_embeddings`."""

TAGS = """
    CASE WHEN %(project_id)s::text IS NULL OR NOT v.project_tags ? %(project_id)s::text THEN v.tags
         ELSE v.tags || ARRAY(SELECT jsonb_array_elements_text(v.project_tags -> %(project_id)s::text)) END
"""
"""Of `v`, as the scope sees it."""

_NEXT_VERSION = catalog_versions.next_value()

# a list that we refused says nothing against the server: the old one stays
_FAILING = "s.last_error IS NOT NULL AND s.last_cause IS DISTINCT FROM 'empty_listing'"

_FACTS = f"""
    SELECT t.id, t.name, s.id, s.name, s.enabled, {_FAILING},
           s.tool_permissions, s.tags, t.tags, t.switched, t.state = 'changed',
           coalesce((t.annotations -> 'readOnlyHint')::text = 'true', false)
    FROM mcp_tools t JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
    WHERE t.user_id = %(user_id)s AND t.vanished_at IS NULL
      AND (%(server_id)s::text IS NULL OR t.server_id = %(server_id)s::text)
"""

_DECIDED = """
    jsonb_to_recordset(%(decided)s::jsonb) AS decided (
        id text, enabled boolean, enabled_by text, hidden_by text,
        visible boolean, tags text[], projects bigint[], project_tags jsonb)
"""

_WRITE_TOOLS = f"""
    UPDATE mcp_tools t
    SET enabled = decided.enabled, enabled_by = decided.enabled_by, hidden_by = decided.hidden_by
    FROM {_DECIDED}
    WHERE t.user_id = %(user_id)s AND t.id = decided.id
      AND (t.enabled, t.enabled_by, t.hidden_by)
          IS DISTINCT FROM (decided.enabled, decided.enabled_by, decided.hidden_by)
"""

_WRITE_ROWS = f"""
    UPDATE mcp_tool_embeddings v
    SET enabled = decided.visible, tags = decided.tags,
        projects = decided.projects, project_tags = decided.project_tags
    FROM {_DECIDED}
    WHERE v.user_id = %(user_id)s AND v.tool_id = decided.id
      AND (v.enabled, v.tags, v.projects, v.project_tags)
          IS DISTINCT FROM (decided.visible, decided.tags, decided.projects, decided.project_tags)
"""

_NESTED_LOOPS = "SELECT set_config('enable_nestloop', %(allowed)s, true)"

_ADOPT = "UPDATE policy SET hold_changed = %(hold_changed)s, find_failing = %(find_failing)s"

_DECIDED_OTHERWISE = f"""
    SELECT DISTINCT t.user_id, t.server_id FROM mcp_tools t, policy
    WHERE t.vanished_at IS NULL AND (t.state = 'changed' OR t.hidden_by IN ('changed', 'status'))
      AND (t.hidden_by = 'changed' AND NOT policy.hold_changed
           OR t.hidden_by = 'status' AND policy.find_failing
           OR t.state = 'changed' AND t.hidden_by IS NULL AND policy.hold_changed)
    UNION
    SELECT s.user_id, s.id FROM mcp_servers s, policy
    WHERE {_FAILING} AND NOT policy.find_failing AND EXISTS (
        SELECT FROM mcp_tools t
        WHERE t.user_id = s.user_id AND t.server_id = s.id AND t.hidden_by IS NULL AND t.vanished_at IS NULL)
"""


CacheKey = tuple[str, str | None]
"""A user, and one of the user's projects or none."""


@dataclass(frozen=True)
class Scope:
    """A user's visible tools, narrowed further by a project or a request. Narrowing never widens."""

    user_id: str
    model: str
    server_ids: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    project_id: str | None = None

    @property
    def narrowed(self) -> bool:
        """By this request alone, so that there is no sense in remembering what it saw."""
        return self.server_ids is not None or self.tags is not None

    @property
    def place(self) -> CacheKey:
        """What of it stays the same from request to request."""
        return self.user_id, self.project_id

    def parameters(self) -> dict[str, Any]:
        return {
            "user_id": self.user_id,
            "model": self.model,
            "project_id": self.project_id,
            "project": None if self.project_id is None else project_number(self.project_id),
            "server_ids": None if self.server_ids is None else list(self.server_ids),
            "tags": None if self.tags is None else list(self.tags),
        }


@dataclass(frozen=True)
class ServerLock:
    name: str
    config_version: int


async def lock_server(session: Session, user_id: str, server_id: str) -> ServerLock | None:
    """None where the server has gone. Whoever changes what is visible of a server holds this lock first, so
    that a decision is never made beside another that has not been committed yet.

    The user before the server: whoever changes the rules, or deletes the user, waits for all who hold a server, and
    they for him.
    """
    await session.execute(select(users.c.id).where(users.c.id == user_id).with_for_update(read=True, key_share=True))
    this = mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id
    columns = mcp_servers.c.name, mcp_servers.c.config_version
    row = (await session.execute(select(*columns).where(*this).with_for_update(key_share=True))).one_or_none()
    return None if row is None else ServerLock(*row)


async def lock_user(session: Session, user_id: str) -> None:
    """Before a change of what decides over all of a user's servers: the rules, the projects."""
    locked = await session.execute(select(users.c.id).where(users.c.id == user_id).with_for_update())
    if locked.one_or_none() is None:
        raise NotFound("there is no such user")


async def read_facts(session: Session, user_id: str, server_id: str | None = None) -> list[ToolFacts]:
    """Of all that the user's servers offer, or that one of them does."""
    return [ToolFacts(*row) for row in await session.rows(_FACTS, {"user_id": user_id, "server_id": server_id})]


async def read_policy(session: Session) -> Policy:
    [row] = await session.rows("SELECT hold_changed, find_failing FROM policy")
    return Policy(*row)


async def apply_policy(database: Database, policy: Policy) -> None:
    """When a service starts: from now on all who decide go by it, here and elsewhere."""
    async with database.system_transaction() as session:
        await session.rows(_ADOPT, {"hold_changed": policy.hold_changed, "find_failing": policy.find_failing})
    await recompute_stale(database)


async def recompute_stale(database: Database) -> None:
    """What was decided under another policy is decided again. Now and then, too: whoever was deciding while the policy
    changed may have written later than whoever changed it looked."""
    async with database.system_transaction() as session:
        otherwise = await session.rows(_DECIDED_OTHERWISE)
    for user_id, server_id in otherwise:
        try:
            async with database.transaction(user_id) as session:
                if await lock_server(session, user_id, server_id) is not None:
                    await recompute_visibility(session, user_id, server_id)
        except ToolscoutError:  # one user's trouble must not keep the others', or the service, waiting
            logger.exception("tools could not be decided about again", extra={"server_id": server_id})


async def load_evaluator(
    session: Session, user_id: str, instead: Mapping[str, Sequence[Rule]] | None = None
) -> PolicyEvaluator:
    """`instead`: rules to be judged by in place of stored ones, by project."""
    policy = await read_policy(session)
    rules = {**await all_rules(session, user_id), **(instead or {})}
    projects = await all_projects(session, user_id)

    def made() -> PolicyEvaluator:
        books = [(project, RuleSet(rules.get(project.id, ()))) for project in projects]
        return PolicyEvaluator(policy, RuleSet(rules.get(USER_RULES, ())), books)

    # compiling a hundred rules takes a while, as judging ten thousand tools does: not on the event loop
    return await asyncio.to_thread(made)


async def evaluate_tools(session: Session, user_id: str, server_id: str | None = None) -> dict[str, VisibilityDecision]:
    """By tool. Whoever asks in order to write holds the server's lock, or the user's where no server is named."""
    facts = await read_facts(session, user_id, server_id)
    judge = await load_evaluator(session, user_id)
    return await asyncio.to_thread(lambda: {each.tool_id: judge.judge(each) for each in facts})


async def write_decisions(session: Session, user_id: str, decided: Mapping[str, VisibilityDecision]) -> None:
    """Only where they differ from what is stored."""
    rows = [{"id": tool_id, **verdict.stored()} for tool_id, verdict in decided.items()]
    parameters = {"user_id": user_id, "decided": orjson.dumps(rows).decode()}
    # the planner takes ten thousand rows of a user for one: by nested loops they would be a hundred million
    await session.rows(_NESTED_LOOPS, {"allowed": "off"})
    await session.rows(_WRITE_TOOLS, parameters)
    await session.rows(_WRITE_ROWS, parameters)
    await session.rows(_NESTED_LOOPS, {"allowed": "on"})


async def recompute_visibility(session: Session, user_id: str, server_id: str | None = None) -> None:
    """After a change of whatever decides; of all servers unless one is named."""
    await write_decisions(session, user_id, await evaluate_tools(session, user_id, server_id))
    await bump_catalog(session, user_id)


async def bump_catalog(session: Session, user_id: str) -> None:
    """What any process remembers of the user's catalogue ends with this transaction's commit."""
    statement = update(users).where(users.c.id == user_id).values(catalog_version=_NEXT_VERSION)
    if (await session.execute(statement)).rowcount == 0:
        raise NotFound("there is no such user")  # deleted since the caller was recognised


async def bump_every_catalog(session: Session) -> None:
    """After a change that all users see; needs the system's scope."""
    await session.execute(update(users).values(catalog_version=_NEXT_VERSION))

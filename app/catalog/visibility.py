"""Which tools are visible: decided in one place, stored once, read through one filter.

`policy.PolicyEvaluator` decides, and the decision is stored in the tool's search row. Search, fallback, listing and
execution all read that row through `VISIBLE`, so that only tools that can be found can be run.

The tenant predicate in each query is the first barrier between users. Row-level security, which uses the transaction's
user id, is the second. Each suffices alone.

Locks: a transaction that changes what is visible locks the user first and the server second, never the other way round.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson
from sqlalchemy import select

from app.auth.users import User, raise_version
from app.catalog.own_texts import IS_READ_ONLY
from app.catalog.projects import list_all_projects, project_number
from app.catalog.rules import Rule, RuleSet, list_rules_by_project
from app.catalog.visibility_policy import Policy, PolicyEvaluator, ToolFacts, VisibilityDecision
from app.db.engine import Database, Session, Versions
from app.db.tables import USER_RULES, mcp_servers, users
from app.errors import NodeDown, NotFound, ToolscoutError

logger = logging.getLogger("toolscout.catalog")

VISIBLE = """
    v.user_id = %(user_id)s
    AND v.model = %(model)s
    AND v.enabled
    AND (%(project)s::bigint IS NULL OR %(project)s::bigint = ANY(v.projects))
    AND (%(server_ids)s::text[] IS NULL OR v.server_id = ANY(%(server_ids)s::text[]))
    AND (%(tags)s::text[] IS NULL OR v.tags && %(tags)s::text[]
         OR (%(project_id)s::text IS NOT NULL AND v.project_tags -> %(project_id)s::text ?| %(tags)s::text[]))
    AND (%(category_ids)s::text[] IS NULL OR v.tool_id IN (
         SELECT m.tool_id FROM tool_category_members m
         WHERE m.user_id = %(user_id)s AND m.category_id = ANY(%(category_ids)s::text[])))
"""
"""A condition on `mcp_tool_embeddings v`."""

TAGS = """
    CASE WHEN %(project_id)s::text IS NULL OR NOT v.project_tags ? %(project_id)s::text THEN v.tags
         ELSE v.tags || ARRAY(SELECT jsonb_array_elements_text(v.project_tags -> %(project_id)s::text)) END
"""
"""The tags of `v` in the scope, those of its project included."""

# a rejected empty listing is no failure of the server: its stored tools stay usable; nor is a server that wants its
# user to sign in: its tools are found and marked
FAILING = "s.last_error IS NOT NULL AND coalesce(s.last_cause, '') NOT IN ('empty_listing', 'authorization_required')"

_FACTS = f"""
    SELECT t.id, t.name, s.id, s.name, s.enabled, {FAILING},
           s.tool_permissions, s.tags, t.tags, t.switched, t.state,
           {IS_READ_ONLY}
    FROM mcp_tools t JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
    WHERE t.user_id = %(user_id)s AND t.vanished_at IS NULL
      AND (%(server_id)s::text IS NULL OR t.server_id = %(server_id)s::text)
"""

_DECISIONS = """
    jsonb_to_recordset(%(decisions)s::jsonb) AS decision (
        id text, enabled boolean, enabled_by text, hidden_by text,
        visible boolean, tags text[], projects bigint[], project_tags jsonb)
"""

_WRITE_TOOLS = f"""
    UPDATE mcp_tools t
    SET enabled = decision.enabled, enabled_by = decision.enabled_by, hidden_by = decision.hidden_by
    FROM {_DECISIONS}
    WHERE t.user_id = %(user_id)s AND t.id = decision.id
      AND (t.enabled, t.enabled_by, t.hidden_by)
          IS DISTINCT FROM (decision.enabled, decision.enabled_by, decision.hidden_by)
"""

_WRITE_SEARCH_ROWS = f"""
    UPDATE mcp_tool_embeddings v
    SET enabled = decision.visible, tags = decision.tags,
        projects = decision.projects, project_tags = decision.project_tags
    FROM {_DECISIONS}
    WHERE v.user_id = %(user_id)s AND v.tool_id = decision.id
      AND (v.enabled, v.tags, v.projects, v.project_tags)
          IS DISTINCT FROM (decision.visible, decision.tags, decision.projects, decision.project_tags)
"""

# Unlike `set_config`, which Citus does not pass on.
_SET_NESTED_LOOPS = "SET LOCAL enable_nestloop = {}"

_STORE_POLICY = """
    UPDATE policy SET hold_changed = %(hold_changed)s, find_failing = %(find_failing)s, hold_new = %(hold_new)s
"""

_STALE_SERVERS = f"""
    SELECT DISTINCT t.user_id, t.server_id FROM mcp_tools t, policy
    WHERE t.vanished_at IS NULL AND (t.state <> 'approved' OR t.hidden_by IN ('changed', 'new', 'status'))
      AND (t.hidden_by = 'changed' AND NOT policy.hold_changed
           OR t.hidden_by = 'new' AND NOT policy.hold_new
           OR t.hidden_by = 'status' AND policy.find_failing
           OR t.state = 'changed' AND t.hidden_by IS NULL AND policy.hold_changed
           OR t.state = 'new' AND t.hidden_by IS NULL AND policy.hold_new)
    UNION
    SELECT s.user_id, s.id FROM mcp_servers s, policy
    WHERE {FAILING} AND NOT policy.find_failing AND EXISTS (
        SELECT 1 FROM mcp_tools t
        WHERE t.user_id = s.user_id AND t.server_id = s.id AND t.hidden_by IS NULL AND t.vanished_at IS NULL)
"""


CacheKey = tuple[str, str | None]
"""A user's id, and the id of one of the user's projects or None."""


@dataclass(frozen=True)
class Scope:
    """A user's visible tools, narrowed by a project or by the filters of a request."""

    user_id: str
    model: str
    server_ids: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    project_id: str | None = None
    category_ids: Sequence[str] | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether the request filters by servers, tags or categories, so that caching would be of no use."""
        return self.server_ids is not None or self.tags is not None or self.category_ids is not None

    @property
    def cache_key(self) -> CacheKey:
        """The part of the scope that is the same from request to request."""
        return self.user_id, self.project_id

    def without_filters(self) -> "Scope":
        return replace(self, server_ids=None, tags=None, category_ids=None)

    def get_versions(self, user: User) -> Versions | None:
        """Return what a read of this scope must see, as the user was when the request was authenticated.

        None if the versions do not tell: which tools are in a category changes without them.
        """
        if self.category_ids is not None:
            return None
        return Versions(user.catalog_version, user.examples_version, self.model)

    def parameters(self) -> dict[str, Any]:
        return {
            "user_id": self.user_id,
            "model": self.model,
            "project_id": self.project_id,
            "project": None if self.project_id is None else project_number(self.project_id),
            "server_ids": None if self.server_ids is None else list(self.server_ids),
            "tags": None if self.tags is None else list(self.tags),
            "category_ids": None if self.category_ids is None else list(self.category_ids),
        }


@dataclass(frozen=True)
class ServerLock:
    name: str
    config_version: int


async def lock_server(session: Session, user_id: str, server_id: str) -> ServerLock | None:
    """Lock a server before changing what is visible of it. Return None if it does not exist.

    The lock keeps two transactions from deciding about the same tools at once, each without seeing the other's change.
    The user is share-locked first: `lock_user` and the deletion of the user wait for all holders of a server's lock,
    and these wait for them.
    """
    await session.execute(select(users.c.id).where(users.c.id == user_id).with_for_update(read=True, key_share=True))
    server = mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id
    columns = mcp_servers.c.name, mcp_servers.c.config_version
    row = (await session.execute(select(*columns).where(*server).with_for_update(key_share=True))).one_or_none()
    return None if row is None else ServerLock(*row)


async def lock_user(session: Session, user_id: str) -> None:
    """Lock a user before a change that affects all of the user's servers: of rules or projects."""
    locked = await session.execute(select(users.c.id).where(users.c.id == user_id).with_for_update())
    if locked.one_or_none() is None:
        raise NotFound("there is no such user")


async def read_facts(session: Session, user_id: str, server_id: str | None = None) -> list[ToolFacts]:
    """Read what decisions depend on, for all tools of the user or for those of one server."""
    return [ToolFacts(*row) for row in await session.rows(_FACTS, {"user_id": user_id, "server_id": server_id})]


async def read_policy(session: Session) -> Policy:
    [row] = await session.rows("SELECT hold_changed, find_failing, hold_new FROM policy")
    return Policy(*row)


async def apply_policy(database: Database, policy: Policy) -> None:
    """Store the policy when a service starts, so that all processes use it, and recompute what it changes.

    While a node of a distributed database is away, a policy that differs cannot be stored, and raises an error. The
    visibility is recomputed later.
    """
    async with database.system_transaction() as session:
        if await read_policy(session) != policy:
            await session.rows(_STORE_POLICY, asdict(policy))
    try:
        await recompute_stale(database)
    except NodeDown as error:
        logger.warning("the visibility of tools is recomputed later", extra={"error": error.message})


async def recompute_stale(database: Database) -> None:
    """Recompute the visibility of tools that was decided under another policy.

    Also run periodically: a transaction that began before a change of the policy may commit after `apply_policy` has
    looked for stale decisions.
    """
    async with database.system_transaction() as session:
        stale = await session.rows(_STALE_SERVERS)
    for user_id, server_id in stale:
        try:
            async with database.transaction(user_id) as session:
                if await lock_server(session, user_id, server_id) is not None:
                    await recompute_visibility(session, user_id, server_id)
        except ToolscoutError:  # an error with one server must stop neither the others nor the start of the service
            logger.exception("failed to recompute visibility", extra={"server_id": server_id})


async def load_evaluator(
    session: Session, user_id: str, rule_overrides: Mapping[str, Sequence[Rule]] | None = None
) -> PolicyEvaluator:
    """Load a user's rules and projects. `rule_overrides` replace stored rules, by project, for a preview."""
    policy = await read_policy(session)
    rules = {**await list_rules_by_project(session, user_id), **(rule_overrides or {})}
    projects = await list_all_projects(session, user_id)

    def compile_rules() -> PolicyEvaluator:
        by_project = [(project, RuleSet(rules.get(project.id, ()))) for project in projects]
        return PolicyEvaluator(policy, RuleSet(rules.get(USER_RULES, ())), by_project)

    # compiling a hundred rules takes a while: off the event loop
    return await asyncio.to_thread(compile_rules)


async def evaluate_tools(
    session: Session, user_id: str, server_id: str | None = None, facts: Sequence[ToolFacts] | None = None
) -> dict[str, VisibilityDecision]:
    """Return a decision for each tool, by id. `facts` are those of `read_facts`, if the caller has read them already.

    To write the decisions, the caller must hold the lock of the server, or of the user if no server is named.
    """
    known = await read_facts(session, user_id, server_id) if facts is None else facts
    evaluator = await load_evaluator(session, user_id)
    # ten thousand tools take a while: off the event loop
    return await asyncio.to_thread(lambda: {tool.tool_id: evaluator.evaluate(tool) for tool in known})


async def write_decisions(session: Session, user_id: str, decisions: Mapping[str, VisibilityDecision]) -> None:
    """Store decisions, by tool id, where they differ from the stored ones."""

    def serialize() -> str:
        return orjson.dumps([{"id": tool_id, **decision.to_row()} for tool_id, decision in decisions.items()]).decode()

    parameters = {"user_id": user_id, "decisions": await asyncio.to_thread(serialize)}
    # The planner expects one row where a user has ten thousand, and with nested loops would compare 100 million pairs.
    await session.rows(_SET_NESTED_LOOPS.format("off"))
    await session.rows(_WRITE_TOOLS, parameters)
    await session.rows(_WRITE_SEARCH_ROWS, parameters)
    await session.rows(_SET_NESTED_LOOPS.format("on"))


async def recompute_visibility(
    session: Session, user_id: str, server_id: str | None = None, facts: Sequence[ToolFacts] | None = None
) -> None:
    """Decide again about all tools of the user, or of one server, after a change of what decisions depend on."""
    await write_decisions(session, user_id, await evaluate_tools(session, user_id, server_id, facts))
    await bump_catalog(session, user_id)


async def bump_catalog(session: Session, user_id: str) -> None:
    """Give the user's catalogue a new version: with the commit, everything cached of it in any process is invalid."""
    if not await raise_version(session, user_id, "catalog_version"):
        raise NotFound("there is no such user")  # deleted since the caller was authenticated

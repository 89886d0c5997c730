"""A tool can be found exactly when it can be run, and no user ever sees another user's tools.

Hypothesis generates sequences of everything that affects visibility; the product's own use cases execute them as the
app role. After each step, every way to a tool is compared with a model of the design, `Person.visible_tools`, which is
independent of the product's `PolicyEvaluator`: each kind of search, the fallback when search fails, the list, the tags,
and the look-up of a tool to run.
"""

import asyncio
import copy
import gc
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import psycopg
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.auth.users import insert_user
from app.catalog import servers, tools
from app.catalog.definitions import list_visible_definitions, read_definitions
from app.catalog.rules import Rule
from app.catalog.servers import NewServer
from app.catalog.visibility import Scope, apply_policy
from app.catalog.visibility_policy import Policy
from app.container import Container, open_container
from app.db.engine import Session
from app.db.pagination import PageRequest
from app.db.scope import APP_ROLE
from app.embeddings.base import QueryTicket, Vectors, check_vectors
from app.embeddings.loaded_models import LoadedModel
from app.errors import NotFound, ServerUnreachable, ToolNotFound
from app.execution.execute import execute
from app.execution.models import ExecutionRequest
from app.indexing import queue
from app.indexing.plan import tool_id
from app.indexing.reindex import Indexer, reindex_server
from app.local_postgres.postgres import EmbeddedPostgres
from app.management import projects as manage_projects
from app.management.rules import replace_rules
from app.management.servers import delete_server, register_server
from app.search.query import parse_query
from app.search.scoring import ScoringParams, Strategy
from tests.support.embedding_server import embed, running_embedding_server
from tests.support.factories import make_database, make_settings, resolve_nothing

pytestmark = pytest.mark.no_retry

SEQUENCES = int(os.environ.get("PROOF_SEQUENCES", "60"))
STEPS = 5
"""The first step chooses which view is checked first; then four actions, from a state with much going on."""

ACTOR = "proof"
LEASE_S = 60.0
ANN_ABOVE = 20_000
MAX_RESULTS = 50
STRICT = Policy(hold_changed=True, find_failing=False)

T = TypeVar("T")
Tags = frozenset[str]


class Definition(NamedTuple):
    """The parts of a tool that may change between listings."""

    wording: str
    only_reads: bool


Listing = dict[str, Definition]


@dataclass
class ToolState:
    """The state of a tool, also while its server does not list it."""

    definition: Definition
    approved: Definition
    is_listed: bool = True
    switch: bool | None = None
    tags: Tags = frozenset()


@dataclass
class Server:
    id: str
    name: str
    enabled: bool
    permissions: dict[str, bool]
    tags: Tags
    failing: bool = False
    tools: dict[str, ToolState] = field(default_factory=dict)

    def apply_listing(self, listing: Mapping[str, Definition]) -> None:
        for name, known in self.tools.items():
            known.is_listed = name in listing
        for name, definition in listing.items():
            self.tools.setdefault(name, ToolState(definition, definition)).definition = definition

    @property
    def listed_tools(self) -> dict[str, ToolState]:
        return {name: known for name, known in self.tools.items() if known.is_listed}


@dataclass
class Project:
    id: str
    members: set[str] | None
    """None: all servers."""
    rules: Sequence[Rule]
    read_only: bool


@dataclass
class Person:
    id: str
    rules: Sequence[Rule] = ()
    servers: dict[str, Server] = field(default_factory=dict)
    projects: dict[str, Project] = field(default_factory=dict)

    @property
    def server_names(self) -> set[str]:
        return {server.name for server in self.servers.values()}

    def server_ids_at(self, positions: set[int] | None) -> set[str] | None:
        return None if positions is None else {key for number, key in enumerate(self.servers) if number in positions}

    def tools(self) -> list["ListedTool"]:
        return [ListedTool(server, *each) for server in self.servers.values() for each in server.listed_tools.items()]

    def changed_tools(self) -> list["ListedTool"]:
        return [tool for tool in self.tools() if tool.known.definition != tool.known.approved]

    def visible_tools_within(self, policy: Policy, project_id: str | None) -> dict[str, Tags]:
        """Return nothing for a project of another user."""
        if project_id is None:
            return self.visible_tools(policy, None)
        return self.visible_tools(policy, self.projects[project_id]) if project_id in self.projects else {}

    def visible_tools(self, policy: Policy, project: Project | None) -> dict[str, Tags]:
        """Return the tags of all visible tools, by tool key."""
        return {
            tool.key: self._tags(tool.server, tool.name, tool.known, project)
            for tool in self.tools()
            if self._is_visible(policy, tool.server, tool.name, tool.known)
            and (project is None or _is_in_project(project, tool.server, tool.name, tool.known))
        }

    def _is_visible(self, policy: Policy, server: Server, name: str, known: ToolState) -> bool:
        permitted = server.permissions.get(name, server.permissions.get("*", True))
        held = policy.hold_changed and known.definition != known.approved
        failing = server.failing and not policy.find_failing
        ruled = evaluate_rules(self.rules, server.name, name)
        switch = known.switch if known.switch is not None else ruled is not False
        return server.enabled and permitted and switch and not held and not failing

    def _tags(self, server: Server, name: str, known: ToolState, project: Project | None) -> Tags:
        rules = [*self.rules, *(project.rules if project else ())]
        added = {tag for each in rules if matches(each, server.name, name) for tag in each.tags}
        return known.tags | server.tags | added


class ListedTool(NamedTuple):
    server: Server
    name: str
    known: ToolState

    @property
    def key(self) -> str:
        return tool_id(self.server.id, self.name)


def _is_in_project(project: Project, server: Server, name: str, known: ToolState) -> bool:
    member = project.members is None or server.id in project.members
    harmless = known.definition.only_reads or not project.read_only
    return member and harmless and evaluate_rules(project.rules, server.name, name) is not False


def evaluate_rules(rules: Sequence[Rule], server: str, tool: str) -> bool | None:
    """The first matching rule that sets `enabled` decides. If any rule enables tools, all others are disabled."""
    for each in rules:
        if each.enabled is not None and matches(each, server, tool):
            return each.enabled
    return False if any(each.enabled for each in rules) else None


def matches(each: Rule, server: str, tool: str) -> bool:
    if each.server not in (None, server):
        return False
    positive = [pattern for pattern in each.pattern if not pattern.startswith("!")]
    negated = [pattern.removeprefix("!") for pattern in each.pattern if pattern.startswith("!")]
    return any(PATTERNS[p](tool) for p in positive) and not any(PATTERNS[p](tool) for p in negated)


PATTERNS: dict[str, Callable[[str], bool]] = {
    "*": lambda _: True,
    "read_*": lambda name: name.startswith("read_"),
    "*_file": lambda name: name.endswith("_file"),
    "list_al?": lambda name: name == "list_all",
    "/^(send|write)_/": lambda name: name.startswith(("send_", "write_")),
    "/MAIL/i": lambda name: "mail" in name,
}
TOOLS = "read_file", "write_file", "read_mail", "send_mail", "list_all"
SERVERS = "alpha", "beta", "gamma"
TAGS = "red", "blue", "green"
QUERY = "any thing"
"""Every tool's description contains one of its words, so that lexical search finds all tools as well."""

people = st.sampled_from([0, 0, 0, 1])
indexes = st.integers(0, 29)
"""An index into a collection of any size, see `pick`."""
mostly_true = st.sampled_from([True, True, True, False])
tags = st.sampled_from([Tags(), *(Tags({tag}) for tag in TAGS), Tags(TAGS[:2])])
permissions = st.sampled_from(
    [{}, {"*": False}, {"*": False, "read_file": True}, {"read_file": False}, {"*": True, "list_all": False}]
)
switches = st.sampled_from([True, False, None])
definitions = st.builds(Definition, st.sampled_from(["old", "new"]), st.booleans())
listings = st.fixed_dictionaries({}, optional=dict.fromkeys(TOOLS, definitions))
pattern_lists = st.builds(
    lambda first, rest: [first, *rest],
    st.sampled_from([*PATTERNS]),
    st.lists(st.sampled_from([f"{sign}{each}" for each in PATTERNS for sign in ("", "!") if each != "*"]), max_size=1),
)
rules = st.lists(
    st.builds(
        Rule, pattern_lists, server=st.sampled_from([None, None, *SERVERS]), enabled=switches, tags=tags.map(sorted)
    ),
    max_size=2,
)
memberships = st.one_of(st.none(), st.sets(st.integers(0, 2)))
server_changes = st.one_of(
    st.fixed_dictionaries({"enabled": st.booleans()}),
    st.fixed_dictionaries({"tags": tags}),
    st.fixed_dictionaries({"tool_permissions": permissions}),
    st.fixed_dictionaries({"name": st.sampled_from(SERVERS)}),
)
project_changes = st.one_of(
    st.fixed_dictionaries({"members": memberships}),
    st.fixed_dictionaries({"read_only": st.booleans()}),
    st.fixed_dictionaries({"rules": rules}),
)
policies = st.builds(Policy, hold_changed=st.booleans(), find_failing=st.booleans())


class InstantEmbedder:
    """Computes the fake endpoint's vectors in this process. `meanwhile` is called once, in the middle of a run."""

    batch_size = 64
    is_local = False

    def __init__(self, model: str) -> None:
        self.model = model
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def load(self) -> None: ...

    def expect_dimension(self, dimension: int) -> None: ...

    async def embed_documents(self, texts: Sequence[str], _user_id: str = "") -> Vectors:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return check_vectors(np.array([embed(text) for text in texts], np.float32), count=len(texts), dimension=None)

    async def embed_queries(self, texts: Sequence[str], _ticket: QueryTicket | None = None) -> Vectors:
        return await self.embed_documents(texts)

    async def aclose(self) -> None: ...


class InlineExecutor(ThreadPoolExecutor):
    """Runs everything in the calling thread: the work of a step is less than the cost of a thread switch."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:  # noqa: BLE001 the caller gets every error
            done.set_exception(error)
        return done


_TABLES_WITH_RLS = "mcp_servers", "mcp_tools", "mcp_tool_embeddings", "projects", "tool_rules"
_SAVED_TABLES = "policy", "users", *_TABLES_WITH_RLS
_SAVE = "CREATE SCHEMA saved;" + ";".join(f"CREATE TABLE saved.{name} AS TABLE {name}" for name in _SAVED_TABLES)
_RESTORE = (
    "BEGIN; DELETE FROM users; DELETE FROM policy;"
    + ";".join(f"INSERT INTO {name} TABLE saved.{name}" for name in _SAVED_TABLES)
    + "; UPDATE users SET catalog_version = nextval('catalog_versions')"
    + f"; UPDATE policy SET hold_changed = {STRICT.hold_changed}, find_failing = {STRICT.find_failing}; COMMIT"
)


@dataclass(frozen=True)
class World:
    """The service, on its own event loop, since hypothesis runs outside of any.

    The owner's connection only restores the initial state.
    """

    loop: asyncio.AbstractEventLoop
    container: Container
    indexer: Indexer
    embedder: InstantEmbedder
    query_vectors: Vectors
    owner: psycopg.Connection[Any]
    initial_state: list[Person] = field(default_factory=list)

    def do(self, action: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(action)

    def restore(self) -> list[Person]:
        self.owner.execute(_RESTORE.encode())
        return copy.deepcopy(self.initial_state)


class Story:
    """Executes actions through the product and applies them to the model."""

    def __init__(self, world: World, people: list[Person]) -> None:
        self.world = world
        self.people = people
        self.policy = STRICT
        self.touched: list[Person] = []
        self.deleted_keys: list[str] = []
        self.deleted_projects: list[str] = []

    def all_tool_keys(self) -> list[str]:
        """Return the keys of all tools of all users, deleted ones included."""
        every = (server for person in self.people for server in person.servers.values())
        return [*(tool_id(server.id, name) for server in every for name in server.tools), *self.deleted_keys]

    async def run_as(self, person: Person, action: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        self.touched = [person]
        async with self.world.container.database.transaction(person.id) as session:
            return await action(session, *arguments)

    async def manage(self, person: Person, use_case: Callable[..., Awaitable[T]], *arguments: Any, **options: Any) -> T:
        """A use case opens its own transaction."""
        self.touched = [person]
        return await use_case(self.world.container.database, *arguments, actor=ACTOR, **options)

    async def delete_server(self, person: Person, server_id: str) -> None:
        mcp_pool = self.world.container.mcp_pool
        await self.manage(person, delete_server, mcp_pool, person.id, server_id, ann_above=ANN_ABOVE)

    async def delete_project(self, person: Person, project_id: str) -> None:
        await self.manage(person, manage_projects.delete_project, person.id, project_id)

    async def add_server(
        self, person: Person, name: str, listing: Listing, tags: Tags, permissions: dict[str, bool], *, enabled: bool
    ) -> Server:
        new_server = NewServer(name, "push", tags=sorted(tags), enabled=enabled, tool_permissions=permissions)
        container = self.world.container
        services = container.mcp_pool, container.sealer, container.worker
        made, _ = await self.manage(person, register_server, *services, person.id, new_server, container.quotas)
        server = Server(made.id, name, enabled, permissions, tags)
        person.servers[server.id] = server
        await self.push(person, server, listing)
        return server

    async def push(self, person: Person, server: Server, listing: Listing, *, force: bool = False) -> None:
        body = orjson.dumps({"tools": [_as_mcp(name, definition) for name, definition in listing.items()]})
        refused = bool(server.listed_tools) and not listing and not force
        assert await self.index(person, server, body, force=force) == ("failed" if refused else "succeeded")
        server.failing = False
        if not refused:
            server.apply_listing(listing)

    async def index(
        self, person: Person, server: Server, body: bytes | None, *, fetch: bool = True, force: bool = False
    ) -> str:
        """Queue, claim and process a run, as a worker does."""
        database = self.world.container.database
        async with database.transaction(person.id) as session:
            run = await queue.enqueue(session, person.id, server.id, body, fetch_from_server=fetch, force=force)
        async with database.system_transaction() as session:
            claimed = await queue.claim_run(session, LEASE_S, run.id)
        assert claimed is not None
        self.touched = [person]
        return await reindex_server(self.world.indexer, claimed)

    async def reindex(self, person: Person, server: Server, *, force: bool) -> None:
        assert await self.index(person, server, None, force=force) == "succeeded"
        server.failing = False

    async def change_server(self, person: Person, server: Server, change: Mapping[str, Any]) -> None:
        """Change the server. A new name becomes searchable with the run that follows."""
        values = {name: sorted(value) if name == "tags" else value for name, value in change.items()}
        await self.run_as(person, servers.update_server, self.world.container.sealer, person.id, server.id, values)
        if "name" in change:
            lists: list[Person | Project] = [person, *person.projects.values()]
            for owner in lists:
                owner.rules = [_rename_server(each, server.name, change["name"]) for each in owner.rules]
        for name, value in change.items():
            setattr(server, {"tool_permissions": "permissions"}.get(name, name), value)

    async def record_contact(self, person: Person, server: Server, *, well: bool) -> None:
        if well:
            await self.run_as(person, servers.record_contact, person.id, server.id)
        else:
            await self.run_as(person, servers.record_failure, person.id, server.id, "timeout", "connection timed out")
        server.failing = not well

    async def remove_server(self, person: Person, server: Server) -> None:
        await self.delete_server(person, server.id)
        del person.servers[server.id]
        self.deleted_keys += [tool_id(server.id, name) for name in server.tools]
        for project in person.projects.values():
            if project.members is not None:
                project.members.discard(server.id)

    async def switch(self, person: Person, tool: ListedTool, switch: bool | None) -> None:
        await self.run_as(person, tools.update_tool, person.id, tool.key, {"enabled": switch})
        tool.known.switch = switch

    async def tag(self, person: Person, tool: ListedTool, tags: Tags) -> None:
        await self.run_as(person, tools.update_tool, person.id, tool.key, {"tags": sorted(tags)})
        tool.known.tags = tags

    async def approve(self, person: Person, tool: ListedTool) -> None:
        await self.run_as(person, tools.approve_tool, person.id, tool.key)
        tool.known.approved = tool.known.definition

    async def set_rules(self, person: Person, rules: Sequence[Rule]) -> None:
        container = self.world.container
        await self.manage(person, replace_rules, container.worker, person.id, rules, container.quotas)
        person.rules = rules

    async def add_project(self, person: Person, members: set[str] | None, rules: Sequence[Rule], **also: Any) -> None:
        name = f"project {len(person.projects) + len(self.deleted_projects)}"
        values = {"name": name, "server_ids": None if members is None else sorted(members), **also}
        quotas = self.world.container.quotas
        made = await self.manage(
            person, manage_projects.create_project, person.id, values, rules, quotas, has_cloud=False
        )
        person.projects[made.id] = Project(made.id, members, rules, **also)

    async def change_project(self, person: Person, project: Project, change: Mapping[str, Any]) -> None:
        values = dict(change)
        rules = values.pop("rules", None)
        if "members" in values:
            members = values.pop("members")
            values["server_ids"] = None if members is None else sorted(members)
        quotas = self.world.container.quotas
        await self.manage(
            person, manage_projects.change_project, person.id, project.id, values, rules, quotas, has_cloud=False
        )
        for name, value in change.items():
            setattr(project, name, value)

    async def remove_project(self, person: Person, project: Project) -> None:
        await self.delete_project(person, project.id)
        del person.projects[project.id]
        self.deleted_projects.append(project.id)

    async def start_with(self, policy: Policy) -> None:
        self.policy = policy
        await apply_policy(self.world.container.database, policy)
        self.touched = self.people


def _rename_server(each: Rule, old: str, new: str) -> Rule:
    """Rules for a server also apply after it has been renamed."""
    return replace(each, server=new) if each.server == old else each


async def create_initial_state(story: Story) -> None:
    """Create a state in which few steps have many effects.

    There are tools that are switched on and off, tagged, held, disabled by a rule, not permitted, and soft-deleted.
    """
    ada, ben = story.people
    await story.start_with(STRICT)
    for person in story.people:
        async with story.world.container.database.system_transaction() as session:
            await insert_user(session, person.id, None)
    reads, writes = Definition("old", only_reads=True), Definition("old", only_reads=False)
    listing = {"read_file": reads, "write_file": writes, "read_mail": reads, "send_mail": writes, "list_all": reads}
    alpha = await story.add_server(ada, "alpha", listing, frozenset({"red"}), {}, enabled=True)
    by_name = {tool.name: tool for tool in ada.tools()}
    await story.switch(ada, by_name["write_file"], switch=False)
    await story.tag(ada, by_name["write_file"], frozenset({"blue"}))
    await story.switch(ada, by_name["read_mail"], switch=True)
    await story.tag(ada, by_name["list_all"], frozenset({"green"}))
    del listing["write_file"]
    await story.push(ada, alpha, {**listing, "list_all": Definition("new", only_reads=True)})
    listing = {"read_file": reads, "write_file": writes, "send_mail": writes, "list_all": writes}
    beta = await story.add_server(ada, "beta", listing, frozenset(), {"list_all": False}, enabled=True)
    [file] = [tool for tool in ada.tools() if (tool.server, tool.name) == (beta, "read_file")]
    await story.switch(ada, file, switch=False)
    await story.set_rules(ada, [Rule(["/MAIL/i"], enabled=False, tags=["blue"]), Rule(["*"], "beta", tags=["green"])])
    narrowed = [Rule(["*_file", "/MAIL/i"], enabled=True), Rule(["read_*"], "alpha", tags=["red", "blue"])]
    await story.add_project(ada, {alpha.id, beta.id}, narrowed, read_only=False)
    await story.add_server(ben, "alpha", {"read_file": reads, "write_file": writes}, frozenset(), {}, enabled=True)


class Visibility(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.story = Story(world, world.restore())
        self.checks = 0
        self.unchecked = self.story.people

    @property
    def ada(self) -> Person:
        return self.story.people[0]

    @rule(who=people, which=indexes, tool=st.sampled_from(TOOLS), definition=st.one_of(st.none(), definitions))
    def add_change_or_remove_a_tool(self, who: int, which: int, tool: str, definition: Definition | None) -> None:
        person = self.story.people[who]
        if server := pick(person.servers, which):
            listing = {name: known.definition for name, known in server.listed_tools.items() if name != tool}
            changed = listing if definition is None else {**listing, tool: definition}
            self.world.do(self.story.push(person, server, changed))

    @rule(
        which=indexes,
        listing=listings,
        force=st.booleans(),
        decision=st.one_of(st.none(), rules, server_changes, switches),
    )
    def push_a_list(self, which: int, listing: Listing, force: bool, decision: Any) -> None:
        """With force, the tools are embedded again, and a decision may change meanwhile."""
        if server := pick(self.ada.servers, which):
            self.world.embedder.meanwhile = lambda: self._decide(server, which, decision)
            self.world.do(self.story.push(self.ada, server, listing, force=force))
            self.world.embedder.meanwhile = None

    async def _decide(self, server: Server, which: int, decision: Any) -> None:
        if isinstance(decision, list):
            await self.story.set_rules(self.ada, decision)
        elif isinstance(decision, dict) and decision.get("name") not in self.ada.server_names:
            await self.story.change_server(self.ada, server, decision)
        elif isinstance(decision, bool) and server.listed_tools:
            name = pick(list(server.listed_tools), which)
            await self.story.switch(self.ada, ListedTool(server, name, server.tools[name]), decision)

    @precondition(lambda self: len(self.ada.servers) < len(SERVERS))
    @rule(listing=listings, tags=tags, permissions=permissions, enabled=mostly_true)
    def add_a_server(self, listing: Listing, tags: Tags, permissions: dict[str, bool], enabled: bool) -> None:
        name = min(set(SERVERS) - self.ada.server_names)
        self.world.do(self.story.add_server(self.ada, name, listing, tags, permissions, enabled=enabled))

    @rule(who=people, which=indexes, change=server_changes)
    def change_a_server(self, who: int, which: int, change: dict[str, Any]) -> None:
        person = self.story.people[who]
        server = pick(person.servers, which)
        if server is None or change.get("name") in person.server_names:
            return
        self.world.do(self.story.change_server(person, server, change))
        if "name" in change:
            self.all_views_agree()
            assert self.world.do(self.story.index(person, server, None, fetch=False)) == "succeeded"

    @rule(
        which=indexes, well=st.booleans(), by_indexing=st.sampled_from([False, False, False, True]), force=st.booleans()
    )
    def contact_a_server(self, which: int, well: bool, by_indexing: bool, force: bool) -> None:
        if (server := pick(self.ada.servers, which)) is None:
            return
        if by_indexing:
            self.world.do(self.story.reindex(self.ada, server, force=force))
        else:
            self.world.do(self.story.record_contact(self.ada, server, well=well))

    @precondition(lambda self: self.ada.servers)
    @rule(which=indexes)
    def delete_a_server(self, which: int) -> None:
        self.world.do(self.story.remove_server(self.ada, pick(self.ada.servers, which)))

    @rule(who=people, which=indexes, switch=switches)
    def switch_a_tool(self, who: int, which: int, switch: bool | None) -> None:
        person = self.story.people[who]
        if tool := pick(person.tools(), which):
            self.world.do(self.story.switch(person, tool, switch))

    @rule(who=people, which=indexes, tags=tags)
    def tag_a_tool(self, who: int, which: int, tags: Tags) -> None:
        person = self.story.people[who]
        if tool := pick(person.tools(), which):
            self.world.do(self.story.tag(person, tool, tags))

    @precondition(lambda self: self.ada.changed_tools())
    @rule(which=indexes)
    def approve_a_tool(self, which: int) -> None:
        self.world.do(self.story.approve(self.ada, pick(self.ada.changed_tools(), which)))

    @rule(who=people, rules=rules)
    def set_rules(self, who: int, rules: list[Rule]) -> None:
        self.world.do(self.story.set_rules(self.story.people[who], rules))

    @precondition(lambda self: len(self.ada.projects) < 2)
    @rule(members=memberships, read_only=st.booleans(), rules=rules)
    def add_a_project(self, members: set[int] | None, read_only: bool, rules: list[Rule]) -> None:
        of_them = self.ada.server_ids_at(members)
        self.world.do(self.story.add_project(self.ada, of_them, rules, read_only=read_only))

    @precondition(lambda self: self.ada.projects)
    @rule(which=indexes, change=project_changes)
    def change_a_project(self, which: int, change: dict[str, Any]) -> None:
        meant = {**change, "members": self.ada.server_ids_at(change["members"])} if "members" in change else change
        self.world.do(self.story.change_project(self.ada, pick(self.ada.projects, which), meant))

    @precondition(lambda self: self.ada.projects)
    @rule(which=indexes)
    def delete_a_project(self, which: int) -> None:
        self.world.do(self.story.remove_project(self.ada, pick(self.ada.projects, which)))

    @rule(policy=policies)
    def restart_with_other_settings(self, policy: Policy) -> None:
        self.world.do(self.story.start_with(policy))

    @rule(who=people, which=indexes, within=indexes)
    def call_a_tool(self, who: int, which: int, within: int) -> None:
        """Call any tool as any user, also within a project of another user or a deleted one.

        Nothing is run: the servers are of type `push`.
        """
        person, key = self.story.people[who], pick(self.story.all_tool_keys(), which)
        theirs = {project_id for each in self.story.people for project_id in each.projects}
        project_id = pick([None, *sorted(theirs), *self.story.deleted_projects], within)
        is_visible = key in person.visible_tools_within(self.story.policy, project_id)
        scope = Scope(person.id, self.world.container.model.id, project_id=project_id)
        with pytest.raises(ServerUnreachable if is_visible else ToolNotFound) as refused:
            self.world.do(execute(self.world.container.executor, ExecutionRequest(scope, ACTOR, {}, tool_key=key)))
        assert getattr(refused.value, "cause", "push") == "push"

    @precondition(lambda self: self.ada.tools() and self.ada.projects)
    @rule(which=indexes, action=st.integers(0, 5))
    def change_what_belongs_to_another_user(self, which: int, action: int) -> None:
        story, (ada, ben) = self.story, self.story.people
        quotas = self.world.container.quotas
        server, tool, project = pick(ada.servers, which), pick(ada.tools(), which), pick(ada.projects, which)
        attempts: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: story.run_as(ben, tools.update_tool, ben.id, tool.key, {"enabled": False}),
            lambda: story.run_as(ben, tools.approve_tool, ben.id, tool.key),
            lambda: story.delete_server(ben, server.id),
            lambda: story.manage(
                ben, manage_projects.create_project, ben.id, {"server_ids": [server.id]}, [], quotas, has_cloud=False
            ),
            lambda: story.manage(
                ben,
                manage_projects.change_project,
                ben.id,
                project.id,
                {"read_only": True},
                [],
                quotas,
                has_cloud=False,
            ),
            lambda: story.delete_project(ben, project.id),
        ]
        with pytest.raises(NotFound):
            self.world.do(attempts[action]())
        story.touched = story.people

    @initialize(first=st.integers(0, 29))
    def choose_first_check(self, first: int) -> None:
        self.checks = first

    @invariant()
    def all_views_agree(self) -> None:
        """Check search and look-up within each project, and one of the other views in one of them."""
        touched, self.story.touched = self.story.touched, []
        self.unchecked = (
            [person for person in self.story.people if person not in touched] if touched else self.unchecked
        )
        for person in touched:
            self.world.do(self._check(person))

    def teardown(self) -> None:
        """Nothing has changed for users whom no action has touched."""
        for person in self.unchecked:
            self.world.do(self._check(person))

    async def _check(self, person: Person) -> None:
        container = self.world.container
        project_ids = [None, *person.projects]
        self.checks += 1
        async with container.database.snapshot(person.id) as session:
            for project_id in project_ids:
                scope = Scope(person.id, container.model.id, project_id=project_id)
                view = View(self, session, scope, person.visible_tools_within(self.story.policy, project_id))
                await view.check_search()
                await view.check_execution()
                if project_id == pick(project_ids, self.checks // len(OTHER_CHECKS)):
                    await pick(OTHER_CHECKS, self.checks)(view)


@dataclass(frozen=True)
class View:
    """What a user sees in a scope; `expected` has the tags by tool key."""

    machine: Visibility
    session: Session
    scope: Scope
    expected: dict[str, Tags]

    async def check_search(self) -> None:
        hits = await self._search(self.scope)
        assert hits == self.expected

    async def check_execution(self) -> None:
        """The look-up that `execute` uses."""
        definitions = await read_definitions(self.session, self.scope, self.machine.story.all_tool_keys(), core=False)
        assert definitions.tools.keys() == self.expected.keys()

    async def check_filtered_search(self) -> None:
        tag = pick(TAGS, self.machine.checks)
        tagged = {key: tags for key, tags in self.expected.items() if tag in tags}
        assert await self._search(replace(self.scope, tags=[tag])) == tagged

    async def check_fallback(self) -> None:
        everything = await list_visible_definitions(self.session, self.scope, MAX_RESULTS)
        assert {definition.tool_id for definition in everything.definitions} == self.expected.keys()
        assert everything.searched == len(self.expected)

    async def check_list(self) -> None:
        scope, visible = self.scope, tools.ToolFilter(visible=True, project_id=self.scope.project_id)
        page = await tools.list_tools(self.session, scope.user_id, scope.model, visible, PageRequest(MAX_RESULTS))
        assert {tool.id: frozenset(tool.tags) for tool in page.items} == self.expected

    async def check_tags(self) -> None:
        counted = await tools.list_tags(self.session, self.scope)
        assert dict(counted) == Counter(tag for tags in self.expected.values() for tag in tags)

    async def check_definition_cache(self) -> None:
        """The cache that discovery uses."""
        cache = self.machine.world.container.discoverer.definition_cache
        version = await self._version()
        for _ in range(2):
            cached = await cache.get_many(self.session, self.scope, version, list(self.expected), core=False)
            assert cached.tools.keys() == self.expected.keys()

    async def check_other_projects(self) -> None:
        """Projects of other users and deleted projects contain nothing."""
        story = self.machine.story
        theirs = [key for person in story.people if person.id != self.scope.user_id for key in person.projects]
        for project_id in (*theirs, *story.deleted_projects):
            scope = replace(self.scope, project_id=project_id)
            assert not (await read_definitions(self.session, scope, story.all_tool_keys(), core=False)).tools

    async def _search(self, scope: Scope) -> dict[str, Tags]:
        strategy: Strategy = pick(("hybrid", "semantic", "bm25"), self.machine.checks)
        world = self.machine.world
        vectors = None if strategy == "bm25" else list(world.query_vectors)
        params = ScoringParams(parse_query(QUERY), strategy, threshold=0.0, tags=TAGS)
        result = await world.container.searcher.hybrid_search.find(
            self.session, scope, params, vectors, limit=MAX_RESULTS
        )
        assert result.searched == len(result.hits)
        return {hit.tool_id: frozenset(hit.matched_tags) for hit in result.hits}

    async def _version(self) -> int:
        [(version,)] = await self.session.rows("SELECT catalog_version FROM users")
        return int(version)


Check = Callable[[View], Awaitable[None]]
OTHER_CHECKS: list[Check] = [
    View.check_list,
    View.check_filtered_search,
    View.check_fallback,
    View.check_tags,
    View.check_definition_cache,
    View.check_other_projects,
]


def pick(items: Any, index: int) -> Any:
    """Return an item, or None if there are none."""
    values = list(items.values()) if isinstance(items, dict) else items
    return values[index % len(values)] if values else None


def _as_mcp(name: str, definition: Definition) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"A thing in its {definition.wording} wording.",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": definition.only_reads},
    }


@pytest.fixture
def world(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    loop = uvloop.new_event_loop()
    loop.set_default_executor(InlineExecutor())
    closing = AsyncExitStack()
    url = make_database(postgres)
    # objects of other tests need not be traversed by every collection
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000)
    try:
        with running_embedding_server() as fake, psycopg.connect(url, autocommit=True) as owner:
            owner.execute(f"ALTER DATABASE {owner.info.dbname} SET synchronous_commit = off".encode())
            strict = {"hold_changed_tools": STRICT.hold_changed, "find_failing_servers": STRICT.find_failing}
            options = fake.settings(index_concurrency=0, database_pool_size=1, **strict)
            opening = open_container(make_settings(tmp_path_factory.mktemp("proof"), **options), url, resolve_nothing)
            container = loop.run_until_complete(closing.enter_async_context(opening))
            embedder = InstantEmbedder(container.model.id)
            query_vectors = loop.run_until_complete(embedder.embed_queries([QUERY]))
            opened = World(loop, container, _indexer(container, embedder), embedder, query_vectors, owner)
            story = Story(opened, [Person("ada"), Person("ben")])
            opened.do(create_initial_state(story))
            opened.initial_state.extend(story.people)
            owner.execute(_SAVE.encode())
            yield opened
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        loop.run_until_complete(closing.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _indexer(container: Container, embedder: InstantEmbedder) -> Indexer:
    loaded = [replace(container.models.current, embedder=embedder)]

    async def models() -> list[LoadedModel]:
        return loaded

    return Indexer(
        database=container.database,
        nodes=container.nodes,
        models=models,
        count_tokens=container.count_tokens,
        metrics=container.metrics,
        max_tools=100,
        ann_above=ANN_ABOVE,
        mcp_pool=container.mcp_pool,
        connector=container.connector,
        computing=asyncio.Semaphore(1),
    )


async def _read_role(world: World) -> list[tuple[Any, ...]]:
    statement = "SELECT current_user, bool_and(row_security_active(t)) FROM unnest(%(tables)s::text[]) t"
    async with world.container.database.snapshot("ada") as session:
        return await session.rows(statement, {"tables": list(_TABLES_WITH_RLS)})


def test_a_tool_can_be_found_exactly_when_it_can_be_run(world: World) -> None:
    assert world.do(_read_role(world)) == [(APP_ROLE, True)]

    class InThisWorld(Visibility):
        def __init__(self) -> None:
            super().__init__(world)

    options = settings(
        max_examples=SEQUENCES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(InThisWorld, settings=options)

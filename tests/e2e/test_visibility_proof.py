"""At no point can a tool be found and not be run, or the reverse, and no user ever sees another's.

A thousand sequences of whatever decides over what is visible, done by the product's own deeds as the app's role. After
each step the ways that lead to a tool are compared with what the design says in words, which `Person.sees` says in
Python and without a look at `verdicts.Judge`: every kind of search, what is offered when search fails, the listing,
the tags, and the look-up of a tool that is to be run.
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

from app.auth.users import create_user
from app.catalog import servers, tools
from app.catalog.definitions import list_visible_definitions, read_definitions
from app.catalog.policy import Policy
from app.catalog.rules import Rule
from app.catalog.servers import NewServer
from app.catalog.visibility import Scope, apply_policy
from app.container import Container, open_container
from app.db.engine import APP_ROLE, Session
from app.db.pagination import PageRequest
from app.embeddings.base import Vectors, check_vectors
from app.embeddings.models import LoadedModel
from app.errors import NotFound, ServerUnreachable, ToolNotFound
from app.execution.execute import ExecutionRequest, execute
from app.indexing import queue
from app.indexing.plan import tool_id
from app.indexing.reindex import Indexer, reindex_server
from app.local_postgres.postgres import EmbeddedPostgres
from app.management import rules as governing
from app.management.servers import register_server, remove_server
from app.search.query import read_query
from app.search.scoring import ScoringParams, Strategy
from tests.conftest import make_database, make_settings, no_names
from tests.support.embedding_server import embed, running_embedding_server

pytestmark = pytest.mark.no_retry

SEQUENCES = int(os.environ.get("PROOF_SEQUENCES", "60"))
STEPS = 5
"""The first of them chooses where to look first; four deeds, after a beginning in the midst of things."""

ACTOR = "proof"
LEASE_S = 60.0
ANN_ABOVE = 20_000
MOST = 50
STRICT = Policy(hold_changed=True, find_failing=False)

T = TypeVar("T")
Tags = frozenset[str]


class Definition(NamedTuple):
    """All of a tool that may differ from listing to listing."""

    wording: str
    only_reads: bool


Listing = dict[str, Definition]


@dataclass
class Known:
    """What is known of a tool, also while its server does not offer it."""

    definition: Definition
    approved: Definition
    offered: bool = True
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
    tools: dict[str, Known] = field(default_factory=dict)

    def now_offers(self, listing: Mapping[str, Definition]) -> None:
        for name, known in self.tools.items():
            known.offered = name in listing
        for name, definition in listing.items():
            self.tools.setdefault(name, Known(definition, definition)).definition = definition

    @property
    def offered(self) -> dict[str, Known]:
        return {name: known for name, known in self.tools.items() if known.offered}


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

    def members(self, places: set[int] | None) -> set[str] | None:
        return None if places is None else {key for place, key in enumerate(self.servers) if place in places}

    def tools(self) -> list["OfferedTool"]:
        return [OfferedTool(server, *each) for server in self.servers.values() for each in server.offered.items()]

    def changed_tools(self) -> list["OfferedTool"]:
        return [tool for tool in self.tools() if tool.known.definition != tool.known.approved]

    def sees_within(self, policy: Policy, project_id: str | None) -> dict[str, Tags]:
        """Nothing, within a project that is not theirs."""
        if project_id is None:
            return self.sees(policy, None)
        return self.sees(policy, self.projects[project_id]) if project_id in self.projects else {}

    def sees(self, policy: Policy, project: Project | None) -> dict[str, Tags]:
        """By tool key, with their tags."""
        return {
            tool.key: self._tags(tool.server, tool.name, tool.known, project)
            for tool in self.tools()
            if self._may_see(policy, tool.server, tool.name, tool.known)
            and (project is None or _is_inside(project, tool.server, tool.name, tool.known))
        }

    def _may_see(self, policy: Policy, server: Server, name: str, known: Known) -> bool:
        permitted = server.permissions.get(name, server.permissions.get("*", True))
        held = policy.hold_changed and known.definition != known.approved
        failing = server.failing and not policy.find_failing
        ruled = said_by(self.rules, server.name, name)
        switch = known.switch if known.switch is not None else ruled is not False
        return server.enabled and permitted and switch and not held and not failing

    def _tags(self, server: Server, name: str, known: Known, project: Project | None) -> Tags:
        rules = [*self.rules, *(project.rules if project else ())]
        added = {tag for each in rules if matches(each, server.name, name) for tag in each.tags}
        return known.tags | server.tags | added


class OfferedTool(NamedTuple):
    server: Server
    name: str
    known: Known

    @property
    def key(self) -> str:
        return tool_id(self.server.id, self.name)


def _is_inside(project: Project, server: Server, name: str, known: Known) -> bool:
    member = project.members is None or server.id in project.members
    harmless = known.definition.only_reads or not project.read_only
    return member and harmless and said_by(project.rules, server.name, name) is not False


def said_by(rules: Sequence[Rule], server: str, tool: str) -> bool | None:
    """The first matching rule that sets `enabled` decides; where any says `enabled: true`, the rest is disabled."""
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
ASKED = "any thing"
"""The description of every tool has a word of it, so that a search by words finds them all too."""

people = st.sampled_from([0, 0, 0, 1])
some = st.integers(0, 29)
"""One of however many there are."""
mostly = st.sampled_from([True, True, True, False])
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
    """The fake endpoint's vectors without the endpoint. `meanwhile` happens once, in the middle of a run."""

    batch_size = 64
    is_local = False

    def __init__(self, model: str) -> None:
        self.model = model
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def expect_dimension(self, dimension: int) -> None: ...

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return check_vectors(np.array([embed(text) for text in texts], np.float32), count=len(texts), dimension=None)

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return await self.embed_documents(texts)

    async def aclose(self) -> None: ...


class AtOnce(ThreadPoolExecutor):
    """No threads: what a step of this size gives them to do is less than waking them."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:  # noqa: BLE001 whatever it is, it is for whoever asked
            done.set_exception(error)
        return done


_GUARDED = "mcp_servers", "mcp_tools", "mcp_tool_embeddings", "projects", "tool_rules"
_KEPT = "policy", "users", *_GUARDED
_KEEP = "CREATE SCHEMA kept;" + ";".join(f"CREATE TABLE kept.{name} AS TABLE {name}" for name in _KEPT)
_RESTORE = (
    "BEGIN; DELETE FROM users; DELETE FROM policy;"
    + ";".join(f"INSERT INTO {name} TABLE kept.{name}" for name in _KEPT)
    + "; UPDATE users SET catalog_version = nextval('catalog_versions')"
    + f"; UPDATE policy SET hold_changed = {STRICT.hold_changed}, find_failing = {STRICT.find_failing}; COMMIT"
)


@dataclass(frozen=True)
class World:
    """The service, on a loop of its own, since hypothesis drives it from outside any. Its owner's connection does
    nothing but bring the beginning back."""

    loop: asyncio.AbstractEventLoop
    container: Container
    indexer: Indexer
    embedder: InstantEmbedder
    asked: Vectors
    owner: psycopg.Connection[Any]
    beginning: list[Person] = field(default_factory=list)

    def do(self, deed: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(deed)

    def begin_anew(self) -> list[Person]:
        self.owner.execute(_RESTORE.encode())
        return copy.deepcopy(self.beginning)


class Story:
    """What is done by the product, each time with a note of it."""

    def __init__(self, world: World, people: list[Person]) -> None:
        self.world = world
        self.people = people
        self.policy = STRICT
        self.touched: list[Person] = []
        self.gone_keys: list[str] = []
        self.gone_projects: list[str] = []

    def every_key(self) -> list[str]:
        """Of all that is, was or will be again, whosever it is."""
        every = (server for person in self.people for server in person.servers.values())
        return [*(tool_id(server.id, name) for server in every for name in server.tools), *self.gone_keys]

    async def as_(self, person: Person, deed: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        self.touched = [person]
        async with self.world.container.database.transaction(person.id) as session:
            return await deed(session, *arguments)

    async def add_server(
        self, person: Person, name: str, listing: Listing, tags: Tags, permissions: dict[str, bool], *, enabled: bool
    ) -> Server:
        wanted = NewServer(name, "push", tags=sorted(tags), enabled=enabled, tool_permissions=permissions)
        sealer = self.world.container.sealer
        made, _ = await self.as_(person, register_server, sealer, person.id, wanted, ACTOR)
        server = Server(made.id, name, enabled, permissions, tags)
        person.servers[server.id] = server
        await self.push(person, server, listing)
        return server

    async def push(self, person: Person, server: Server, listing: Listing, *, force: bool = False) -> None:
        body = orjson.dumps({"tools": [_as_mcp(name, definition) for name, definition in listing.items()]})
        refused = bool(server.offered) and not listing and not force
        assert await self.index(person, server, body, force=force) == ("failed" if refused else "succeeded")
        server.failing = False
        if not refused:
            server.now_offers(listing)

    async def index(
        self, person: Person, server: Server, body: bytes | None, *, asks: bool = True, force: bool = False
    ) -> str:
        """The whole way of a run, from the queue to its end, as a worker goes it."""
        database = self.world.container.database
        async with database.transaction(person.id) as session:
            run = await queue.enqueue(session, person.id, server.id, body, asks=asks, force=force)
        async with database.system_transaction() as session:
            claimed = await queue.claim(session, LEASE_S, run.id)
        assert claimed is not None
        self.touched = [person]
        return await reindex_server(self.world.indexer, claimed)

    async def reindex(self, person: Person, server: Server, *, force: bool) -> None:
        assert await self.index(person, server, None, force=force) == "succeeded"
        server.failing = False

    async def change_server(self, person: Person, server: Server, change: Mapping[str, Any]) -> None:
        """Only what is decided; what is searched of the name comes with the run that follows."""
        values = {name: sorted(value) if name == "tags" else value for name, value in change.items()}
        await self.as_(person, servers.update_server, self.world.container.sealer, person.id, server.id, values)
        if "name" in change:
            lists: list[Person | Project] = [person, *person.projects.values()]
            for ruled in lists:
                ruled.rules = [_following(each, server.name, change["name"]) for each in ruled.rules]
        for name, value in change.items():
            setattr(server, {"tool_permissions": "permissions"}.get(name, name), value)

    async def hear_of(self, person: Person, server: Server, *, well: bool) -> None:
        if well:
            await self.as_(person, servers.record_contact, person.id, server.id)
        else:
            await self.as_(person, servers.record_failure, person.id, server.id, "timeout", "it does not answer")
        server.failing = not well

    async def remove_server(self, person: Person, server: Server) -> None:
        await self.as_(person, remove_server, person.id, server.id, ANN_ABOVE, ACTOR)
        del person.servers[server.id]
        self.gone_keys += [tool_id(server.id, name) for name in server.tools]
        for project in person.projects.values():
            if project.members is not None:
                project.members.discard(server.id)

    async def switch(self, person: Person, tool: OfferedTool, switch: bool | None) -> None:
        await self.as_(person, tools.update_tool, person.id, tool.key, {"enabled": switch})
        tool.known.switch = switch

    async def tag(self, person: Person, tool: OfferedTool, tags: Tags) -> None:
        await self.as_(person, tools.update_tool, person.id, tool.key, {"tags": sorted(tags)})
        tool.known.tags = tags

    async def approve(self, person: Person, tool: OfferedTool) -> None:
        await self.as_(person, tools.approve_tool, person.id, tool.key)
        tool.known.approved = tool.known.definition

    async def set_rules(self, person: Person, rules: Sequence[Rule]) -> None:
        await self.as_(person, governing.replace_rules, person.id, rules)
        person.rules = rules

    async def add_project(self, person: Person, members: set[str] | None, rules: Sequence[Rule], **also: Any) -> None:
        name = f"project {len(person.projects) + len(self.gone_projects)}"
        values = {"name": name, "server_ids": None if members is None else sorted(members), **also}
        made = await self.as_(person, governing.create_project, person.id, values, rules)
        person.projects[made.id] = Project(made.id, members, rules, **also)

    async def change_project(self, person: Person, project: Project, change: Mapping[str, Any]) -> None:
        values = dict(change)
        rules = values.pop("rules", None)
        if "members" in values:
            members = values.pop("members")
            values["server_ids"] = None if members is None else sorted(members)
        await self.as_(person, governing.update_project, person.id, project.id, values, rules)
        for name, value in change.items():
            setattr(project, name, value)

    async def remove_project(self, person: Person, project: Project) -> None:
        await self.as_(person, governing.remove_project, person.id, project.id, ACTOR)
        del person.projects[project.id]
        self.gone_projects.append(project.id)

    async def start_with(self, policy: Policy) -> None:
        self.policy = policy
        await apply_policy(self.world.container.database, policy)
        self.touched = self.people


def _following(each: Rule, old: str, new: str) -> Rule:
    """What was said of a server stays said of it under its new name."""
    return replace(each, server=new) if each.server == old else each


async def begin(story: Story) -> None:
    """In the midst of things, so that few steps lead far: tools that are switched either way, tagged, held, ruled out,
    not permitted, and gone but not forgotten."""
    ada, ben = story.people
    await story.start_with(STRICT)
    for person in story.people:
        async with story.world.container.database.system_transaction() as session:
            await create_user(session, person.id, None)
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
        self.story = Story(world, world.begin_anew())
        self.looks = 0
        self.unseen = self.story.people

    @property
    def ada(self) -> Person:
        return self.story.people[0]

    @rule(who=people, which=some, tool=st.sampled_from(TOOLS), definition=st.one_of(st.none(), definitions))
    def a_tool_comes_changes_or_goes(self, who: int, which: int, tool: str, definition: Definition | None) -> None:
        person = self.story.people[who]
        if server := one_of(person.servers, which):
            listing = {name: known.definition for name, known in server.offered.items() if name != tool}
            changed = listing if definition is None else {**listing, tool: definition}
            self.world.do(self.story.push(person, server, changed))

    @rule(
        which=some, listing=listings, force=st.booleans(), decided=st.one_of(st.none(), rules, server_changes, switches)
    )
    def a_list_is_pushed(self, which: int, listing: Listing, force: bool, decided: Any) -> None:
        """Forced, it is embedded anew, and meanwhile somebody may decide something."""
        if server := one_of(self.ada.servers, which):
            self.world.embedder.meanwhile = lambda: self._decide(server, which, decided)
            self.world.do(self.story.push(self.ada, server, listing, force=force))
            self.world.embedder.meanwhile = None

    async def _decide(self, server: Server, which: int, decided: Any) -> None:
        if isinstance(decided, list):
            await self.story.set_rules(self.ada, decided)
        elif isinstance(decided, dict) and decided.get("name") not in self.ada.server_names:
            await self.story.change_server(self.ada, server, decided)
        elif isinstance(decided, bool) and server.offered:
            name = one_of(list(server.offered), which)
            await self.story.switch(self.ada, OfferedTool(server, name, server.tools[name]), decided)

    @precondition(lambda self: len(self.ada.servers) < len(SERVERS))
    @rule(listing=listings, tags=tags, permissions=permissions, enabled=mostly)
    def a_server_comes(self, listing: Listing, tags: Tags, permissions: dict[str, bool], enabled: bool) -> None:
        name = min(set(SERVERS) - self.ada.server_names)
        self.world.do(self.story.add_server(self.ada, name, listing, tags, permissions, enabled=enabled))

    @rule(who=people, which=some, change=server_changes)
    def a_server_changes(self, who: int, which: int, change: dict[str, Any]) -> None:
        person = self.story.people[who]
        server = one_of(person.servers, which)
        if server is None or change.get("name") in person.server_names:
            return
        self.world.do(self.story.change_server(person, server, change))
        if "name" in change:
            self.all_ways_lead_to_the_same_tools()
            assert self.world.do(self.story.index(person, server, None, asks=False)) == "succeeded"

    @rule(which=some, well=st.booleans(), by_indexing=st.sampled_from([False, False, False, True]), force=st.booleans())
    def a_server_is_heard_of(self, which: int, well: bool, by_indexing: bool, force: bool) -> None:
        if (server := one_of(self.ada.servers, which)) is None:
            return
        if by_indexing:
            self.world.do(self.story.reindex(self.ada, server, force=force))
        else:
            self.world.do(self.story.hear_of(self.ada, server, well=well))

    @precondition(lambda self: self.ada.servers)
    @rule(which=some)
    def a_server_goes(self, which: int) -> None:
        self.world.do(self.story.remove_server(self.ada, one_of(self.ada.servers, which)))

    @rule(who=people, which=some, switch=switches)
    def a_tool_is_switched(self, who: int, which: int, switch: bool | None) -> None:
        person = self.story.people[who]
        if tool := one_of(person.tools(), which):
            self.world.do(self.story.switch(person, tool, switch))

    @rule(who=people, which=some, tags=tags)
    def a_tool_is_tagged(self, who: int, which: int, tags: Tags) -> None:
        person = self.story.people[who]
        if tool := one_of(person.tools(), which):
            self.world.do(self.story.tag(person, tool, tags))

    @precondition(lambda self: self.ada.changed_tools())
    @rule(which=some)
    def a_tool_is_approved(self, which: int) -> None:
        self.world.do(self.story.approve(self.ada, one_of(self.ada.changed_tools(), which)))

    @rule(who=people, rules=rules)
    def rules_are_set(self, who: int, rules: list[Rule]) -> None:
        self.world.do(self.story.set_rules(self.story.people[who], rules))

    @precondition(lambda self: len(self.ada.projects) < 2)
    @rule(members=memberships, read_only=st.booleans(), rules=rules)
    def a_project_comes(self, members: set[int] | None, read_only: bool, rules: list[Rule]) -> None:
        of_them = self.ada.members(members)
        self.world.do(self.story.add_project(self.ada, of_them, rules, read_only=read_only))

    @precondition(lambda self: self.ada.projects)
    @rule(which=some, change=project_changes)
    def a_project_changes(self, which: int, change: dict[str, Any]) -> None:
        meant = {**change, "members": self.ada.members(change["members"])} if "members" in change else change
        self.world.do(self.story.change_project(self.ada, one_of(self.ada.projects, which), meant))

    @precondition(lambda self: self.ada.projects)
    @rule(which=some)
    def a_project_goes(self, which: int) -> None:
        self.world.do(self.story.remove_project(self.ada, one_of(self.ada.projects, which)))

    @rule(policy=policies)
    def the_service_starts_with_other_settings(self, policy: Policy) -> None:
        self.world.do(self.story.start_with(policy))

    @rule(who=people, which=some, within=some)
    def a_tool_is_called(self, who: int, which: int, within: int) -> None:
        """Anybody's by anybody, also within a project of somebody else's or one that is gone. Nothing runs: whoever
        pushes tools runs them."""
        person, key = self.story.people[who], one_of(self.story.every_key(), which)
        theirs = {project_id for each in self.story.people for project_id in each.projects}
        project_id = one_of([None, *sorted(theirs), *self.story.gone_projects], within)
        may = key in person.sees_within(self.story.policy, project_id)
        scope = Scope(person.id, self.world.container.model.id, project_id=project_id)
        with pytest.raises(ServerUnreachable if may else ToolNotFound) as refused:
            self.world.do(execute(self.world.container.executor, ExecutionRequest(scope, ACTOR, {}, tool_key=key)))
        assert getattr(refused.value, "cause", "push") == "push"

    @precondition(lambda self: self.ada.tools() and self.ada.projects)
    @rule(which=some, deed=st.integers(0, 5))
    def somebody_reaches_for_what_is_anothers(self, which: int, deed: int) -> None:
        story, (ada, ben) = self.story, self.story.people
        server, tool, project = one_of(ada.servers, which), one_of(ada.tools(), which), one_of(ada.projects, which)
        attempts: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: story.as_(ben, tools.update_tool, ben.id, tool.key, {"enabled": False}),
            lambda: story.as_(ben, tools.approve_tool, ben.id, tool.key),
            lambda: story.as_(ben, remove_server, ben.id, server.id, ANN_ABOVE, ACTOR),
            lambda: story.as_(ben, governing.create_project, ben.id, {"server_ids": [server.id]}, []),
            lambda: story.as_(ben, governing.update_project, ben.id, project.id, {"read_only": True}, []),
            lambda: story.as_(ben, governing.remove_project, ben.id, project.id, ACTOR),
        ]
        with pytest.raises(NotFound):
            self.world.do(attempts[deed]())
        story.touched = story.people

    @initialize(first=st.integers(0, 29))
    def begin_to_look(self, first: int) -> None:
        self.looks = first

    @invariant()
    def all_ways_lead_to_the_same_tools(self) -> None:
        """The two that matter most within each project, and one of the others in one of them."""
        touched, self.story.touched = self.story.touched, []
        self.unseen = [person for person in self.story.people if person not in touched] if touched else self.unseen
        for person in touched:
            self.world.do(self._look(person))

    def teardown(self) -> None:
        """Nor has anything become of those whom nobody touched."""
        for person in self.unseen:
            self.world.do(self._look(person))

    async def _look(self, person: Person) -> None:
        container = self.world.container
        places = [None, *person.projects]
        self.looks += 1
        async with container.database.snapshot(person.id) as session:
            for project_id in places:
                scope = Scope(person.id, container.model.id, project_id=project_id)
                look = Look(self, session, scope, person.sees_within(self.story.policy, project_id))
                await look.by_searching()
                await look.by_calling()
                if project_id == one_of(places, self.looks // len(OTHER_WAYS)):
                    await one_of(OTHER_WAYS, self.looks)(look)


@dataclass(frozen=True)
class Look:
    """At what a person sees, within a project or not; `expected` are the tags by tool."""

    machine: Visibility
    session: Session
    scope: Scope
    expected: dict[str, Tags]

    async def by_searching(self) -> None:
        hits = await self._found(self.scope)
        assert hits == self.expected

    async def by_calling(self) -> None:
        """The look-up of `execute`."""
        offers = await read_definitions(self.session, self.scope, self.machine.story.every_key(), core=False)
        assert offers.tools.keys() == self.expected.keys()

    async def by_searching_for_less(self) -> None:
        tag = one_of(TAGS, self.machine.looks)
        tagged = {key: tags for key, tags in self.expected.items() if tag in tags}
        assert await self._found(replace(self.scope, tags=[tag])) == tagged

    async def by_falling_back(self) -> None:
        everything = await list_visible_definitions(self.session, self.scope, MOST)
        assert {offer.tool_id for offer in everything.offers} == self.expected.keys()
        assert everything.searched == len(self.expected)

    async def by_listing(self) -> None:
        scope, wanted = self.scope, tools.ToolFilter(visible=True, project_id=self.scope.project_id)
        page = await tools.list_tools(self.session, scope.user_id, scope.model, wanted, PageRequest(MOST))
        assert {tool.id: frozenset(tool.tags) for tool in page.items} == self.expected

    async def by_tags(self) -> None:
        counted = await tools.list_tags(self.session, self.scope)
        assert dict(counted) == Counter(tag for tags in self.expected.values() for tag in tags)

    async def by_what_is_remembered(self) -> None:
        """As a discovery takes what it has found."""
        shelf = self.machine.world.container.discoverer.definition_cache
        version = await self._version()
        for _ in range(2):
            offers = await shelf.take(self.session, self.scope, version, list(self.expected), core=False)
            assert offers.tools.keys() == self.expected.keys()

    async def elsewhere(self) -> None:
        """Within what is another's, or gone, there is nothing."""
        story = self.machine.story
        theirs = [key for person in story.people if person.id != self.scope.user_id for key in person.projects]
        for project_id in (*theirs, *story.gone_projects):
            scope = replace(self.scope, project_id=project_id)
            assert not (await read_definitions(self.session, scope, story.every_key(), core=False)).tools

    async def _found(self, scope: Scope) -> dict[str, Tags]:
        strategy: Strategy = one_of(("hybrid", "semantic", "bm25"), self.machine.looks)
        world = self.machine.world
        vectors = None if strategy == "bm25" else list(world.asked)
        question = ScoringParams(read_query(ASKED), strategy, threshold=0.0, tags=TAGS)
        found = await world.container.discoverer.search.find(self.session, scope, question, vectors, limit=MOST)
        assert found.searched == len(found.hits)
        return {hit.tool_id: frozenset(hit.matched_tags) for hit in found.hits}

    async def _version(self) -> int:
        [(version,)] = await self.session.rows("SELECT catalog_version FROM users")
        return int(version)


Way = Callable[[Look], Awaitable[None]]
OTHER_WAYS: list[Way] = [
    Look.by_listing,
    Look.by_searching_for_less,
    Look.by_falling_back,
    Look.by_tags,
    Look.by_what_is_remembered,
    Look.elsewhere,
]


def one_of(those: Any, which: int) -> Any:
    """None where there are none."""
    values = list(those.values()) if isinstance(those, dict) else those
    return values[which % len(values)] if values else None


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
    loop.set_default_executor(AtOnce())
    closing = AsyncExitStack()
    url = make_database(postgres)
    # what the whole suite has loaded need not be looked through a thousand times
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000)
    try:
        with running_embedding_server() as fake, psycopg.connect(url, autocommit=True) as owner:
            owner.execute(f"ALTER DATABASE {owner.info.dbname} SET synchronous_commit = off".encode())
            strict = {"hold_changed_tools": STRICT.hold_changed, "find_failing_servers": STRICT.find_failing}
            wanted = fake.settings(index_concurrency=0, database_pool_size=1, **strict)
            opening = open_container(make_settings(tmp_path_factory.mktemp("proof"), **wanted), url, no_names)
            container = loop.run_until_complete(closing.enter_async_context(opening))
            embedder = InstantEmbedder(container.model.id)
            asked = loop.run_until_complete(embedder.embed_queries([ASKED]))
            opened = World(loop, container, _indexer(container, embedder), embedder, asked, owner)
            story = Story(opened, [Person("ada"), Person("ben")])
            opened.do(begin(story))
            opened.beginning.extend(story.people)
            owner.execute(_KEEP.encode())
            yield opened
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        loop.run_until_complete(closing.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _indexer(container: Container, embedder: InstantEmbedder) -> Indexer:
    kept = [replace(container.models.serving, embedder=embedder)]

    async def models() -> list[LoadedModel]:
        return kept

    return Indexer(
        database=container.database,
        models=models,
        count_tokens=container.count_tokens,
        metrics=container.metrics,
        max_tools=100,
        ann_above=ANN_ABOVE,
        mcp_pool=container.mcp_pool,
        sealer=container.sealer,
        computing=asyncio.Semaphore(1),
    )


async def _who_works(world: World) -> list[tuple[Any, ...]]:
    statement = "SELECT current_user, bool_and(row_security_active(t)) FROM unnest(%(tables)s::text[]) t"
    async with world.container.database.snapshot("ada") as session:
        return await session.rows(statement, {"tables": list(_GUARDED)})


def test_whatever_happens_what_can_be_found_is_what_can_be_run(world: World) -> None:
    assert world.do(_who_works(world)) == [(APP_ROLE, True)]

    class InThisWorld(Visibility):
        def __init__(self) -> None:
            super().__init__(world)

    wanted = settings(
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
    run_state_machine_as_test(InThisWorld, settings=wanted)

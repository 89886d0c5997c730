"""A search in memory gives the same bytes as a search in Postgres, whatever has changed before."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.api.discovery import render_discovery
from app.auth.permissions import Caller
from app.container import Container, open_container
from app.demo.seed import load_catalogue
from app.discovery.changes import GivenTool
from app.discovery.discover import Discoverer, discover
from app.discovery.request import DiscoveryRequest
from app.embeddings.factory import make_embedder
from app.embeddings.repository import register
from app.errors import NotFound
from app.indexing.model_switch import change_model
from app.local_postgres.database import owner_connection
from app.search.learned import LearnedCache
from app.search.postgres import HybridSearch
from app.search.query import parse_query
from app.search.scoring import Strategy
from app.search.snapshot_cache import SnapshotCache
from app.usage.examples import bump_examples
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import running_embedding_server
from tests.support.factories import OpenService, make_settings, resolve_nothing

SERVERS: Mapping[str, list[dict[str, Any]]] = {server["name"]: server["tools"] for server in load_catalogue()}
MESSAGES = [
    "send an email to Ann and add a reminder for tomorrow, then show the weather in Paris",
    "create_issue",
    "what is the capital of France?",
    "delete the old branch",
    "show the blue tools for billing",
    "thanks!",
    "wie wird das wetter morgen in berlin",
    "list the files in /tmp and read report.pdf",
    "",
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "find the open issues about crashes"},
    {"role": "assistant", "content": "There are three.", "tool_calls": [{"function": {"name": "search_issues"}}]},
    {"role": "user", "content": "close the oldest and tell the team about it"},
]
TAGS = ["blue", "billing", "team-a", "read only"]
VARYING = {"discovery_id", "search_duration_ms", "embedding_generated"}


@dataclass
class Tenant:
    user: TestUser
    servers: dict[str, str] = field(default_factory=dict)
    """The ids by name."""
    projects: list[str] = field(default_factory=list)


class World:
    """A service with snapshots, and the same service without them."""

    def __init__(self, container: Container, tenants: list[Tenant], chooser: random.Random) -> None:
        self.container, self.tenants, self.chooser = container, tenants, chooser
        self.with_snapshots = container.discoverer
        searcher = replace(container.searcher, learned_cache=LearnedCache(), hybrid_search=HybridSearch())
        without = SnapshotCache(container.database, searcher.learned_cache, container.metrics, 0)
        self.in_postgres = replace(container.discoverer, searcher=searcher, snapshots=without)
        self.hits = 0

    async def get_caller(self, tenant: Tenant) -> Caller:
        return await self.container.authenticator.authenticate(tenant.user.key, None)

    async def answer(self, discoverer: Discoverer, tenant: Tenant, request: DiscoveryRequest) -> dict[str, Any]:
        caller = await self.get_caller(tenant)
        try:
            discovery = await discover(discoverer, caller, request)
        except NotFound as error:
            return {"error": str(error)}
        body = orjson.loads(render_discovery(discovery, "mcp"))
        described = [tool.explanation for tool in discovery.tools]
        return {key: value for key, value in body.items() if key not in VARYING} | {"described": described}

    async def check(self, tenant: Tenant) -> None:
        """Compare the answers to several messages."""
        for project_id in [None, *tenant.projects]:
            for request in await self.make_requests(tenant, project_id):
                expected = await self.answer(self.in_postgres, tenant, request)
                for _ in range(3):  # the second loads a snapshot, the third uses it
                    answer = await self.answer(self.with_snapshots, tenant, request)
                    assert answer == expected, request
                    await self.with_snapshots.snapshots.wait_loaded()
                self.check_owner(tenant, expected)

    def check_owner(self, tenant: Tenant, answer: dict[str, Any]) -> None:
        servers = {tool["server_id"] for tool in answer.get("tools", ())} - {None}
        assert servers <= set(tenant.servers.values())

    async def make_requests(self, tenant: Tenant, project_id: str | None) -> list[DiscoveryRequest]:
        choose = self.chooser
        message = choose.choice(MESSAGES)
        names = list(await tenant.user.tools())
        named = choose.choice(names) if names else "nothing"
        strategy: Strategy | None = choose.choice([None, "hybrid", "semantic", "bm25"])
        plain = DiscoveryRequest(parse_query(message), project_id, dry_run=True)
        servers = list(tenant.servers)
        keep = [f"{choose.choice(servers)}.{named}" if servers else "none", named]
        return [
            plain,
            replace(plain, strategy=strategy, fill=choose.random() < 0.5, describe=True),
            replace(plain, query=parse_query(f"use {named} for this"), keep=[*map(GivenTool, keep)], max_tokens=1_000),
            replace(plain, query=parse_query(None, CONVERSATION), limit=choose.choice([None, 1, 20])),
            replace(plain, threshold=choose.choice([0.0, 0.3, 0.6]), include_core_tools=False),
            replace(plain, tags=[choose.choice(TAGS)]),
        ]

    async def push(self, tenant: Tenant) -> None:
        name = self.chooser.choice(list(SERVERS))
        tools = self.chooser.sample(SERVERS[name], self.chooser.randint(1, len(SERVERS[name])))
        if name not in tenant.servers:
            tenant.servers[name] = await tenant.user.add_server(name)
        await tenant.user.push(tenant.servers[name], tools)

    async def delete_server(self, tenant: Tenant) -> None:
        if tenant.servers:
            server_id = tenant.servers.pop(self.chooser.choice(list(tenant.servers)))
            assert (await tenant.user.http.delete(f"/servers/{server_id}")).status_code == 204

    async def put_rules(self, tenant: Tenant) -> None:
        patterns = self.chooser.sample(["*", "get_*", "!*delete*", "create_*", "*issue*", "send_*"], 2)
        rules: list[dict[str, Any]] = [{"pattern": patterns, "tags": [self.chooser.choice(TAGS)]}]
        if self.chooser.random() < 0.5:
            rules.append({"pattern": [self.chooser.choice(["*delete*", "get_*"])], "enabled": False})
        assert (await tenant.user.http.put("/rules", json={"rules": rules})).status_code == 200

    async def tag_tool(self, tenant: Tenant) -> None:
        tools = list((await tenant.user.tools()).values())
        if tools:
            body = {"tags": self.chooser.sample(TAGS, 2)}
            key = self.chooser.choice(tools)["id"]
            assert (await tenant.user.http.patch(f"/tools/{key}", json=body)).status_code == 200

    async def put_core_tools(self, tenant: Tenant) -> None:
        names = self.chooser.sample(["create_issue", "web_search", "clock"], self.chooser.randint(0, 3))
        tools = [{"name": name, "description": "native", "inputSchema": {"type": "object"}} for name in names]
        assert (await tenant.user.http.put("/core-tools", json={"tools": tools})).status_code == 200

    async def change_project(self, tenant: Tenant) -> None:
        http, servers = tenant.user.http, list(tenant.servers.values())
        body = {
            "server_ids": self.chooser.choice([None, servers[:1]]),
            "optimization": self.chooser.choice(["hybrid", "bm25", "semantic"]),
            "limit": self.chooser.choice([None, 3]),
            "rules": self.chooser.choice([[], [{"pattern": ["*"], "tags": ["team-a"]}]]),
        }
        if len(tenant.projects) < 2:
            name = f"project {self.chooser.random()}"
            created = await http.post("/projects", json={"name": name, **body})
            assert created.status_code == 201, created.text
            tenant.projects.append(created.json()["id"])
        elif self.chooser.random() < 0.3:
            assert (await http.delete(f"/projects/{tenant.projects.pop()}")).status_code == 204
        else:
            assert (await http.patch(f"/projects/{tenant.projects[0]}", json=body)).status_code == 200

    async def learn(self, tenant: Tenant) -> None:
        answer = await tenant.user.discover(self.chooser.choice(MESSAGES[:5]), fill=True)
        outcome = self.chooser.choice(["succeeded", "succeeded", "irrelevant"])
        for found in answer["tools"][:2]:
            body = {"discovery_id": answer["discovery_id"], "tool_key": found["tool_key"], "outcome": outcome}
            assert (await tenant.user.http.post("/feedback", json=body)).status_code == 204

    async def change_priors(self, tenant: Tenant) -> None:
        async with self.container.database.transaction(tenant.user.id) as session:
            await session.rows(
                "UPDATE mcp_tool_embeddings SET prior = random() * 0.03 WHERE user_id = %(user_id)s",
                {"user_id": tenant.user.id},
            )
            await bump_examples(session, tenant.user.id)

    @property
    def steps(self) -> list[Callable[[Tenant], Awaitable[None]]]:
        pushes = [self.push] * 3
        others = [self.delete_server, self.put_rules, self.tag_tool, self.put_core_tools, self.change_project]
        return [*pushes, *others, self.learn, self.learn, self.change_priors]


@pytest.fixture
async def world(open_service: OpenService, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        container = await stack.enter_async_context(open_service())
        # on a slow machine the priors would be updated between two answers that are compared
        await container.discoverer.recorder.usage_counters.flusher.stop()
        tenants = [Tenant(await stack.enter_async_context(new_user(container))) for _ in range(2)]
        yield World(container, tenants, random.Random(request.param))


@pytest.mark.parametrize("world", [1, 2, 3], indirect=True)
async def test_both_routes_answer_with_the_same_bytes_after_any_change(world: World) -> None:
    for tenant in world.tenants:
        await world.push(tenant)
        await world.push(tenant)
    for _ in range(12):
        tenant = world.chooser.choice(world.tenants)
        await world.chooser.choice(world.steps)(tenant)
        await world.check(tenant)
    assert world.container.metrics.snapshot_hits._value.get() > 100


async def test_both_routes_agree_after_a_change_of_the_model(fresh_database: str, tmp_path: Path) -> None:
    with running_embedding_server() as fake:
        settings = make_settings(tmp_path, **fake.settings(embedding_model="alpha@64"))
        async with open_container(settings, fresh_database, resolve_nothing) as container, new_user(container) as user:
            world = World(container, [Tenant(user)], random.Random(7))
            await world.push(world.tenants[0])
            await world.check(world.tenants[0])
            owner = partial(owner_connection, fresh_database)
            with owner() as connection:
                register(connection, make_embedder(settings, "openai:beta@48"), 48)
            await container.models.refresh()
            beta = container.models.get("openai:beta@48")
            await change_model(container.indexer, owner, beta, lambda _done, _total: None)
            await container.models.refresh()
            assert container.model.id == "openai:beta@48"
            await world.check(world.tenants[0])
            models = {model for _, model, _ in container.discoverer.snapshots._snapshots}
            assert "openai:beta@48" in models

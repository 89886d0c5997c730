"""REST and the console make the same changes: the same audit events, and the same effect on this process's caches."""

import json
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
import pytest

from app.container import Container
from tests.support.checks import everything
from tests.support.clients import TestUser, open_client
from tests.support.console_client import ConsoleClient, open_console
from tests.support.factories import ADMIN_KEY, tool
from tests.support.worker_steps import until

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@dataclass(frozen=True)
class World:
    """A user with one of everything, and another user for what administrators do."""

    user: TestUser
    admin: httpx.AsyncClient
    server_id: str
    tool_id: str
    definition_hash: str
    project_id: str
    project_key: str
    stranger_id: str
    stranger_key_id: str
    stranger_key: str
    began: str
    names: dict[str, str]
    """What ids stand for, so that the events of two worlds can be compared."""


async def make_world(user: TestUser, admin: httpx.AsyncClient) -> World:
    server_id = await user.add_tools(tool("read"), tool("write"))
    read = (await user.tools())["read"]
    project_id = (await user.http.post("/projects", json={"name": "support", "server_ids": None})).json()["id"]
    body = {"kind": "user", "user_id": user.id, "project_id": project_id}
    project_key = (await admin.post("/keys", json=body)).json()
    stranger_id = f"stranger-{uuid.uuid4().hex[:8]}"
    await admin.post("/users", json={"id": stranger_id})
    stranger_key = (await admin.post("/keys", json={"kind": "user", "user_id": stranger_id})).json()
    [key_id] = [
        key["id"] for key in await everything(admin, "/keys") if key["user_id"] == user.id and key["project_id"] is None
    ]
    names = {
        user.id: "user",
        f"user:{key_id}": "user's key",
        server_id: "server",
        read["id"]: "tool",
        project_id: "project",
        project_key["id"]: "project's key",
        stranger_id: "stranger",
        stranger_key["id"]: "stranger's key",
    }
    return World(
        user=user,
        admin=admin,
        server_id=server_id,
        tool_id=read["id"],
        definition_hash=read["definition_hash"],
        project_id=project_id,
        project_key=project_key["key"],
        stranger_id=stranger_id,
        stranger_key_id=stranger_key["id"],
        stranger_key=stranger_key["key"],
        began=datetime.now(UTC).isoformat(),
        names=names,
    )


Rest = Callable[[World], Awaitable[httpx.Response]]
Console = Callable[[World, ConsoleClient], Awaitable[httpx.Response]]
RULES = [{"pattern": ["read"], "enabled": True}, {"pattern": ["write"], "tags": ["careful"]}]
RULE_ROWS = {"pattern": ["read", "write"], "server": ["", ""], "enabled": ["on", ""], "tags": ["", "careful"]}
PROJECT_FORM = {"members": "all", "optimization": "hybrid", "do": "store"}

CONFIG = {"mcpServers": {name: {"url": "https://mcp.example.com", "disabled": True} for name in ("new", "files")}}

CHANGES: dict[str, tuple[Rest, Console]] = {
    "import servers": (
        lambda w: w.user.http.post("/servers/import", json={"config": CONFIG}),
        lambda _, v: v.submit("/console/servers/import", config=json.dumps(CONFIG)),
    ),
    "register a server": (
        lambda w: w.user.http.post("/servers", json={"name": "new", "transport": "push"}),
        lambda _, v: v.submit("/console/servers", name="new", transport="push"),
    ),
    "change a server": (
        lambda w: w.user.http.patch(f"/servers/{w.server_id}", json={"description": "other"}),
        lambda w, v: v.submit(f"/console/servers/{w.server_id}/change", name="files", description="other"),
    ),
    "rename a server": (
        lambda w: w.user.http.patch(f"/servers/{w.server_id}", json={"name": "other"}),
        lambda w, v: v.submit(f"/console/servers/{w.server_id}/change", name="other"),
    ),
    "disable a server": (
        lambda w: w.user.http.patch(f"/servers/{w.server_id}", json={"enabled": False}),
        lambda w, v: v.submit(f"/console/servers/{w.server_id}/switch"),
    ),
    "delete a server": (
        lambda w: w.user.http.delete(f"/servers/{w.server_id}"),
        lambda w, v: v.submit(f"/console/servers/{w.server_id}/delete"),
    ),
    "reindex a server": (
        lambda w: w.user.http.post(f"/servers/{w.server_id}/reindex"),
        lambda w, v: v.submit(f"/console/servers/{w.server_id}/reindex"),
    ),
    "reindex all servers": (
        lambda w: w.user.http.post("/reindex"),
        lambda _, v: v.submit("/console/servers/reindex"),
    ),
    "change a tool": (
        lambda w: w.user.http.patch(f"/tools/{w.tool_id}", json={"enabled": False}),
        lambda w, v: v.submit(f"/console/tools/{w.tool_id}", switch="off"),
    ),
    "approve a tool": (
        lambda w: w.user.http.post(f"/tools/{w.tool_id}/approve?definition_hash={w.definition_hash}"),
        lambda w, v: v.submit(f"/console/tools/{w.tool_id}/approve", definition_hash=w.definition_hash),
    ),
    "replace rules": (
        lambda w: w.user.http.put("/rules", json={"rules": RULES}),
        lambda _, v: v.submit("/console/rules", do="store", **RULE_ROWS),
    ),
    "create a project": (
        lambda w: w.user.http.post("/projects", json={"name": "new", "rules": RULES}),
        lambda _, v: v.submit("/console/projects", name="new", **PROJECT_FORM, **RULE_ROWS),
    ),
    "change a project": (
        lambda w: w.user.http.patch(f"/projects/{w.project_id}", json={"name": "other"}),
        lambda w, v: v.submit(f"/console/projects/{w.project_id}", name="other", **PROJECT_FORM),
    ),
    "delete a project": (
        lambda w: w.user.http.delete(f"/projects/{w.project_id}"),
        lambda w, v: v.submit(f"/console/projects/{w.project_id}/delete"),
    ),
}

ADMIN_CHANGES: dict[str, tuple[Rest, Console]] = {
    "create a user": (
        lambda w: w.admin.post("/users", json={"id": f"new-{uuid.uuid4()}"}),
        lambda _, v: v.submit("/console/users", id=f"new-{uuid.uuid4()}"),
    ),
    "change a user": (
        lambda w: w.admin.patch(f"/users/{w.stranger_id}", json={"discovery_enabled": False}),
        lambda w, v: v.submit(f"/console/users/{w.stranger_id}"),
    ),
    "create a key": (
        lambda w: w.admin.post("/keys", json={"kind": "user", "user_id": w.stranger_id}),
        lambda w, v: v.submit("/console/keys", kind="user", user_id=w.stranger_id),
    ),
    "revoke a key": (
        lambda w: w.admin.delete(f"/keys/{w.stranger_key_id}"),
        lambda w, v: v.submit(f"/console/keys/{w.stranger_key_id}/revoke"),
    ),
}


Event = tuple[str | None, ...]


async def read_events(world: World, container: Container) -> list[Event]:
    """The events since the world was made, after all index runs have ended, with names in place of ids."""

    async def runs_have_ended() -> bool:
        async with container.database.transaction(world.user.id) as session:
            return not await session.rows("SELECT FROM index_runs WHERE finished_at IS NULL")

    def name_of(value: str | None) -> str | None:
        return None if value is None else world.names.get(value, _UUID.sub("new", value))

    await until(runs_have_ended)
    rows = await everything(world.admin, "/audit", since=world.began)
    fields = ("user_id", "actor", "action", "target", "outcome")
    events = [
        tuple(name_of(row[field]) for field in fields) for row in rows if not row["action"].startswith("console.")
    ]
    concerned = {"user", "stranger", "new-new"}
    return sorted((event for event in events if event[0] in concerned), key=str)


@pytest.mark.parametrize("change", [*CHANGES, *ADMIN_CHANGES])
async def test_the_same_change_leaves_the_same_audit_events(
    user: TestUser, other_user: TestUser, container: Container, admin: httpx.AsyncClient, change: str
) -> None:
    make_over_rest, make_in_console = (CHANGES | ADMIN_CHANGES)[change]
    world = await make_world(user, admin)
    answer = await make_over_rest(world)
    assert answer.is_success, answer.text
    over_rest = await read_events(world, container)

    world = await make_world(other_user, admin)
    async with open_console(container, ADMIN_KEY if change in ADMIN_CHANGES else other_user.key) as console:
        answer = await make_in_console(world, console)
        assert answer.status_code in (201, 303), answer.text
    in_console = await read_events(world, container)

    assert over_rest == in_console
    assert over_rest


@pytest.mark.parametrize("interface", ["REST", "console"])
@pytest.mark.parametrize("change", ["delete a project", "revoke a key", "change a user"])
async def test_a_change_of_keys_or_users_takes_effect_with_the_next_request(
    user: TestUser, container: Container, admin: httpx.AsyncClient, change: str, interface: str
) -> None:
    world = await make_world(user, admin)
    key = world.project_key if change == "delete a project" else world.stranger_key
    async with open_client(container, Authorization=f"Bearer {key}") as http:
        assert (await http.get("/tools")).status_code == 200
        make_over_rest, make_in_console = (CHANGES | ADMIN_CHANGES)[change]
        if interface == "REST":
            await make_over_rest(world)
        else:
            async with open_console(container, ADMIN_KEY if change in ADMIN_CHANGES else user.key) as console:
                await make_in_console(world, console)
        assert (await http.get("/tools")).status_code == (200 if change == "change a user" else 401)

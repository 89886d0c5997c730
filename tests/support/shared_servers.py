"""Register shared servers as an administrator, and wait until their members have them."""

from typing import Any

import httpx

from app.container import Container
from tests.support.clients import TestUser
from tests.support.worker_steps import has_no_runs, until

Json = dict[str, Any]


async def share(admin: httpx.AsyncClient, name: str = "shared-files", **fields: Any) -> Json:
    """Register a shared server, to which tools are pushed unless `fields` says otherwise."""
    answer = await admin.post("/shared-servers", json={"name": name, "transport": "push", **fields})
    assert answer.status_code == 201, answer.text
    shared: Json = answer.json()
    return shared


async def push_shared(admin: httpx.AsyncClient, shared: Json, *tools: Json) -> None:
    answer = await admin.put(f"/servers/{shared['id']}/tools", json={"tools": list(tools)}, params={"wait": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "succeeded", answer.text


async def wait_for_members(admin: httpx.AsyncClient, shared: Json) -> Json:
    """Wait until each member has an up-to-date copy, and return the shared server."""
    current: Json = {}

    async def is_complete() -> bool:
        nonlocal current
        current = (await admin.get(f"/shared-servers/{shared['id']}")).json()
        return bool(current["members"]["total"] == current["members"]["ready"])

    await until(is_complete)
    return current


async def settle(container: Container) -> None:
    """Wait until no copy is missing, outdated or too many, and no run is left."""

    async def is_settled() -> bool:
        # the end of a run may lead to a task, and a task to a run
        if not await has_no_runs(container) or await container.shared_server_sync._find_tasks((), 1):
            return False
        return await has_no_runs(container)

    await until(is_settled)


async def list_shared(user: TestUser) -> dict[str, Json]:
    """Return the copies of shared servers that the user has, by name."""
    answer = await user.http.get("/servers", params={"limit": 200})
    return {server["name"]: server for server in answer.json()["items"] if server["shared"]}

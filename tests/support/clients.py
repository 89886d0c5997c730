"""HTTP clients of a service in this process, and users with the calls that most tests begin with."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from app.container import Container
from app.main import create_app, create_routes
from app.settings import Role
from tests.support.factories import ADMIN_KEY
from tests.support.mcp_server import FakeMcpServer
from tests.support.openapi_contract import OpenApiContract


def get_app(container: Container) -> FastAPI:
    """Return the application of this container, built once.

    Building its routes takes longer than most tests. The application is stored on the container, so that both are
    released together.
    """
    app: FastAPI = container.__dict__.get("app") or create_app(container, lambda: container.settings)
    container.__dict__["app"] = app
    return app


@cache
def describe(role: Role) -> dict[str, Any]:
    """Return the OpenAPI document of an application with this role, built once: no other setting changes it."""
    return create_routes(role).openapi()


def get_contract(container: Container) -> OpenApiContract:
    """Return the comparison of this container's responses with the OpenAPI document."""
    contract: OpenApiContract = container.__dict__.get("contract") or OpenApiContract(describe(container.settings.role))
    container.__dict__["contract"] = contract
    return contract


@asynccontextmanager
async def serve_application(container: Container) -> AsyncIterator[str]:
    """Serve the application behind a socket, and yield its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(get_app(container), log_config=None, lifespan="off", ws="none"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    async with asyncio.timeout(60):
        while not server.started:  # noqa: ASYNC110 uvicorn offers no event to wait for
            await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await serving


@asynccontextmanager
async def open_client(container: Container, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client whose responses are compared with the OpenAPI document."""
    transport = httpx.ASGITransport(get_app(container), raise_app_exceptions=False)
    hooks = {"response": [get_contract(container).check]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://toolscout", headers=headers, timeout=60, event_hooks=hooks
    ) as client:
        yield client


class TestUser:
    """A user with a key, and a client that presents it."""

    __test__ = False

    def __init__(self, user_id: str, key: str, http: httpx.AsyncClient) -> None:
        self.id = user_id
        self.key = key
        self.http = http

    async def add_server(self, name: str = "files", **fields: Any) -> str:
        """Register a server, to which tools are pushed unless `fields` says otherwise, and return its id."""
        answer = await self.http.post("/servers", json={"name": name, "transport": "push", **fields})
        assert answer.status_code == 201, answer.text
        server_id: str = answer.json()["id"]
        return server_id

    async def push(self, server_id: str, tools: list[Any], **query: Any) -> dict[str, Any]:
        """Push these tools and return the finished run."""
        answer = await self.http.put(
            f"/servers/{server_id}/tools", json={"tools": tools}, params={"wait": True, **query}
        )
        assert answer.status_code == 200, answer.text
        run: dict[str, Any] = answer.json()
        return run

    async def add_tools(self, *tools: dict[str, Any], server: str = "files", **fields: Any) -> str:
        """Register a server, push these tools to it and return its id."""
        server_id = await self.add_server(server, **fields)
        run = await self.push(server_id, list(tools))
        assert run["state"] == "succeeded", run
        return server_id

    async def connect(self, server: FakeMcpServer, name: str = "files", **fields: Any) -> str:
        """Register the server, wait until its tools are indexed and return its id."""
        server_id = await self.add_server(name, transport=server.transport, url=server.url, **fields)
        run = await self.reindex(server_id)
        assert run["state"] == "succeeded", run
        return server_id

    async def reindex(self, server_id: str, **query: Any) -> dict[str, Any]:
        """Reindex the server and return the finished run."""
        answer = await self.http.post(f"/servers/{server_id}/reindex", params={"wait": True, **query})
        assert answer.status_code == 200, answer.text
        run: dict[str, Any] = answer.json()
        return run

    async def execute(self, tool_name: str, arguments: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
        tool_key = (await self.tools())[tool_name]["id"]
        body = {"tool_key": tool_key, "arguments": arguments or {}, **fields}
        return await self.http.post("/execute", json=body)

    async def discover(self, query: str, **fields: Any) -> dict[str, Any]:
        answer = await self.http.post("/discover", json={"query": query, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def tools(self) -> dict[str, dict[str, Any]]:
        """Return the user's tools by name."""
        answer = await self.http.get("/tools", params={"limit": 200})
        return {tool["name"]: tool for tool in answer.json()["items"]}

    async def leave(self, container: Container) -> None:
        """End the user's runs and connections: they would reach the fakes, and the log, while later tests look.

        This does not use the API, since a test may have revoked the user's keys.
        """
        async with container.database.system_transaction() as session:
            await session.rows(
                "DELETE FROM mcp_servers WHERE user_id = %(user)s AND transport <> 'push'", {"user": self.id}
            )
        container.mcp_pool.forget_user(self.id)
        if unfinished := container.worker._tasks | container.mcp_pool._closing:
            await asyncio.wait(unfinished, timeout=5)


@asynccontextmanager
async def new_user(container: Container, user_id: str | None = None) -> AsyncIterator[TestUser]:
    """Create a user with a key; when the test ends, end what the user has left running."""
    user_id = user_id or f"user-{uuid.uuid4().hex[:12]}"
    async with open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        await admin.post("/users", json={"id": user_id})
        created = await admin.post("/keys", json={"kind": "user", "user_id": user_id})
    key = created.json()["key"]
    async with open_client(container, Authorization=f"Bearer {key}") as http:
        user = TestUser(user_id, key, http)
        yield user
        await user.leave(container)

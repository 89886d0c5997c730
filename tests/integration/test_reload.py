"""A reload applies what can change while the service runs, names the rest, and changes all or nothing."""

import asyncio
import json
import logging
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil
import pytest
from fastapi import FastAPI

from app.container import Container
from app.errors import ConfigurationError
from app.main import create_app
from app.reload import RELOADABLE
from app.settings import Settings
from tests.support.checks import Json, assert_problem, everything
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService, make_settings, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.registry_server import entry, remote, running_registry
from tests.support.stdio_programs import MINIMAL_SERVER
from tests.support.worker_steps import until


@dataclass
class World:
    """A service whose settings the test can write anew."""

    container: Container
    app: FastAPI
    admin: httpx.AsyncClient
    written: dict[str, Any]
    """The settings that the next reload reads."""

    async def reload(self, **changes: Any) -> Json:
        self.written |= changes
        answer = await self.admin.post("/reload")
        assert answer.status_code == 200, answer.text
        result: Json = answer.json()
        return result

    @property
    def current(self) -> Container:
        container: Container = self.app.state.container
        return container


class OpenWorld(Protocol):
    def __call__(self, **changes: Any) -> AbstractAsyncContextManager[World]: ...


@pytest.fixture
def open_world(open_service: OpenService, tmp_path: Path) -> OpenWorld:
    @asynccontextmanager
    async def open_with(**changes: Any) -> AsyncIterator[World]:
        async with open_service(**changes) as container:
            written = dict(changes)

            def read_settings() -> Settings:
                if "error" in written:
                    raise ConfigurationError(written["error"])
                return make_settings(tmp_path, **written)

            app = container.__dict__["app"] = create_app(container, read_settings)
            async with open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
                yield World(container, app, admin, written)

    return open_with


def write_programs(folder: Path, **arguments: str) -> Path:
    """Write the operator's list: the same program under each name, with an argument of its own."""
    code = folder / "server.py"
    code.write_text(textwrap.dedent(MINIMAL_SERVER).replace("BEFORE", "").replace("AFTER", ""))
    file = folder / "stdio.json"
    programs = {
        name: {"argv": [sys.executable, str(code), str(folder / "calls"), argument]}
        for name, argument in arguments.items()
    }
    file.write_text(json.dumps(programs))
    return file


async def look(user: TestUser, name: str) -> Json:
    """Run the program and return its process id and arguments."""
    tools = await everything(user.http, "/tools")
    [key] = [each["id"] for each in tools if each["server_name"] == name]
    answer = await user.http.post("/execute", json={"tool_key": key})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()["result"]["structuredContent"]
    return found


async def test_nothing_changes_without_a_change(open_world: OpenWorld) -> None:
    async with open_world() as world:
        assert await world.reload() == {"changed": [], "needs_restart": [], "warnings": []}


async def test_limits_of_answers_change_for_the_next_request(open_world: OpenWorld) -> None:
    async with open_world() as world, new_user(world.container) as user:
        await user.add_tools(*(tool(f"read_{number}", "Reads a file.") for number in range(10, 30)))
        best = await user.discover("read a file", fill=True, limit=6)
        found_keys = {each["tool_key"] for each in best["tools"]}
        keep = [each["id"] for each in (await user.tools()).values() if each["id"] not in found_keys][:8]

        async def ask() -> tuple[int, str | None]:
            found = await user.discover("read a file", fill=True, limit=6, keep=keep)
            return len(found["tools"]), found["degraded_reason"]

        before, _ = await ask()
        assert (await world.reload(max_tools=20))["changed"] == ["TOOLSCOUT_MAX_TOOLS"]
        assert await ask() == (8 + 6, None)
        assert before < 8 + 6
        assert (await world.reload(rollout_percent=0))["changed"] == ["TOOLSCOUT_ROLLOUT_PERCENT"]
        assert (await ask())[1] == "disabled"
        await world.reload(rollout_percent=100, max_tools=10)
        assert await ask() == (before, None)


async def test_the_registrys_allow_list_changes_for_the_next_request(open_world: OpenWorld) -> None:
    with running_registry() as registry:
        registry.reset(*(entry(name, remote("https://mcp.example.com/mcp")) for name in ("com.acme/a", "com.other/b")))
        async with open_world(registry_url=registry.url) as world, new_user(world.container) as user:

            async def search() -> list[str]:
                return [each["name"] for each in (await user.http.get("/registry/servers")).json()["items"]]

            assert await search() == ["com.acme/a", "com.other/b"]
            result = await world.reload(registry_allow="com.acme/*")
            assert result["changed"] == ["TOOLSCOUT_REGISTRY_ALLOW"]
            assert await search() == ["com.acme/a"]


async def test_learning_is_switched_off_and_on_again(open_world: OpenWorld) -> None:
    async with open_world() as world, new_user(world.container) as user:
        await user.add_tools(tool("read_file"))
        key = (await user.tools())["read_file"]["id"]

        async def learn(query: str) -> int:
            discovery_id = (await user.discover(query))["discovery_id"]
            body = {"discovery_id": discovery_id, "tool_key": key, "outcome": "succeeded"}
            assert (await user.http.post("/feedback", json=body)).status_code == 204
            learned: int = (await user.http.get(f"/tools/{key}/examples")).json()["learned"]
            return learned

        assert (await world.reload(learn_from_use=False))["changed"] == ["TOOLSCOUT_LEARN_FROM_USE"]
        assert await learn("what is in there") == 0
        assert not world.current.searcher.learned
        await world.reload(learn_from_use=True)
        assert await learn("open it and tell me the first line") == 1
        assert world.current.searcher.learned


async def test_the_rate_and_the_number_of_requests_are_limited_anew(open_world: OpenWorld) -> None:
    async with open_world(rate_per_user=0.25) as world, new_user(world.container) as user:
        assert (await user.http.get("/tools")).status_code == 200
        assert_problem(await user.http.get("/tools"), 429, "rate_limited")
        await world.reload(rate_per_user=0)
        assert (await user.http.get("/tools")).status_code == 200
        result = await world.reload(max_in_flight=7, call_timeout_s=3.0, max_result_bytes=2048, connect_timeout_s=9.0)
        assert result["changed"] == [
            "TOOLSCOUT_CALL_TIMEOUT_S",
            "TOOLSCOUT_CONNECT_TIMEOUT_S",
            "TOOLSCOUT_MAX_IN_FLIGHT",
            "TOOLSCOUT_MAX_RESULT_BYTES",
        ]
        assert world.current.settings.max_in_flight == 7
        assert (world.current.executor.timeout_s, world.current.executor.max_result_bytes) == (3.0, 2048)


async def test_a_process_takes_more_requests_after_a_reload(open_world: OpenWorld, mcp: FakeMcpServer) -> None:
    settings = {"max_in_flight": 2, "outbound_allow": outbound_allow(mcp)}
    async with open_world(**settings) as world, new_user(world.container) as user:
        mcp.tools, mcp.stalled = [tool("work")], {"work"}
        await user.connect(mcp)
        calls = [asyncio.create_task(user.execute("work"))]

        async def is_running() -> bool:
            return len(mcp.calls) == 1

        await until(is_running)
        await world.reload(max_in_flight=1)
        assert_problem(await user.http.get("/tools"), 503, "unavailable")
        mcp.stalled = set()
        assert [(await call).status_code for call in calls] == [200]
        await world.reload(max_in_flight=2)
        assert (await user.http.get("/tools")).status_code == 200


async def test_a_host_is_reached_only_while_it_is_allowed(open_world: OpenWorld, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("work")]
    async with open_world() as world, new_user(world.container) as user:
        server = {"name": "files", "transport": mcp.transport, "url": mcp.url}
        assert_problem(await user.http.post("/servers", json=server), 422, "url_not_allowed")
        result = await world.reload(outbound_allow=outbound_allow(mcp))
        assert result == {"changed": ["TOOLSCOUT_OUTBOUND_ALLOW"], "needs_restart": [], "warnings": []}
        await user.connect(mcp)
        assert (await user.execute("work")).status_code == 200
        await world.reload(outbound_allow="")
        refused = await user.execute("work")  # not over the open connection either
        assert refused.status_code == 502
        assert len(mcp.calls) == 1


async def test_programs_are_added_changed_and_removed(open_world: OpenWorld, tmp_path: Path) -> None:
    file = write_programs(tmp_path, same="1", other="1")
    async with open_world(stdio_servers=file) as world, new_user(world.container) as user:
        for name in ("same", "other"):
            await user.reindex(await user.add_server(name, transport="stdio"))
        same, other = await look(user, "same"), await look(user, "other")
        write_programs(tmp_path, same="1", other="2", third="1")
        assert await world.reload() == {"changed": ["TOOLSCOUT_STDIO_SERVERS"], "needs_restart": [], "warnings": []}
        assert (await look(user, "same"))["pid"] == same["pid"]
        changed = await look(user, "other")
        assert (other["argv"][1], changed["argv"][1]) == ("1", "2")
        assert (await user.http.post("/servers", json={"name": "third", "transport": "stdio"})).status_code == 201
        write_programs(tmp_path, same="1")
        await world.reload()

        async def is_gone() -> bool:
            return not psutil.pid_exists(changed["pid"])

        await until(is_gone)
        tools = await everything(user.http, "/tools")
        [key] = [each["id"] for each in tools if each["server_name"] == "other"]
        problem = assert_problem_with_names(await user.http.post("/execute", json={"tool_key": key}))
        assert "has no server named 'other'" in problem["detail"]


def assert_problem_with_names(answer: httpx.Response) -> Json:
    assert answer.status_code == 502, answer.text
    problem: Json = answer.json()
    return problem


async def test_what_needs_a_restart_is_named_and_stays_as_it_was(
    open_world: OpenWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world() as world:
        port = world.container.settings.port
        result = await world.reload(port=port + 1, database_pool_size=7, max_tools=4)
        assert result == {
            "changed": ["TOOLSCOUT_MAX_TOOLS"],
            "needs_restart": ["TOOLSCOUT_DATABASE_POOL_SIZE", "TOOLSCOUT_PORT"],
            "warnings": [],
        }
        assert "TOOLSCOUT_PORT changed: needs a restart" in caplog.text
        assert (world.current.settings.port, world.current.settings.max_tools) == (port, 4)
        assert (await world.reload())["needs_restart"] == result["needs_restart"]  # until it is restarted


async def test_misspelt_settings_are_named(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world() as world:
        monkeypatch.setenv("TOOLSCOUT_ROLOUT_PERCENT", "5")
        result = await world.reload(max_tools=4)
        message = "unknown setting TOOLSCOUT_ROLOUT_PERCENT; did you mean TOOLSCOUT_ROLLOUT_PERCENT?"
        assert result == {"changed": ["TOOLSCOUT_MAX_TOOLS"], "needs_restart": [], "warnings": [message]}
        assert message in caplog.text
        monkeypatch.delenv("TOOLSCOUT_ROLOUT_PERCENT")
        assert (await world.reload())["warnings"] == []


@pytest.mark.parametrize("reason", ["settings", "programs", "glossary"])
async def test_something_invalid_changes_nothing(open_world: OpenWorld, tmp_path: Path, reason: str) -> None:
    file, glossary = write_programs(tmp_path, same="1"), tmp_path / "glossary"
    glossary.write_text("bin it = delete")
    async with open_world(stdio_servers=file, glossary_file=glossary) as world:
        world.written |= {"max_tools": 4, "log_level": "ERROR"}
        if reason == "settings":
            world.written["error"] = "invalid settings:\n  TOOLSCOUT_MAX_TOOLS: must be positive"
        elif reason == "programs":
            file.write_text('{"same": {"argv": []}}')
        else:
            glossary.write_text("no equals sign")
        problem = assert_problem(await world.admin.post("/reload"), 409)
        assert problem["detail"].startswith("nothing was changed: ")
        assert world.current is world.container
        assert logging.getLogger("toolscout").level != logging.ERROR
        assert list(world.container.mcp_pool.stdio_servers.programs) == ["same"]
        write_programs(tmp_path, same="1")
        glossary.write_text("bin it = delete")
        world.written.pop("error", None)
        assert set((await world.reload())["changed"]) == {"TOOLSCOUT_LOG_LEVEL", "TOOLSCOUT_MAX_TOOLS"}
        assert logging.getLogger("toolscout").level == logging.ERROR
        await world.reload(log_level="INFO")


async def test_the_glossary_is_read_again(open_world: OpenWorld, tmp_path: Path) -> None:
    glossary = tmp_path / "glossary"
    glossary.write_text("frobnicate = zip")
    async with open_world(glossary_file=glossary) as world, new_user(world.container) as user:
        await user.add_tools(tool("delete_file", "Deletes a file."), tool("zip_file", "Zips a file."))

        async def find() -> list[str]:
            found = await user.discover("frobnicate", strategy="bm25")
            return [each["tool"]["name"] for each in found["tools"]]

        assert await find() == ["zip_file"]
        glossary.write_text("frobnicate = delete")
        assert (await world.reload())["changed"] == ["TOOLSCOUT_GLOSSARY_FILE"]
        assert await find() == ["delete_file"]


async def test_a_reload_is_audited(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.reload(max_tools=4)
        [event] = (await world.admin.get("/audit", params={"action": "settings.reload"})).json()["items"]
        assert (event["actor"], event["outcome"]) == ("admin:bootstrap", "succeeded")


async def test_only_an_administrator_may_reload(open_world: OpenWorld) -> None:
    async with open_world() as world, new_user(world.container) as user:
        assert_problem(await user.http.post("/reload"), 403)


def test_every_reloadable_field_is_a_setting() -> None:
    assert Settings.model_fields.keys() >= RELOADABLE

"""Tests with third-party MCP servers and clients. The servers are registered, indexed, found and run over real sockets
and pipes."""

import base64
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from mcp import Client
from mcp_types import CallToolResult, ElicitResult, ImageContent

from bench.service import Service, free_port, running_service
from tests.support.events import parse_events
from tests.support.factories import SLOW_MACHINE_ENV
from tests.support.mcp_client import MODES, Mode, connect_client, get_text
from tests.support.paths import NPM_PACKAGES

pytestmark = pytest.mark.needs_npm

USER = "traveller"
NPM_SCOPE = NPM_PACKAGES / "@modelcontextprotocol"
EVERYTHING = NPM_SCOPE / "server-everything/dist/index.js"
INSPECTOR = NPM_SCOPE / "inspector-cli/build/cli.js"
Json = dict[str, Any]


@functools.cache
def node_command() -> list[str]:
    """Return the command of Node.js. Version 18, which Debian 12 has, hides `crypto` behind an option."""
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    has_crypto = int(version.removeprefix("v").split(".")[0]) > 18
    return ["node"] if has_crypto else ["node", "--experimental-global-webcrypto"]


@pytest.fixture(scope="module")
def everything() -> Iterator[str]:
    """The address of the protocol's reference server, over streamable HTTP."""
    port = free_port()
    environment = {"PATH": os.environ["PATH"], "PORT": str(port)}
    command = [*node_command(), str(EVERYTHING), "streamableHttp"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"listening" in line:
                break
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        yield f"127.0.0.1:{port}"
        process.terminate()
        drain.join()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    commit = [
        "git",
        "-C",
        str(folder),
        *identity,
        "commit",
        "--quiet",
        "--allow-empty",
        "--message",
        "Found the engine",
    ]
    subprocess.run(commit, check=True)
    return folder


@pytest.fixture(scope="module")
def website(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("website")
    (folder / "index.html").write_text("<html><body><h1>Opening hours</h1><p>From nine to five.</p></body></html>")
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()
        thread.join()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, everything: str, repository: Path) -> dict[str, str]:
    programs = {
        "time": {"argv": [find_program("mcp-server-time")]},
        "git": {"argv": [find_program("mcp-server-git"), "--repository", str(repository)]},
        "fetch": {"argv": [find_program("mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"]},
    }
    registry = tmp_path_factory.mktemp("operator") / "stdio.json"
    registry.write_text(json.dumps(programs))
    return {"TOOLSCOUT_STDIO_SERVERS": str(registry), "TOOLSCOUT_OUTBOUND_ALLOW": everything, **SLOW_MACHINE_ENV}


def find_program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str], everything: str) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), settings) as running:
        with running.admin(USER) as http:
            bodies = [{"name": name, "transport": "stdio"} for name in ("time", "git", "fetch")]
            bodies += [{"name": "everything", "transport": "streamable_http", "url": f"http://{everything}/mcp"}]
            registered = [http.post("/servers", json=body) for body in bodies]
            assert [answer.status_code for answer in registered] == [201] * 4
            for answer in registered:
                wait_until_indexed(http, answer.json()["id"])
        yield running


def wait_until_indexed(http: httpx.Client, server_id: str) -> None:
    """Wait for the first run, which registering starts. Later runs do not count: a server may announce a change."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        *_, run = http.get(f"/servers/{server_id}/runs").json()["items"]
        if run["finished_at"] is not None:
            assert run["state"] == "succeeded", run
            return
        time.sleep(0.1)
    raise AssertionError(run)


def discover_tool(service: Service, message: str, server: str, name: str) -> Json:
    """Return the tool, which must be among the first three results."""
    with service.admin(USER) as http:
        found: list[Json] = http.post("/discover", json={"query": message}).json()["tools"]
    by_name = {(tool["server_name"], tool["tool"]["name"]): tool for tool in found[:3]}
    assert (server, name) in by_name
    return by_name[server, name]


def run_tool(service: Service, found: Json, arguments: Json) -> Json:
    with service.admin(USER) as http:
        answer = http.post("/execute", json={"tool_key": found["tool_key"], "arguments": arguments})
    assert answer.status_code == 200, answer.text
    result: Json = answer.json()["result"]
    return result


def test_the_time_tool_is_found_and_run(service: Service) -> None:
    found = discover_tool(service, "what time is it in Tokyo", "time", "get_current_time")
    result = run_tool(service, found, {"timezone": "Asia/Tokyo"})
    time_info = json.loads(result["content"][0]["text"])
    assert time_info["timezone"] == "Asia/Tokyo"
    assert time_info["datetime"].endswith("+09:00")


def test_the_error_of_a_tool_is_returned_as_its_result(service: Service) -> None:
    found = discover_tool(service, "what time is it in Tokyo", "time", "get_current_time")
    result = run_tool(service, found, {"timezone": "Atlantis/Capital"})
    assert result["isError"] is True
    assert "Atlantis" in result["content"][0]["text"]


def test_the_log_of_a_repository_is_read_with_the_git_server(service: Service, repository: Path) -> None:
    found = discover_tool(service, "show me the commit log of the repository", "git", "git_log")
    assert "Found the engine" in str(run_tool(service, found, {"repo_path": str(repository)}))


def test_a_page_is_fetched_with_the_fetch_server(service: Service, website: str) -> None:
    found = discover_tool(service, "fetch the contents of a web page", "fetch", "fetch")
    # raw: to simplify a page, the server would install packages from npm
    assert "From nine to five" in str(run_tool(service, found, {"url": website, "raw": True}))


def test_a_result_with_an_image_is_returned(service: Service) -> None:
    with service.admin(USER) as http:
        [tool] = http.get("/tools", params={"name": "get-tiny-image"}).json()["items"]
    kinds = [block["type"] for block in run_tool(service, {"tool_key": tool["id"]}, {})["content"]]
    assert "image" in kinds


def test_a_models_tool_call_runs_the_tool(service: Service) -> None:
    with service.admin(USER) as http:
        found = http.post("/discover", json={"query": "add two numbers", "format": "openai"}).json()
        function = next(d["function"] for d in found["definitions"] if d["function"]["name"] == "get-sum")
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": function["name"], "arguments": '{"a":2,"b":3}'},
        }
        answer = http.post("/execute", json={"tool_call": call})
    assert answer.status_code == 200, answer.text
    assert "5" in answer.json()["result"]["content"][0]["text"]


def test_progress_of_a_long_operation_is_streamed(service: Service) -> None:
    with service.admin(USER) as http:
        [tool] = http.get("/tools", params={"name": "trigger-long-running-operation"}).json()["items"]
        body = {"tool_key": tool["id"], "arguments": {"duration": 1, "steps": 4}}
        with http.stream("POST", "/execute", json=body, headers={"Accept": "text/event-stream"}) as answer:
            events = list(parse_events(answer.iter_lines()))
    assert [kind for kind, _ in events] == ["progress"] * 4 + ["result"]
    assert [data["progress"] for kind, data in events if kind == "progress"] == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    with service.admin() as http:
        created: str = http.post("/keys", json={"kind": "user", "user_id": USER}).json()["key"]
    return created


def test_the_inspector_lists_discovers_and_executes(service: Service, key: str) -> None:
    listed = run_inspector(service, key, "--method", "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == ["tool_discovery", "tool_execute"]
    found = run_inspector(service, key, *call_options("tool_discovery", query=["add two numbers"]))["structuredContent"]
    best = found["results"][0]
    assert (best["serverName"], best["toolName"]) == ("everything", "get-sum")
    executed = run_inspector(
        service, key, *call_options("tool_execute", toolKey=best["toolKey"], arguments={"a": 2, "b": 3})
    )
    assert executed["content"] == [{"type": "text", "text": "The sum of 2 and 3 is 5."}]


def call_options(tool: str, **arguments: Any) -> list[str]:
    pairs = [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
    return ["--method", "tools/call", "--tool-name", tool, "--tool-arg", *pairs]


def run_inspector(service: Service, key: str, *arguments: str) -> Json:
    """Return the JSON that the command line of the MCP Inspector prints."""
    command_line = [*node_command(), str(INSPECTOR), "--cli", f"{service.url}/mcp", "--transport", "http", *arguments]
    command_line += ["--header", f"Authorization: Bearer {key}"]
    completed = subprocess.run(
        command_line,
        cwd=INSPECTOR.parent,  # it finds its package.json only from there
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    printed: Json = json.loads(completed.stdout)
    return printed


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_gets_the_progress_of_a_long_operation(service: Service, key: str, mode: Mode) -> None:
    reports: list[tuple[float, float | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total))

    async with connect_client(f"{service.url}/mcp", key, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["tool_discovery", "tool_execute"]
        call = {
            "toolKey": await find_key_over_mcp(client, "a long running operation", "trigger-long-running-operation"),
            "arguments": {"duration": 0.4, "steps": 4},
        }
        result = await client.call_tool("tool_execute", call, progress_callback=report)
        assert reports == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert "operation completed" in get_text(result)


@pytest.mark.parametrize("mode", MODES)
async def test_results_reach_a_client_unchanged(service: Service, key: str, mode: Mode) -> None:
    async with connect_client(f"{service.url}/mcp", key, mode) as client:
        echoed = await run_over_mcp(client, "echo back the input", "echo", {"message": "Good morning, Ada"})
        assert get_text(echoed) == "Echo: Good morning, Ada"
        [picture] = [
            block
            for block in (await run_over_mcp(client, "get a tiny image", "get-tiny-image", {})).content
            if isinstance(block, ImageContent)
        ]
        assert picture.mime_type == "image/png"
        assert base64.b64decode(picture.data).startswith(b"\x89PNG")
        weather = await run_over_mcp(client, "structured content", "get-structured-content", {"location": "Chicago"})
        assert weather.structured_content is not None
        assert weather.structured_content.keys() == {"temperature", "conditions", "humidity"}
        failed = await run_over_mcp(client, "compress a file", "gzip-file-as-resource", {"data": "ftp://here/file"})
        assert failed.is_error
        assert "Unsupported URL protocol" in get_text(failed)


async def test_tools_that_require_elicitation_are_not_listed(service: Service, key: str, everything: str) -> None:
    """The server speaks the older protocol, whose questions to the user are not forwarded."""
    eliciting = {"trigger-elicitation-request", "trigger-url-elicitation"}
    async with connect_client(f"http://{everything}/mcp", "none", elicitation_callback=decline) as client:
        assert eliciting <= {tool.name for tool in (await client.list_tools()).tools}
    async with connect_client(f"{service.url}/mcp/full", key, elicitation_callback=decline) as client:
        listed = await client.call_tool("list_tools", {"server": "everything"})
    assert listed.structured_content is not None
    names = {tool["name"] for tool in listed.structured_content["tools"]}
    assert "echo" in names
    assert not eliciting & names


async def decline(*_: object) -> ElicitResult:
    return ElicitResult(action="decline")


async def run_over_mcp(client: Client, message: str, name: str, arguments: Json) -> CallToolResult:
    tool_key = await find_key_over_mcp(client, message, name)
    return await client.call_tool("tool_execute", {"toolKey": tool_key, "arguments": arguments})


async def find_key_over_mcp(client: Client, message: str, name: str) -> str:
    """Return the key of the tool, which must be among the first three results."""
    found = await client.call_tool("tool_discovery", {"query": [message]})
    assert found.structured_content is not None
    by_name = {tool["toolName"]: tool["toolKey"] for tool in found.structured_content["results"][:3]}
    assert name in by_name
    return str(by_name[name])


def test_reindexing_unchanged_servers_embeds_nothing(service: Service) -> None:
    with service.admin(USER) as http:
        runs = [
            http.post(f"/servers/{server['id']}/reindex", params={"wait": True}).json()
            for server in http.get("/servers").json()["items"]
        ]
    assert {run["state"] for run in runs} == {"succeeded"}
    assert {(run["counts"]["added"], run["counts"]["changed"], run["counts"]["embedded"]) for run in runs} == {
        (0, 0, 0)
    }


def test_the_commands_list_reindex_and_execute(service: Service, settings: dict[str, str]) -> None:
    listed = run_command(service, settings, "server", "list", "--user", USER)
    assert sorted(line.split()[0] for line in listed.stdout.splitlines()) == ["everything", "fetch", "git", "time"]
    assert listed.stdout.count("connected") == 4
    reindexed = run_command(service, settings, "server", "reindex", "time", "--user", USER)
    assert "2 unchanged" in reindexed.stdout
    executed = run_command(service, settings, "execute", "time.convert_time", TOKYO_TO_LONDON, "--user", USER)
    assert "Europe/London" in executed.stdout


TOKYO_TO_LONDON = '{"source_timezone": "Asia/Tokyo", "time": "21:00", "target_timezone": "Europe/London"}'


def test_a_server_added_from_a_terminal_is_indexed_when_the_command_ends(
    service: Service, settings: dict[str, str], everything: str
) -> None:
    with service.admin("walker") as http:
        http.get("/tools")  # a user is created on first use
    url = f"http://{everything}/mcp"
    added = run_command(
        service, settings, "server", "add", "all", url, "--user", "walker", "--header", "X-Token=secret"
    )
    assert "added" in added.stdout
    with service.admin("walker") as http:
        [server] = http.get("/servers").json()["items"]
    assert (server["status"], server["header_names"]) == ("connected", ["X-Token"])
    assert server["tool_count"] > 10
    assert "removed" in run_command(service, settings, "server", "remove", "all", "--user", "walker").stdout
    with service.admin("walker") as http:
        assert http.get("/servers").json()["items"] == []


def test_the_error_for_a_missing_argument_names_it(service: Service, settings: dict[str, str]) -> None:
    failed = run_command(service, settings, "execute", "time.get_current_time", "{}", "--user", USER, check=False)
    assert failed.returncode != 0
    assert "'timezone' is a required property" in failed.stderr + failed.stdout


def run_command(
    service: Service, settings: dict[str, str], *arguments: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "TOOLSCOUT_DATA_DIR": str(service.folder / "data"), **settings}
    command_line = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command_line, env=environment, capture_output=True, text=True, check=check, timeout=60)


def test_no_program_outlives_the_service(tmp_path: Path, settings: dict[str, str]) -> None:
    with running_service(tmp_path, settings) as running, running.admin(USER) as http:
        server_id = http.post("/servers", json={"name": "time", "transport": "stdio"}).json()["id"]
        wait_until_indexed(http, server_id)
        [started] = [
            child
            for child in psutil.Process(running.process.pid).children()
            if "mcp-server-time" in str(child.cmdline())
        ]
    started.wait(timeout=5)
    assert not started.is_running()

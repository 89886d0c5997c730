"""Programs that the operator has listed, run and spoken to over stdio; and the file that lists them."""

import asyncio
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp.client import stdio

from app.errors import ConfigurationError, InvalidInput, ServerUnreachable, ToolFailed, ToolTimedOut
from app.mcp_client import connection
from app.mcp_client.stdio_servers import StdioProgram, StdioServerRegistry
from tests.support.mcp_pool import endpoint, reaching, until, within

pytestmark = pytest.mark.usefixtures("nothing_forgotten")

CANARY = "canary-77aa"

# By which the SDK ends a program that stays, and how long it gives each.
_WAITED_FOR = ("_WRITER_FLUSH_TIMEOUT", "_KILL_REAP_TIMEOUT")
_WAITED_OUT = ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT")
STEPS = {name: getattr(stdio, name) for name in (*_WAITED_FOR, *_WAITED_OUT)}


@pytest.fixture(autouse=True)
def _hastily(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in _WAITED_OUT:
        monkeypatch.setattr(stdio, step, STEPS[step] / 10)


WITH_THE_SDK = """
    import os
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("tiny")

    @server.tool()
    def add(a: int, b: int) -> int:
        "Adds."
        return a + b

    server.run("stdio")
"""

# Starts in a twentieth of the time, and can be made to misbehave.
BY_HAND = """
    import json, os, signal, sys, time

    def say(message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def answer(method, params):
        if method == "initialize":
            server = {"name": "by-hand", "version": "1"}
            return {"protocolVersion": "2025-11-25", "serverInfo": server, "capabilities": {"tools": {}}}
        if method == "tools/list":
            return {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
        if params["name"] == "exit":
            os._exit(1)
        if params["name"] == "sleep":
            time.sleep(30)
        seen = {"environ": dict(os.environ), "argv": sys.argv[1:], "pid": os.getpid()}
        return {"content": [], "structuredContent": seen}

    METHODS = {"initialize", "tools/list", "tools/call"}
    BEFORE
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "tools/call":
            with open(sys.argv[1], "a") as log:
                log.write(message["params"]["name"] + " ")
        if message.get("method") in METHODS:
            say({"id": message["id"], "result": answer(message["method"], message.get("params"))})
        elif "id" in message:
            say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    AFTER
"""

Listed = Callable[..., StdioServerRegistry]


class Log:
    """Of the calls that have arrived at the program."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def calls(self) -> list[str]:
        return self.path.read_text().split()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


@pytest.fixture
def listed(tmp_path: Path, log: Log) -> Listed:
    """The operator's file with one program in it."""

    def write(script: str = BY_HAND, before: str = "", after: str = "", **program: Any) -> StdioServerRegistry:
        code = tmp_path / "server.py"
        code.write_text(textwrap.dedent(script).replace("BEFORE", before).replace("AFTER", after))
        argv = [sys.executable, str(code), str(log.path), *program.pop("arguments", [])]
        file = tmp_path / "stdio.json"
        file.write_text(json.dumps({"tiny": {"argv": argv, **program}}))
        return StdioServerRegistry.read(file)

    return write


TINY = endpoint("tiny")


async def test_a_server_made_with_the_sdk_is_listed_and_called(listed: Listed) -> None:
    async with reaching(operators=listed(WITH_THE_SDK)) as mcp_pool:
        [found] = await mcp_pool.list_tools(TINY)
        assert (found["name"], found["description"]) == ("add", "Adds.")
        result = await mcp_pool.call_tool(TINY, "add", {"a": 2, "b": 3}, 60)
        assert (result["structuredContent"], result["isError"]) == ({"result": 5}, False)
        result = await mcp_pool.call_tool(TINY, "add", {"a": "two"}, 60)
        assert result["isError"]


async def test_a_program_gets_what_the_operator_gives_it_and_none_of_our_secrets(
    listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "DATABASE_URL", "TOOLSCOUT_SECRET_KEY", "TOOLSCOUT_ADMIN_API_KEY"):
        monkeypatch.setenv(name, CANARY)
    given = {"TOKEN": "a b $HOME `id` ü", "EMPTY": "", "USER": "tiny"}
    arguments = ["$HOME", "`id`", "; exit", "*", "", "ü"]
    async with reaching(operators=listed(env=given, arguments=arguments)) as mcp_pool:
        seen = (await mcp_pool.call_tool(TINY, "look", {}, 60))["structuredContent"]
    assert seen["argv"][1:] == arguments
    assert CANARY not in json.dumps(seen)
    usual = {name: os.environ[name] for name in ("HOME", "LOGNAME", "PATH", "SHELL", "TERM") if name in os.environ}
    by_python = {"LC_CTYPE": seen["environ"].get("LC_CTYPE", "")} if "LC_CTYPE" in seen["environ"] else {}
    assert seen["environ"] == {**usual, **by_python, **given}


async def test_a_program_runs_once_for_all_and_is_gone_after(listed: Listed) -> None:
    async with reaching(operators=listed()) as mcp_pool:
        results = await asyncio.gather(*[mcp_pool.call_tool(TINY, "look", {}, 60) for _ in range(5)])
        pids = {result["structuredContent"]["pid"] for result in results}
        assert len(pids) == 1
        assert psutil.pid_exists(*pids)
    assert not psutil.pid_exists(*pids)


async def test_what_a_program_says_beside_the_protocol_is_ignored(
    listed: Listed, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    banner = f'print("{CANARY}"); print("{{}}"); print("[1, "); print("{CANARY}", file=sys.stderr, flush=True)'
    async with reaching(operators=listed(before=banner)) as mcp_pool:
        assert await mcp_pool.list_tools(TINY)
    assert CANARY not in "".join(capfd.readouterr())
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ("sys.exit(3)", "closed"),
        (f"print('{CANARY}'); sys.exit()", "closed"),
        (f"print('{CANARY}', flush=True); time.sleep(30)", "timeout"),
        ("time.sleep(30)", "timeout"),
    ],
)
async def test_a_program_that_does_not_speak_mcp_is_left(listed: Listed, before: str, cause: str) -> None:
    # to start a program and see it end takes its time on a busy machine
    connect_s = 0.5 if cause == "timeout" else 60.0
    async with reaching(operators=listed(before=before), connect_s=connect_s) as mcp_pool:
        with within(6), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(TINY)
        assert (failure.value.cause, CANARY in failure.value.message) == (cause, False)
    assert running_programs() == []


async def test_the_operator_is_told_what_a_program_said_that_does_not_start(
    listed: Listed, caplog: pytest.LogCaptureFixture
) -> None:
    before = "print('noise\\x1b[31m ' * 50_000, file=sys.stderr); no_such_name"
    async with reaching(operators=listed(before=before), connect_s=60.0) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(TINY)
    [told] = [record for record in caplog.records if "does not start" in record.message]
    said = str(vars(told)["said"])
    assert "NameError: name 'no_such_name' is not defined" in said
    assert "\x1b" not in said
    assert len(said) <= 2_000
    assert "no_such_name" not in failure.value.message
    assert vars(told)["server"] == TINY.server_name


def running_programs() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _runs_a_server(child)]


def _runs_a_server(process: psutil.Process) -> bool:
    try:
        return "server.py" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return False


@pytest.mark.parametrize("argv", [["/nowhere/to/be/found", CANARY], ["/"], [""]])
async def test_a_program_that_cannot_be_started_says_so(argv: list[str]) -> None:
    async with reaching(operators=StdioServerRegistry({"tiny": StdioProgram(argv=argv)})) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(TINY)
    assert failure.value.cause == "refused"
    assert not any(word and word in failure.value.message for word in [*argv[:1], CANARY])


async def test_a_program_that_ends_when_asked_for_the_newer_protocol_is_greeted_in_the_older(listed: Listed) -> None:
    bears_nothing_else = 'assert "initialize" in (first := sys.stdin.readline())'
    answer_it = "say({'id': json.loads(first)['id'], 'result': answer('initialize', {})})"
    async with reaching(operators=listed(before=f"{bears_nothing_else}; {answer_it}")) as mcp_pool:
        assert await mcp_pool.list_tools(TINY)


async def test_a_program_that_is_listed_no_more_cannot_be_reached(listed: Listed) -> None:
    async with reaching(operators=listed()) as mcp_pool:
        with pytest.raises(ServerUnreachable, match="'other'") as failure:
            await mcp_pool.list_tools(endpoint("other"))
        assert failure.value.cause == "not_listed"
        assert await mcp_pool.list_tools(TINY)


async def test_a_call_that_ends_its_program_is_not_repeated_and_the_next_starts_it_again(
    listed: Listed, log: Log
) -> None:
    async with reaching(operators=listed()) as mcp_pool:
        await mcp_pool.list_tools(TINY)
        with within(3), pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(TINY, "exit", {}, 60)
        assert failure.value.outcome == "unknown"
        assert log.calls == ["exit"]
        assert await mcp_pool.call_tool(TINY, "look", {}, 60)
    assert log.calls == ["exit", "look"]


async def test_a_program_that_died_between_two_calls_is_started_again(listed: Listed, log: Log) -> None:
    async with reaching(operators=listed()) as mcp_pool:
        first = (await mcp_pool.call_tool(TINY, "look", {}, 60))["structuredContent"]["pid"]
        psutil.Process(first).kill()
        await until(lambda: not psutil.pid_exists(first))
        for _ in range(10):  # until its end of the pipe was read, nobody knows that it is dead
            await asyncio.sleep(0.005)
        assert (await mcp_pool.call_tool(TINY, "look", {}, 60))["structuredContent"]["pid"] != first
    assert log.calls == ["look", "look"]


async def test_a_call_of_a_program_has_its_deadline(listed: Listed) -> None:
    async with reaching(operators=listed()) as mcp_pool:
        await mcp_pool.list_tools(TINY)
        with within(1.5), pytest.raises(ToolTimedOut) as failure:
            await mcp_pool.call_tool(TINY, "sleep", {}, 0.2)
        assert failure.value.outcome == "unknown"
        with within(1.5):
            assert await mcp_pool.call_tool(TINY, "look", {}, 60)


@pytest.mark.parametrize("opened", [True, False])
async def test_a_program_that_does_not_want_to_go_is_made_to(
    listed: Listed, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """By steps of the SDK's, which are not broken off."""
    assert sum(STEPS.values()) < connection._STOPPING_S
    monkeypatch.setattr(connection, "_CLOSING_S", 0.1)
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    if not opened:
        stubborn += "; time.sleep(30)"
    async with reaching(operators=listed(before=stubborn, after="time.sleep(30)")) as mcp_pool:
        asking = asyncio.create_task(mcp_pool.list_tools(TINY))
        await (asking if opened else until(running_programs))
        assert len(running_programs()) == 1
        with within(3):
            await mcp_pool.aclose()
        assert running_programs() == []
        await asyncio.gather(asking, return_exceptions=True)


async def test_only_a_listed_program_can_be_chosen(listed: Listed) -> None:
    operators = listed()
    operators.check("tiny")
    for stranger in ("", "Tiny", "server.py", "../tiny"):
        with pytest.raises(InvalidInput):
            operators.check(stranger)
    with pytest.raises(InvalidInput):
        StdioServerRegistry.read(None).check("tiny")


BAD_FILES = {
    "not_json": f'{{"tiny": {{"argv": ["{CANARY}"]',
    "not_text": b"\xff\xfe" + CANARY.encode(),
    "a_list": f'["{CANARY}"]',
    "no_argv": f'{{"tiny": {{"env": {{"TOKEN": "{CANARY}"}}}}}}',
    "empty_argv": '{"tiny": {"argv": []}}',
    "argv_of_numbers": f'{{"tiny": {{"argv": [7, "{CANARY}"]}}}}',
    "a_command_line": f'{{"tiny": {{"argv": "run --key {CANARY}"}}}}',
    "a_number_for_a_secret": f'{{"tiny": {{"argv": ["run"], "env": {{"TOKEN": ["{CANARY}"]}}}}}}',
    "unknown_field": f'{{"tiny": {{"argv": ["run"], "environment": {{"TOKEN": "{CANARY}"}}}}}}',
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_without_telling_what_is_in_it(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "stdio.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_STDIO_SERVERS") as failure:
        StdioServerRegistry.read(file)
    assert CANARY not in "".join(traceback.format_exception(failure.value))


def test_a_bad_file_is_refused_with_the_place_of_its_error(tmp_path: Path) -> None:
    file = tmp_path / "stdio.json"
    file.write_text('{"tiny": {"argv": ["run"], "env": {"TOKEN": 7}}}')
    with pytest.raises(ConfigurationError, match=r"tiny\.env\.TOKEN"):
        StdioServerRegistry.read(file)
    with pytest.raises(ConfigurationError, match="No such file"):
        StdioServerRegistry.read(tmp_path / "missing.json")

"""Tests of stdio servers: the programs that the operator lists, and the file that lists them."""

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
from app.indexing.parsing import parse_listing
from app.mcp_client import connection
from app.mcp_client.stdio_servers import StdioProgram, StdioServerRegistry
from tests.support.mcp_pool import make_endpoint, running_pool, wait_until, within
from tests.support.stdio_programs import MINIMAL_SERVER, SDK_SERVER

pytestmark = pytest.mark.usefixtures("no_event_loop_errors")

CANARY = "canary-77aa"

# The timeouts of the steps in which the SDK stops a program.
_CLEANUP_TIMEOUTS = ("_WRITER_FLUSH_TIMEOUT", "_KILL_REAP_TIMEOUT")
_GRACE_TIMEOUTS = ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT")
SDK_TIMEOUTS = {name: getattr(stdio, name) for name in (*_CLEANUP_TIMEOUTS, *_GRACE_TIMEOUTS)}


@pytest.fixture(autouse=True)
def _short_sdk_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in _GRACE_TIMEOUTS:
        monkeypatch.setattr(stdio, step, SDK_TIMEOUTS[step] / 10)


WriteRegistry = Callable[..., StdioServerRegistry]


class CallLog:
    """The calls that have reached the program."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def calls(self) -> list[str]:
        return self.path.read_text().split()


@pytest.fixture
def log(tmp_path: Path) -> CallLog:
    return CallLog(tmp_path / "log")


@pytest.fixture
def write_registry(tmp_path: Path, log: CallLog) -> WriteRegistry:
    """Writes the operator's file with one program and reads it."""

    def write(script: str = MINIMAL_SERVER, before: str = "", after: str = "", **program: Any) -> StdioServerRegistry:
        code = tmp_path / "server.py"
        code.write_text(textwrap.dedent(script).replace("BEFORE", before).replace("AFTER", after))
        argv = [sys.executable, str(code), str(log.path), *program.pop("arguments", [])]
        file = tmp_path / "stdio.json"
        file.write_text(json.dumps({"tiny": {"argv": argv, **program}}))
        return StdioServerRegistry.read(file)

    return write


TINY = make_endpoint("tiny")


async def test_a_server_made_with_the_sdk_is_listed_and_called(write_registry: WriteRegistry) -> None:
    async with running_pool(stdio_servers=write_registry(SDK_SERVER)) as mcp_pool:
        [found] = await mcp_pool.list_tools(TINY)
        assert (found["name"], found["description"]) == ("add", "Adds.")
        result = await mcp_pool.call_tool(TINY, "add", {"a": 2, "b": 3}, 60)
        assert (result["structuredContent"], result["isError"]) == ({"result": 5}, False)
        result = await mcp_pool.call_tool(TINY, "add", {"a": "two"}, 60)
        assert result["isError"]


async def test_half_an_emoji_makes_neither_a_listing_nor_a_result_unreadable(write_registry: WriteRegistry) -> None:
    owls = """
    def answer(method, params, answer=answer):
        if method == "tools/list":
            schema = {"type": "object"}
            return {"tools": [{"name": "cut", "description": "An owl \\ud83e", "inputSchema": schema},
                              {"name": "look", "description": "An owl \\U0001f989", "inputSchema": schema}]}
        if method == "tools/call":
            return {"content": [{"type": "text", "text": "An owl \\udd89"}]}
        return answer(method, params)
    """
    registry = write_registry(before=textwrap.dedent(owls))
    async with running_pool(stdio_servers=registry) as mcp_pool:
        listing = parse_listing(await mcp_pool.list_tools(TINY), max_tools=10)
        assert [(tool.definition.name, tool.definition.description) for tool in listing.tools] == [
            ("look", "An owl 🦉")
        ]
        assert [refused.name for refused in listing.refused] == ["cut"]
        result = await mcp_pool.call_tool(TINY, "look", {}, 60)
        assert result["content"] == [{"type": "text", "text": "An owl \ufffd"}]


async def test_a_program_gets_the_operators_environment_and_none_of_our_secrets(
    write_registry: WriteRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "DATABASE_URL", "TOOLSCOUT_SECRET_KEY", "TOOLSCOUT_ADMIN_API_KEY"):
        monkeypatch.setenv(name, CANARY)
    env = {"TOKEN": "a b $HOME `id` ü", "EMPTY": "", "USER": "tiny"}
    arguments = ["$HOME", "`id`", "; exit", "*", "", "ü"]
    async with running_pool(stdio_servers=write_registry(env=env, arguments=arguments)) as mcp_pool:
        environment = (await mcp_pool.call_tool(TINY, "look", {}, 60))["structuredContent"]
    assert environment["argv"][1:] == arguments
    assert CANARY not in json.dumps(environment)
    inherited = {name: os.environ[name] for name in ("HOME", "LOGNAME", "PATH", "SHELL", "TERM") if name in os.environ}
    set_by_python = (
        {"LC_CTYPE": environment["environ"].get("LC_CTYPE", "")} if "LC_CTYPE" in environment["environ"] else {}
    )
    assert environment["environ"] == {**inherited, **set_by_python, **env}


async def test_a_program_is_shared_and_stopped_with_the_pool(write_registry: WriteRegistry) -> None:
    async with running_pool(stdio_servers=write_registry()) as mcp_pool:
        results = await asyncio.gather(*[mcp_pool.call_tool(TINY, "look", {}, 60) for _ in range(5)])
        pids = {result["structuredContent"]["pid"] for result in results}
        assert len(pids) == 1
        assert psutil.pid_exists(*pids)
    assert not psutil.pid_exists(*pids)


async def test_output_that_is_not_mcp_is_ignored(
    write_registry: WriteRegistry, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    banner = f'print("{CANARY}"); print("{{}}"); print("[1, "); print("{CANARY}", file=sys.stderr, flush=True)'
    async with running_pool(stdio_servers=write_registry(before=banner)) as mcp_pool:
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
async def test_a_program_that_does_not_speak_mcp_is_stopped(
    write_registry: WriteRegistry, before: str, cause: str
) -> None:
    # starting a program and noticing its exit takes time on a busy machine
    connect_s = 0.5 if cause == "timeout" else 60.0
    async with running_pool(stdio_servers=write_registry(before=before), connect_s=connect_s) as mcp_pool:
        with within(6), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(TINY)
        assert (failure.value.cause, CANARY in failure.value.message) == (cause, False)
    assert running_programs() == []


async def test_the_stderr_of_a_program_that_fails_to_start_is_logged(
    write_registry: WriteRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    before = "print('noise\\x1b[31m ' * 50_000, file=sys.stderr); no_such_name"
    async with running_pool(stdio_servers=write_registry(before=before), connect_s=60.0) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(TINY)
    [logged] = [record for record in caplog.records if "failed to start" in record.message]
    stderr = str(vars(logged)["stderr"])
    assert "NameError: name 'no_such_name' is not defined" in stderr
    assert "\x1b" not in stderr
    assert len(stderr) <= 2_000
    assert "no_such_name" not in failure.value.message
    assert vars(logged)["server"] == TINY.server_name


def running_programs() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_test_server(child)]


def _is_test_server(process: psutil.Process) -> bool:
    try:
        return "server.py" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has just exited
        return False


@pytest.mark.parametrize("argv", [["/nowhere/to/be/found", CANARY], ["/"], [""]])
async def test_a_program_that_cannot_be_started_is_refused(argv: list[str]) -> None:
    async with running_pool(stdio_servers=StdioServerRegistry({"tiny": StdioProgram(argv=argv)})) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(TINY)
    assert failure.value.cause == "refused"
    assert not any(word and word in failure.value.message for word in [*argv[:1], CANARY])


async def test_a_program_that_exits_on_the_newer_handshake_gets_the_older_one(write_registry: WriteRegistry) -> None:
    require_initialize = 'assert "initialize" in (first := sys.stdin.readline())'
    answer_initialize = "send({'id': json.loads(first)['id'], 'result': answer('initialize', {})})"
    async with running_pool(
        stdio_servers=write_registry(before=f"{require_initialize}; {answer_initialize}")
    ) as mcp_pool:
        assert await mcp_pool.list_tools(TINY)


async def test_a_program_that_is_no_longer_listed_is_unreachable(write_registry: WriteRegistry) -> None:
    async with running_pool(stdio_servers=write_registry()) as mcp_pool:
        with pytest.raises(ServerUnreachable, match="'other'") as failure:
            await mcp_pool.list_tools(make_endpoint("other"))
        assert failure.value.cause == "not_listed"
        assert await mcp_pool.list_tools(TINY)


async def test_a_call_that_crashes_its_program_is_not_repeated_and_the_next_call_restarts_it(
    write_registry: WriteRegistry, log: CallLog
) -> None:
    async with running_pool(stdio_servers=write_registry()) as mcp_pool:
        await mcp_pool.list_tools(TINY)
        with within(3), pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(TINY, "exit", {}, 60)
        assert failure.value.outcome == "unknown"
        assert log.calls == ["exit"]
        assert await mcp_pool.call_tool(TINY, "look", {}, 60)
    assert log.calls == ["exit", "look"]


async def test_a_program_that_died_between_two_calls_is_restarted(write_registry: WriteRegistry, log: CallLog) -> None:
    async with running_pool(stdio_servers=write_registry()) as mcp_pool:
        first = (await mcp_pool.call_tool(TINY, "look", {}, 60))["structuredContent"]["pid"]
        psutil.Process(first).kill()
        await wait_until(lambda: not psutil.pid_exists(first))
        for _ in range(10):  # its death is noticed when the end of the pipe is read
            await asyncio.sleep(0.005)
        assert (await mcp_pool.call_tool(TINY, "look", {}, 60))["structuredContent"]["pid"] != first
    assert log.calls == ["look", "look"]


async def test_a_call_of_a_program_times_out(write_registry: WriteRegistry) -> None:
    async with running_pool(stdio_servers=write_registry()) as mcp_pool:
        await mcp_pool.list_tools(TINY)
        with within(1.5), pytest.raises(ToolTimedOut) as failure:
            await mcp_pool.call_tool(TINY, "sleep", {}, 0.2)
        assert failure.value.outcome == "unknown"
        with within(1.5):
            assert await mcp_pool.call_tool(TINY, "look", {}, 60)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_program_that_ignores_sigterm_is_killed(
    write_registry: WriteRegistry, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    """The SDK stops it in steps, which are not cut short."""
    assert sum(SDK_TIMEOUTS.values()) < connection._STDIO_CLOSE_TIMEOUT_S
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_S", 0.1)
    ignore_sigterm = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    if not connected:
        ignore_sigterm += "; time.sleep(30)"
    async with running_pool(stdio_servers=write_registry(before=ignore_sigterm, after="time.sleep(30)")) as mcp_pool:
        listing = asyncio.create_task(mcp_pool.list_tools(TINY))
        await (listing if connected else wait_until(running_programs))
        assert len(running_programs()) == 1
        with within(3):
            await mcp_pool.aclose()
        assert running_programs() == []
        await asyncio.gather(listing, return_exceptions=True)


async def test_only_a_listed_program_can_be_registered(write_registry: WriteRegistry) -> None:
    registry = write_registry()
    registry.check("tiny", "someone")
    for unlisted in ("", "Tiny", "server.py", "../tiny"):
        with pytest.raises(InvalidInput):
            registry.check(unlisted, "someone")
    with pytest.raises(InvalidInput):
        StdioServerRegistry.read(None).check("tiny", "someone")


INVALID_FILES = {
    "not_json": f'{{"tiny": {{"argv": ["{CANARY}"]',
    "not_text": b"\xff\xfe" + CANARY.encode(),
    "a_list": f'["{CANARY}"]',
    "no_argv": f'{{"tiny": {{"env": {{"TOKEN": "{CANARY}"}}}}}}',
    "empty_argv": '{"tiny": {"argv": []}}',
    "argv_of_numbers": f'{{"tiny": {{"argv": [7, "{CANARY}"]}}}}',
    "argv_as_text": f'{{"tiny": {{"argv": "run --key {CANARY}"}}}}',
    "list_as_secret": f'{{"tiny": {{"argv": ["run"], "env": {{"TOKEN": ["{CANARY}"]}}}}}}',
    "unknown_field": f'{{"tiny": {{"argv": ["run"], "environment": {{"TOKEN": "{CANARY}"}}}}}}',
}


@pytest.mark.parametrize("content", INVALID_FILES.values(), ids=INVALID_FILES.keys())
def test_an_invalid_file_is_rejected_without_quoting_its_content(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "stdio.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_STDIO_SERVERS") as failure:
        StdioServerRegistry.read(file)
    assert CANARY not in "".join(traceback.format_exception(failure.value))


def test_an_invalid_file_is_rejected_with_the_path_of_the_error(tmp_path: Path) -> None:
    file = tmp_path / "stdio.json"
    file.write_text('{"tiny": {"argv": ["run"], "env": {"TOKEN": 7}}}')
    with pytest.raises(ConfigurationError, match=r"tiny\.env\.TOKEN"):
        StdioServerRegistry.read(file)
    with pytest.raises(ConfigurationError, match="No such file"):
        StdioServerRegistry.read(tmp_path / "missing.json")

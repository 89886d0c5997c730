"""Calls of destructive tools need a confirmation of exactly this call, if the operator wants that."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest
from mcp.types import ElicitRequestParams, ElicitResult
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from app.container import Container, open_container
from app.db import retention
from app.execution import confirmations
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.calls import Json, assert_ok, list_executions
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, serve_application
from tests.support.console_client import open_console
from tests.support.factories import make_database, make_settings, outbound_allow, tool
from tests.support.mcp_client import call_meta_tool, connect_client, get_error, get_text
from tests.support.mcp_server import FakeMcpServer
from toolscout_client import AsyncToolscout, ConfirmationRequired

pytestmark = pytest.mark.no_retry

DELETE = tool("delete_file", "Deletes a file.", annotations={"destructiveHint": True})
READ = tool("read_file", "Reads a file.", annotations={"readOnlyHint": True})
WRITE = tool("write_file", "Writes a file.")
KEEP = tool("append_file", "Appends to a file.", annotations={"destructiveHint": False})
ARGUMENTS: Json = {"path": "/srv/canary-51c0", "recursive": True}


@pytest.fixture(scope="module")
async def careful(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, mcp_servers: dict[str, FakeMcpServer]
) -> AsyncIterator[Container]:
    """A service that wants destructive calls confirmed."""
    settings = make_settings(
        tmp_path_factory.mktemp("careful"),
        outbound_allow=outbound_allow(*mcp_servers.values()),
        confirm_destructive=True,
    )
    async with open_container(settings, make_database(postgres)) as opened:
        yield opened


@pytest.fixture
async def ann(careful: Container) -> AsyncIterator[TestUser]:
    async with new_user(careful) as made:
        yield made


@pytest.fixture
def files(mcp: FakeMcpServer) -> FakeMcpServer:
    mcp.tools = [DELETE, READ, WRITE, KEEP]
    return mcp


async def ask(user: TestUser, arguments: Json | None = None, **fields: Any) -> str:
    """Send the call, which needs a confirmation, and return the token."""
    answer = await user.execute("delete_file", ARGUMENTS if arguments is None else arguments, **fields)
    token: str = assert_problem(answer, 409, code="CONFIRMATION_REQUIRED")["confirmation_token"]
    return token


async def test_a_destructive_call_runs_once_it_is_confirmed(
    careful: Container, ann: TestUser, files: FakeMcpServer
) -> None:
    await ann.connect(files)
    refused = assert_problem(await ann.execute("delete_file", ARGUMENTS), 409, code="CONFIRMATION_REQUIRED")
    assert (refused["server"], refused["tool"]) == ("files", "delete_file")
    left = datetime.fromisoformat(refused["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=9) < left <= timedelta(minutes=10, seconds=5)
    assert files.calls == []
    token = refused["confirmation_token"]
    reordered = dict(reversed(ARGUMENTS.items()))
    assert_ok(await ann.execute("delete_file", reordered, confirmation_token=token))
    assert files.calls == [("delete_file", ARGUMENTS)]
    outcomes = [outcome for outcome, _ in await list_executions(careful, ann.id)]
    assert outcomes == ["CONFIRMATION_REQUIRED", "succeeded"]


async def test_a_token_runs_one_call(ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    token = await ask(ann)
    assert_ok(await ann.execute("delete_file", ARGUMENTS, confirmation_token=token))
    again = await ask(ann, confirmation_token=token)
    assert again != token
    assert len(files.calls) == 1


async def test_of_concurrent_calls_with_one_token_one_runs(ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    token = await ask(ann)
    answers = await asyncio.gather(*(ann.execute("delete_file", ARGUMENTS, confirmation_token=token) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409, 409]
    assert len(files.calls) == 1


@pytest.mark.parametrize(
    "arguments", [{}, ARGUMENTS | {"path": "/"}, ARGUMENTS | {"recursive": 1}, ARGUMENTS | {"force": None}]
)
async def test_a_token_does_not_confirm_other_arguments(ann: TestUser, files: FakeMcpServer, arguments: Json) -> None:
    await ann.connect(files)
    token = await ask(ann)
    other = await ask(ann, arguments, confirmation_token=token)
    assert files.calls == []
    assert_ok(await ann.execute("delete_file", arguments, confirmation_token=other))
    assert_ok(await ann.execute("delete_file", ARGUMENTS, confirmation_token=token))
    assert files.calls == [("delete_file", arguments), ("delete_file", ARGUMENTS)]


async def test_a_token_confirms_no_other_tool(ann: TestUser, files: FakeMcpServer) -> None:
    files.tools = [DELETE, {**DELETE, "name": "delete_all"}]
    await ann.connect(files)
    token = await ask(ann)
    answer = await ann.execute("delete_all", ARGUMENTS, confirmation_token=token)
    assert_problem(answer, 409, code="CONFIRMATION_REQUIRED")
    assert_ok(await ann.execute("delete_file", ARGUMENTS, confirmation_token=token))
    assert files.calls == [("delete_file", ARGUMENTS)]


async def test_a_token_does_not_confirm_a_changed_definition(ann: TestUser, files: FakeMcpServer) -> None:
    server_id = await ann.connect(files)
    token = await ask(ann)
    files.tools = [{**DELETE, "_meta": {"version": 2}}]
    await ann.reindex(server_id)
    await ask(ann, confirmation_token=token)
    files.tools = [DELETE]
    await ann.reindex(server_id)
    assert_ok(await ann.execute("delete_file", ARGUMENTS, confirmation_token=token))
    assert files.calls == [("delete_file", ARGUMENTS)]


async def test_a_token_belongs_to_its_user(careful: Container, ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    token = await ask(ann)
    async with new_user(careful) as other:
        await other.connect(files)
        await ask(other, confirmation_token=token)
    assert files.calls == []
    assert_ok(await ann.execute("delete_file", ARGUMENTS, confirmation_token=token))


async def test_a_token_belongs_to_its_project(ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    project = (await ann.http.post("/projects", json={"name": "support", "server_ids": None})).json()["id"]
    token = await ask(ann, project_id=project)
    await ask(ann, confirmation_token=token)
    assert files.calls == []
    assert_ok(await ann.execute("delete_file", ARGUMENTS, project_id=project, confirmation_token=token))


async def test_an_expired_token_confirms_nothing(careful: Container, ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    token = await ask(ann)
    expire_all(careful)
    await ask(ann, confirmation_token=token)
    assert files.calls == []
    deleted = await retention.delete_in_batches(careful.database, confirmations.expired_rows())
    assert deleted >= 1
    assert await count_open(careful, ann) == 1


@pytest.mark.parametrize("token", ["", "invented", "x" * 256, "ünbekannt"])
async def test_an_invented_token_confirms_nothing(ann: TestUser, files: FakeMcpServer, token: str) -> None:
    await ann.connect(files)
    answer = await ann.execute("delete_file", ARGUMENTS, confirmation_token=token)
    problem = assert_problem(answer, 409, code="CONFIRMATION_REQUIRED")
    assert "belongs to another call, was used already, or has expired" in problem["detail"]
    assert files.calls == []


async def test_other_tools_need_no_confirmation(ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    for name in ("read_file", "write_file", "append_file"):
        assert_ok(await ann.execute(name, ARGUMENTS))
    assert len(files.calls) == 3


async def test_own_annotations_decide_before_those_of_the_server(ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    tools = await ann.tools()
    for name, destructive in (("write_file", True), ("delete_file", False)):
        changes = {"annotations": {"destructiveHint": destructive}}
        assert (await ann.http.patch(f"/tools/{tools[name]['id']}", json=changes)).status_code == 200
    assert_problem(await ann.execute("write_file", ARGUMENTS), 409, code="CONFIRMATION_REQUIRED")
    assert_ok(await ann.execute("delete_file", ARGUMENTS))


async def test_without_the_setting_nothing_needs_a_confirmation(user: TestUser, files: FakeMcpServer) -> None:
    await user.connect(files)
    assert_ok(await user.execute("delete_file", ARGUMENTS))
    assert_ok(await user.execute("delete_file", ARGUMENTS, confirmation_token="left over"))
    assert len(files.calls) == 2


async def test_invalid_arguments_are_refused_before_anybody_is_asked(ann: TestUser, files: FakeMcpServer) -> None:
    files.tools = [{**DELETE, "inputSchema": {"type": "object", "required": ["path"]}}]
    await ann.connect(files)
    assert_problem(await ann.execute("delete_file", {}), 422, code="TOOL_VALIDATION_ERROR")
    await ask(ann)


async def send(user: TestUser, key: str, **fields: Any) -> httpx.Response:
    tool_key = (await user.tools())["delete_file"]["id"]
    body = {"tool_key": tool_key, "arguments": ARGUMENTS, **fields}
    return await user.http.post("/execute", json=body, headers={"Idempotency-Key": key})


async def test_a_refusal_does_not_occupy_the_idempotency_key_and_a_replay_needs_no_token(
    ann: TestUser, files: FakeMcpServer
) -> None:
    await ann.connect(files)
    problem = assert_problem(await send(ann, "k"), 409, code="CONFIRMATION_REQUIRED")
    first = assert_ok(await send(ann, "k", confirmation_token=problem["confirmation_token"]))
    assert assert_ok(await send(ann, "k")) == first
    assert assert_ok(await send(ann, "k", confirmation_token=problem["confirmation_token"])) == first
    assert len(files.calls) == 1
    assert_problem(await send(ann, "another"), 409, code="CONFIRMATION_REQUIRED")


async def test_a_stream_begins_after_the_confirmation(ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    body = {"tool_key": (await ann.tools())["delete_file"]["id"], "arguments": ARGUMENTS}
    headers = {"Accept": "text/event-stream"}
    refused = await ann.http.post("/execute", json=body, headers=headers)
    token = assert_problem(refused, 409, code="CONFIRMATION_REQUIRED")["confirmation_token"]
    answer = await ann.http.post("/execute", json=body | {"confirmation_token": token}, headers=headers)
    assert (answer.status_code, "event: result" in answer.text) == (200, True)
    assert len(files.calls) == 1


async def test_the_models_own_form_of_a_call_is_confirmed_as_well(ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    body: Json = {"tool_call": {"type": "tool_use", "name": "delete_file", "input": ARGUMENTS}}
    refused = await ann.http.post("/execute", json=body)
    body["confirmation_token"] = assert_problem(refused, 409, code="CONFIRMATION_REQUIRED")["confirmation_token"]
    assert_ok(await ann.http.post("/execute", json=body))
    assert files.calls == [("delete_file", ARGUMENTS)]


async def query(container: Container, user: TestUser, statement: str) -> list[tuple[Any, ...]]:
    async with container.database.transaction(user.id) as session:
        return await session.rows(statement)


def expire_all(container: Container) -> None:
    """As the owner of the tables: the app may not update confirmations."""
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as owner:
        owner.execute("UPDATE call_confirmations SET expires_at = now()")


async def count_open(container: Container, user: TestUser) -> int:
    [(count,)] = await query(container, user, "SELECT count(*)::int FROM call_confirmations")
    return int(count)


async def test_a_user_has_a_limited_number_of_open_confirmations(
    careful: Container, ann: TestUser, files: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmations, "MAX_OPEN", 3)
    await ann.connect(files)
    tokens = [await ask(ann) for _ in range(5)]
    assert await count_open(careful, ann) == 3
    await ask(ann, confirmation_token=tokens[0])
    assert_ok(await ann.execute("delete_file", ARGUMENTS, confirmation_token=tokens[-1]))


async def test_neither_the_token_nor_the_arguments_are_stored_or_logged(
    careful: Container, ann: TestUser, files: FakeMcpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await ann.connect(files)
    token = await ask(ann)
    stored = await query(careful, ann, "SELECT to_jsonb(c)::text, token_hash, call FROM call_confirmations c")
    events = await query(careful, ann, "SELECT to_jsonb(a)::text FROM audit_events a")
    for secret in (token, "canary-51c0"):
        assert secret not in str(stored)
        assert secret.encode() not in b"".join(bytes(each) for row in stored for each in row[1:])
        assert secret not in str(events)
        assert secret not in caplog.text


# over MCP

FORM: Json = {"_meta": {CLIENT_CAPABILITIES_META_KEY: {"elicitation": {"form": {}}}}}


async def run(user: TestUser, **params: Any) -> Json:
    key = (await user.tools())["delete_file"]["id"]
    extra = params.pop("extra", {})
    return await call_meta_tool(user.http, "tool_execute", {"toolKey": key, "arguments": ARGUMENTS, **extra}, **params)


def accept(answer: Json) -> Json:
    return {"toolscout-confirmation": answer}


async def test_the_client_asks_its_user_and_the_call_runs(
    careful: Container, ann: TestUser, files: FakeMcpServer
) -> None:
    await ann.connect(files)
    questions: list[str] = []

    async def answer(_context: Any, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"confirm": True})

    key = (await ann.tools())["delete_file"]["id"]
    async with (
        serve_application(careful) as address,
        connect_client(f"{address}/mcp", ann.key, elicitation_callback=answer) as client,
    ):
        await client.call_tool("tool_execute", {"toolKey": key, "arguments": ARGUMENTS})
    [question] = questions
    assert "delete_file of files" in question
    assert ARGUMENTS["path"] in question
    assert files.calls == [("delete_file", ARGUMENTS)]


@pytest.mark.parametrize(
    "answer",
    [
        {"action": "decline"},
        {"action": "cancel"},
        {"action": "accept", "content": {"confirm": False}},
        {"action": "accept", "content": {"confirm": "yes"}},
        {"action": "accept"},
    ],
)
async def test_a_call_that_the_user_does_not_confirm_is_not_run(
    ann: TestUser, files: FakeMcpServer, answer: Json
) -> None:
    await ann.connect(files)
    question = await run(ann, **FORM)
    assert question["resultType"] == "input_required"
    state = question["requestState"]
    declined = await run(ann, **FORM, inputResponses=accept(answer), requestState=state)
    assert "the user did not confirm this call: nothing was run" in get_text(declined)
    assert files.calls == []
    confirmed = accept({"action": "accept", "content": {"confirm": True}})
    assert "isError" not in await run(ann, **FORM, inputResponses=confirmed, requestState=state)
    assert len(files.calls) == 1


async def test_an_answer_without_the_state_of_the_question_is_asked_for_again(
    ann: TestUser, files: FakeMcpServer
) -> None:
    await ann.connect(files)
    await run(ann, **FORM)
    confirmed = accept({"action": "accept", "content": {"confirm": True}})
    for state in (None, "toolscout-confirmation", "toolscout-confirmation:invented", "something else"):
        params = {} if state is None else {"requestState": state}
        assert (await run(ann, **FORM, inputResponses=confirmed, **params))["resultType"] == "input_required"
    assert files.calls == []


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}])
async def test_a_client_without_forms_gets_the_token_in_words(
    ann: TestUser, files: FakeMcpServer, capabilities: Json
) -> None:
    await ann.connect(files)
    params = {"_meta": {CLIENT_CAPABILITIES_META_KEY: capabilities}}
    refused = await run(ann, **params)
    error = get_error(refused)
    assert error["code"] == "CONFIRMATION_REQUIRED"
    text = get_text(refused)
    assert repr(error["confirmation_token"]) in text
    assert "ask whether to run it" in text
    assert "Never confirm by yourself" in text
    extra = {"confirmationToken": error["confirmation_token"]}
    assert "isError" not in await run(ann, **params, extra=extra)
    assert files.calls == [("delete_file", ARGUMENTS)]


def ask_for_a_name(mcp: FakeMcpServer) -> Callable[[Json], Json]:
    """Return a handler that asks its own question before it runs."""
    requests = {"name": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": NAME}}}

    def handle(_arguments: Json) -> Json:
        params = [each.params for each in mcp.requests if each.rpc_method == "tools/call"][-1]
        if "inputResponses" not in params:
            return {"resultType": "input_required", "inputRequests": requests, "requestState": "a:b"}
        return {"content": [{"type": "text", "text": f"{params['requestState']} {sorted(params['inputResponses'])}"}]}

    return handle


NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


async def test_a_question_of_the_server_continues_the_confirmed_call(ann: TestUser, files: FakeMcpServer) -> None:
    files.on_call["delete_file"] = ask_for_a_name(files)
    await ann.connect(files)
    question = await run(ann, **FORM)
    confirmed = accept({"action": "accept", "content": {"confirm": True}})
    asked = await run(ann, **FORM, inputResponses=confirmed, requestState=question["requestState"])
    assert list(asked["inputRequests"]) == ["name"]
    responses = {"name": {"action": "accept", "content": {"name": "ann"}}}
    done = await run(ann, **FORM, inputResponses=responses, requestState=asked["requestState"])
    assert get_text(done) == "a:b ['name']"
    again = await run(ann, **FORM, inputResponses=responses, requestState=asked["requestState"])
    assert list(again["inputRequests"]) == ["toolscout-confirmation"], "the state continues one call"
    assert len(files.calls) == 2


async def test_the_console_asks_with_a_button(careful: Container, ann: TestUser, files: FakeMcpServer) -> None:
    await ann.connect(files)
    path = f"/console/tools/{(await ann.tools())['delete_file']['id']}/run"
    async with open_console(careful, ann.key) as console:
        asked = await console.submit(path, arguments='{"path": "/srv/x"}')
        assert (asked.status_code, "Confirm and run" in asked.text) == (409, True)
        token = asked.text.split('name="confirmation_token" value="')[1].split('"')[0]
        assert files.calls == []
        done = await console.submit(path, arguments='{"path": "/srv/x"}', confirmation_token=token)
        assert (done.status_code, "succeeded" in done.text) == (200, True)
    assert files.calls == [("delete_file", {"path": "/srv/x"})]


async def test_the_python_client_raises_an_error_with_the_token(
    careful: Container, ann: TestUser, files: FakeMcpServer
) -> None:
    await ann.connect(files)
    key = (await ann.tools())["delete_file"]["id"]
    async with serve_application(careful) as address, AsyncToolscout(address, ann.key) as client:
        with pytest.raises(ConfirmationRequired) as raised:
            await client.execute(key, ARGUMENTS)
        required = raised.value
        assert (required.code, required.status, required.tool) == ("CONFIRMATION_REQUIRED", 409, "delete_file")
        assert required.expires_at is not None
        assert required.expires_at > datetime.now(UTC)
        assert files.calls == []
        await client.execute(key, ARGUMENTS, confirmation_token=required.token)
    assert files.calls == [("delete_file", ARGUMENTS)]

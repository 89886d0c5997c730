"""Tests of the hook for LiteLLM: called by the real `litellm` with a fake model, and as its proxy calls it."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import litellm
import pytest
from litellm.proxy._types import UserAPIKeyAuth
from litellm.types.utils import CallTypes

from examples.fake_model import FakeModel, running_fake_model
from tests.support.clients import TestUser
from tests.support.mcp_server import FakeMcpServer
from tests.support.weather_server import DELETE_MESSAGE, MESSAGE
from toolscout_client import AsyncToolscout, ConfirmationRequired
from toolscout_client.adapters.litellm import ToolscoutHook, run_tool_call
from toolscout_client.models import Json

MESSAGES = [{"role": "user", "content": MESSAGE}]
OWN_TOOL = {"type": "function", "function": {"name": "roll_dice", "parameters": {"type": "object", "properties": {}}}}


class RecordingModel(FakeModel):
    """Keeps the requests that it has answered."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Json] = []

    def answer(self, path: str, request: Json, betas: frozenset[str]) -> Json:
        self.requests.append(request)
        return super().answer(path, request, betas)


@pytest.fixture
def model() -> RecordingModel:
    return RecordingModel()


@pytest.fixture
def model_url(model: RecordingModel) -> Iterator[str]:
    with running_fake_model(model) as url:
        yield url


@pytest.fixture
async def service_client(address: str, admin: Any) -> AsyncIterator[AsyncToolscout]:
    key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    async with AsyncToolscout(address, key, verify=False) as client:
        yield client


def install(monkeypatch: pytest.MonkeyPatch, hook: ToolscoutHook) -> None:
    monkeypatch.setattr(litellm, "callbacks", [hook])


def names(request: Json | None) -> list[str]:
    assert request is not None
    return [tool.get("function", tool)["name"] for tool in request.get("tools", [])]


async def complete(url: str, messages: list[Any], **fields: Any) -> Any:
    """Let the real LiteLLM send a chat completion to the fake model."""
    return await litellm.acompletion(
        model="openai/fake", api_base=url, api_key="none", messages=messages, num_retries=0, **fields
    )


async def call_as_proxy(hook: ToolscoutHook, data: Json, call_type: str = "acompletion", **key: Any) -> Json | None:
    return await hook.async_pre_call_hook(
        user_api_key_dict=UserAPIKeyAuth(api_key="sk-test", **key), cache=None, data=data, call_type=call_type
    )


async def test_a_completion_gets_tools_and_the_caller_runs_what_the_model_calls(
    toolscout: AsyncToolscout,
    weather: FakeMcpServer,
    model: RecordingModel,
    model_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, ToolscoutHook(toolscout, limit=1))
    messages: list[Any] = list(MESSAGES)
    reply = (await complete(model_url, messages)).choices[0].message
    assert names(model.requests[0]) == ["get_forecast"]
    [call] = reply.tool_calls
    messages += [reply.model_dump(exclude_none=True), await run_tool_call(toolscout, call)]
    assert messages[-1] == {"role": "tool", "tool_call_id": call.id, "content": "Oslo: snow"}
    answer = (await complete(model_url, messages)).choices[0].message
    assert answer.content == "The tool says: Oslo: snow"
    assert names(model.requests[1]) == ["get_forecast"]
    assert weather.calls == [("get_forecast", {"place": "Oslo"})]


async def test_the_callers_tools_come_first_and_are_never_replaced(
    toolscout: AsyncToolscout,
    weather: FakeMcpServer,
    model: RecordingModel,
    model_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, ToolscoutHook(toolscout, limit=1))
    await complete(model_url, MESSAGES, tools=[OWN_TOOL])
    own_forecast = json.loads(json.dumps(OWN_TOOL).replace("roll_dice", "get_forecast"))
    own_tools = [own_forecast]
    await complete(model_url, MESSAGES, tools=own_tools)
    assert names(model.requests[0]) == ["roll_dice", "get_forecast"]
    assert model.requests[1]["tools"] == [own_forecast] == own_tools


async def test_a_caller_switches_the_hook_off_and_narrows_it(
    toolscout: AsyncToolscout,
    weather: FakeMcpServer,
    model: RecordingModel,
    model_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, ToolscoutHook(toolscout, fill=True, similarity_threshold=0.0))
    metadata: Json = {"toolscout": False, "chat": "7"}
    await complete(model_url, MESSAGES, metadata=metadata)
    assert metadata == {"toolscout": False, "chat": "7"}  # the caller's own is not changed
    await complete(model_url, MESSAGES, metadata={"toolscout": {"limit": 1}})
    await complete(model_url, MESSAGES, metadata={"toolscout": {"server_ids": []}})
    await complete(model_url, MESSAGES, metadata={"toolscout": "?"})
    counts = [len(request.get("tools", [])) for request in model.requests]
    assert counts == [0, 1, 0, 3]


async def test_a_caller_cannot_change_what_the_hook_sets(
    toolscout: AsyncToolscout, weather: FakeMcpServer, user: TestUser
) -> None:
    """With another project, a caller would see tools that the operator of the proxy keeps from it."""
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": [], "optimization": "hybrid"})).json()
    hook = ToolscoutHook(toolscout, fill=True, similarity_threshold=0.0, project_id=project["id"])
    for widened in ({"project_id": None}, {"project_id": ""}, {"limit": 1}):
        data = {"messages": MESSAGES, "metadata": {"toolscout": widened}}
        assert names(await call_as_proxy(hook, data)) == [], widened
    assert len(names(await call_as_proxy(ToolscoutHook(toolscout, fill=True, limit=1), {"messages": MESSAGES}))) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "none", "tools": [OWN_TOOL]},
        {"messages": [{"role": "system", "content": MESSAGE}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:a"}}]}]},
    ],
)
async def test_a_request_that_needs_no_tools_stays_as_it_is(
    toolscout: AsyncToolscout, weather: FakeMcpServer, fields: Json
) -> None:
    hook = ToolscoutHook(toolscout)
    data = {"model": "fake", "messages": MESSAGES, **fields}
    assert await call_as_proxy(hook, dict(data)) == data
    assert names(await call_as_proxy(hook, {"model": "fake", "messages": MESSAGES}))[0] == "get_forecast"


async def test_other_kinds_of_requests_are_left_alone(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    assert await call_as_proxy(ToolscoutHook(toolscout), {"input": MESSAGE}, "aembedding") is None


@pytest.mark.parametrize(
    ("call_type", "data", "schema"),
    [
        ("aresponses", {"input": MESSAGE}, "parameters"),
        ("aresponses", {"input": MESSAGES}, "parameters"),
        ("anthropic_messages", {"messages": MESSAGES}, "input_schema"),
    ],
)
async def test_tools_have_the_format_of_the_requested_api(
    toolscout: AsyncToolscout, weather: FakeMcpServer, call_type: str, data: Json, schema: str
) -> None:
    request = await call_as_proxy(ToolscoutHook(toolscout, limit=1), data, call_type)
    assert request is not None
    [found] = request["tools"]
    assert (found["name"], found[schema]["required"]) == ("get_forecast", ["place"])


async def test_in_the_proxy_the_user_is_that_of_the_key_and_nobody_else(
    service_client: AsyncToolscout, weather: FakeMcpServer, user: TestUser, other_user: TestUser
) -> None:
    hook = ToolscoutHook(service_client, user="key", limit=1)
    data = {"messages": MESSAGES, "user": user.id}
    assert names(await call_as_proxy(hook, dict(data), user_id=user.id)) == ["get_forecast"]
    assert names(await call_as_proxy(hook, dict(data), user_id=other_user.id)) == []
    assert names(await call_as_proxy(hook, dict(data))) == []


async def test_a_trusted_caller_names_the_user_in_the_request(
    service_client: AsyncToolscout, weather: FakeMcpServer, user: TestUser, other_user: TestUser
) -> None:
    hook = ToolscoutHook(service_client, user="request", limit=1)
    assert names(await call_as_proxy(hook, {"messages": MESSAGES, "user": user.id}, user_id="x")) == ["get_forecast"]
    assert names(await call_as_proxy(hook, {"messages": MESSAGES}, end_user_id=user.id)) == ["get_forecast"]
    assert names(await call_as_proxy(hook, {"messages": MESSAGES, "user": other_user.id})) == []
    direct = await hook.async_pre_call_deployment_hook({"messages": MESSAGES, "user": user.id}, CallTypes.acompletion)
    assert names(direct) == ["get_forecast"]


async def test_the_proxys_own_call_of_the_model_is_not_searched_again(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    hook, data = ToolscoutHook(toolscout), {"messages": MESSAGES}
    proxied = {**data, "metadata": {"user_api_key": "a hash"}}
    assert await hook.async_pre_call_deployment_hook(proxied, CallTypes.acompletion) is None
    assert names(await hook.async_pre_call_deployment_hook(data, CallTypes.acompletion))[0] == "get_forecast"


async def test_a_request_is_sent_without_tools_if_toolscout_is_down(
    unreachable_toolscout: AsyncToolscout,
    model: RecordingModel,
    model_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(monkeypatch, ToolscoutHook(unreachable_toolscout))
    reply = await complete(model_url, MESSAGES, tools=[OWN_TOOL])
    assert reply.choices[0].message.tool_calls
    assert names(model.requests[0]) == ["roll_dice"]
    assert "no tools were added: Toolscout failed: connection_failed" in caplog.text


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "Jürgen"},
        {"user": 7},
        {"user": ["a"]},
        {"tools": [{"type": "function", "function": None}]},
        {"tools": 7},
        {"tools": "roll_dice"},
        {"metadata": 7},
        {"metadata": {"toolscout": {"tags": {"a"}}}},
        {"messages": {"a": 1}},
        {"messages": [{"role": "user", "content": MESSAGE, "image": b"1"}]},
        {"messages": [{"role": "user", "content": MESSAGE, "score": float("nan")}]},
        {"messages": [{"role": "user", "content": MESSAGE + "\ud800"}]},
    ],
    ids=str,
)
async def test_a_request_that_the_hook_cannot_read_is_left_to_litellm(
    service_client: AsyncToolscout, user: TestUser, fields: Json, caplog: pytest.LogCaptureFixture
) -> None:
    hook = ToolscoutHook(service_client, user="request")
    data = {"messages": MESSAGES, "user": user.id, **fields}
    for request in (
        await call_as_proxy(hook, dict(data)),
        await hook.async_pre_call_deployment_hook(dict(data), CallTypes.acompletion),
    ):
        assert request is not None
        assert {**request, "metadata": None} == {**data, "metadata": None}
    assert MESSAGE not in caplog.text


async def test_a_slow_toolscout_does_not_hold_a_request_up(
    toolscout: AsyncToolscout, weather: FakeMcpServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert names(await call_as_proxy(ToolscoutHook(toolscout, timeout_s=0), {"messages": MESSAGES})) == []
    assert "no tools were added: Toolscout failed: TimeoutError" in caplog.text


async def test_the_model_gets_errors_as_texts(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_forecast", "arguments": '{"place": 7}'}}
    assert (await run_tool_call(toolscout, call))["content"].startswith("TOOL_VALIDATION_ERROR: ")
    made_up = {"id": "call_1", "type": "function", "function": {"name": "made_up", "arguments": "{}"}}
    assert (await run_tool_call(toolscout, made_up))["content"].startswith("TOOL_NOT_FOUND: ")
    assert weather.calls == []


DELETE_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "delete_station", "arguments": '{"place": "Oslo"}'},
}


@pytest.mark.usefixtures("confirmed_destructive")
async def test_a_call_that_needs_a_confirmation_is_raised_and_runs_with_its_token(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    await toolscout.discover(DELETE_MESSAGE)
    with pytest.raises(ConfirmationRequired) as raised:
        await run_tool_call(toolscout, DELETE_CALL)
    assert weather.calls == []
    message = await run_tool_call(toolscout, DELETE_CALL, confirmation_token=raised.value.token)
    assert message["content"] == "deleted Oslo"


async def test_a_call_stays_within_the_project_of_the_hook(
    toolscout: AsyncToolscout, weather: FakeMcpServer, user: TestUser
) -> None:
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": [], "optimization": "hybrid"})).json()
    message = await run_tool_call(toolscout, DELETE_CALL, project_id=project["id"])
    assert message["content"].startswith("TOOL_NOT_FOUND: ")
    assert weather.calls == []
    assert (await run_tool_call(toolscout, DELETE_CALL))["content"] == "deleted Oslo"


async def test_a_call_that_is_sent_again_with_its_idempotency_key_runs_once(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    messages = [await run_tool_call(toolscout, DELETE_CALL, idempotency_key="chat-7:call_1") for _ in range(2)]
    assert [message["content"] for message in messages] == ["deleted Oslo"] * 2
    assert [name for name, _ in weather.calls] == ["delete_station"]

"""Tests of what adapters make of results, errors and messages."""

import importlib
import json
import re
import sys
from typing import Any

import pytest

from toolscout_client import AuthorizationRequired, ToolFailed, ToolscoutError
from toolscout_client.adapters._calls import (
    CallableTool,
    decode_media,
    describe_error,
    describe_execution,
    describe_result,
    rename_taken,
)
from toolscout_client.adapters._extras import missing_extra
from toolscout_client.adapters._messages import has_user_text, trim_messages
from toolscout_client.models import DiscoveredTool, Execution


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "image", "data": "…", "mimeType": "image/png"}]}, "[image image/png]"),
        ({"content": [{"type": "audio"}]}, "[audio]"),
        ({"content": [{"type": "resource", "resource": {"uri": "a://b", "text": "words"}}]}, "words"),
        ({"content": [{"type": "resource", "resource": {"uri": "a://b", "blob": "…"}}]}, "[resource a://b]"),
        ({"content": [{"type": "resource_link", "name": "n", "uri": "a://b"}]}, "[resource n: a://b]"),
        ({"content": [], "structuredContent": {"grüße": 1}}, '{"grüße": 1}'),
        ({"content": [{"type": "text", "text": "a"}], "structuredContent": {"b": 1}}, "a"),
        ({}, "The tool returned nothing."),
    ],
)
def test_a_result_is_described_in_words(result: dict[str, Any], text: str) -> None:
    assert describe_result(result) == text


def test_a_truncated_result_says_so() -> None:
    done = Execution({"content": [{"type": "text", "text": "a"}]}, "key", "server", 1.0, truncated=True)
    outcome = describe_execution(done)
    assert outcome.text == "a\n[the result was too large and is cut off]"
    assert [block["text"] for block in outcome.blocks] == ["a", "[the result was too large and is cut off]"]


@pytest.mark.parametrize(
    ("block", "decoded"),
    [
        ({"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}, b"hello"),
        ({"type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav"}, b"hello"),
        ({"type": "image", "data": "abcde", "mimeType": "image/png"}, None),
        ({"type": "image", "data": "", "mimeType": "image/png"}, None),
        ({"type": "image", "mimeType": "image/png"}, None),
        ({"type": "image", "data": "aGVsbG8="}, None),
        ({"type": "text", "text": "hello"}, None),
    ],
)
def test_media_that_no_model_would_accept_is_not_passed_on(block: dict[str, Any], decoded: bytes | None) -> None:
    assert decode_media(block) == decoded


def test_a_link_to_the_sign_in_is_given_to_the_model() -> None:
    error = AuthorizationRequired("sign in", code="AUTHORIZATION_REQUIRED", authorization_url="https://a.example/1")
    assert describe_error(error).endswith("call the tool again after that: https://a.example/1")


@pytest.mark.parametrize(
    ("outcome", "cause", "advice"),
    [
        ("unknown", None, "It may have run"),
        ("failed", "push", "trying again will not help"),
        ("failed", "refused", "Try again later"),
    ],
)
def test_a_failure_says_whether_to_try_again(outcome: str, cause: str | None, advice: str) -> None:
    error = ToolFailed("no answer", code="SERVER_CONNECTION_ERROR", outcome=outcome, cause=cause)
    assert advice in describe_error(error)


@pytest.mark.parametrize(
    ("status", "code", "may_have_run"),
    [(500, "internal", True), (200, "unreadable_answer", True), (500, "status_500", True), (404, "not_found", False)],
)
def test_an_answer_that_does_not_say_what_happened_is_no_reason_to_repeat_the_call(
    status: int, code: str, may_have_run: bool
) -> None:
    error = ToolscoutError("no", code=code, status=status)
    assert ("It may have run" in describe_error(error)) is may_have_run


def test_a_missing_framework_names_the_extra_to_install() -> None:
    error = missing_extra("agents", ImportError("no", name="agents"))
    assert str(error).endswith("pip install 'toolscout-client[agents]'")
    assert error.name == "agents"


@pytest.mark.parametrize(
    ("adapter", "framework", "extra"),
    [
        ("openai_agents", "agents", "agents"),
        ("litellm", "litellm.integrations.custom_logger", "litellm"),
        ("langchain", "langchain_core.tools", "langchain"),
        ("langgraph", "langchain_core.tools", "langgraph"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ],
)
def test_an_adapter_without_its_framework_names_the_extra(
    adapter: str, framework: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("toolscout_client.adapters.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, framework, None)  # as if it were not installed
    with pytest.raises(ImportError, match=re.escape(f"pip install 'toolscout-client[{extra}]'")):
        importlib.import_module(f"toolscout_client.adapters.{adapter}")


def test_a_tool_whose_name_is_taken_gets_another_one() -> None:
    tools = [make_tool(name) for name in ("a", "b", "toolscout_a", "x" * 64)]
    renamed = [tool.name for tool in rename_taken(tools, {"a", "x" * 64})]
    assert renamed == ["toolscout_a_2", "b", "toolscout_a", f"toolscout_{'x' * 54}"]
    assert [tool.name for tool in rename_taken([make_tool("a"), make_tool("a")], ())] == ["a", "toolscout_a"]


def test_long_texts_of_messages_are_cut_and_old_messages_left_out() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:" + "A" * 2_000_000}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}] * 50
    trimmed = trim_messages(messages)
    assert len(trimmed) == 40
    assert len(json.dumps(trimmed)) < 1_000_000
    assert trimmed[0]["content"][0] == {"type": "text", "text": "look"}
    text = "begin " + "x" * 10_000 + " end"
    [message] = trim_messages([{"role": "user", "content": text}])
    assert len(message["content"]) <= 4_000
    assert message["content"].startswith("begin ")
    assert message["content"].endswith(" end")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "hello"}, True),
        ({"role": "user", "content": [{"type": "text", "text": "hello"}]}, True),
        ({"role": "user", "content": "  "}, False),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}, False),
        ({"role": "user", "content": None}, False),
        ({"role": "assistant", "content": "hello"}, False),
        ({"type": "function_call_output", "output": "hello"}, False),
    ],
)
def test_only_text_of_a_user_can_be_searched_for(message: dict[str, Any], expected: bool) -> None:
    assert has_user_text([message]) is expected


def make_tool(name: str) -> CallableTool:
    found = DiscoveredTool({}, "key", name, None, None, None, None, "semantic", [], 1)
    return CallableTool(name, "", {}, found, "discovery")

"""Tests of the texts that adapters make of results and errors."""

from typing import Any

import pytest

from toolscout_client import AuthorizationRequired, ToolFailed
from toolscout_client.adapters._calls import describe_error, describe_execution, describe_result
from toolscout_client.adapters._extras import missing_extra
from toolscout_client.models import Execution


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
    assert describe_execution(done).text == "a\n[the result was too large and is cut off]"


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


def test_a_missing_framework_names_the_extra_to_install() -> None:
    error = missing_extra("agents", ImportError("no", name="agents"))
    assert str(error).endswith("pip install 'toolscout-client[agents]'")
    assert error.name == "agents"

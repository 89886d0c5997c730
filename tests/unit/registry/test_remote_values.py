"""The user's values in the URL and the headers of a registry's entry."""

import json
from typing import Any

import pytest

from app.errors import InvalidInput
from app.registry.models import Remote
from app.registry.remote_values import choose_remote, fill_remote, find_open_inputs
from app.registry.wire import parse_server
from tests.support.registry_server import entry, remote

URL = "https://mcp.example.com/mcp"
TOKEN = {"name": "Authorization", "value": "Bearer {token}", "isRequired": True, "isSecret": True}


def make_remote(url: str = URL, *headers: dict[str, Any], **fields: Any) -> Remote:
    made = entry("com.acme/x", remote(url, headers=list(headers), **fields))
    return parse_server(json.dumps(made).encode()).remotes[0]


def test_variables_are_put_into_url_and_headers() -> None:
    made = make_remote("https://{tenant}.example.com/mcp", TOKEN)
    filled = fill_remote(made, {}, {"tenant": "acme", "token": "t-1"})
    assert filled.url == "https://acme.example.com/mcp"
    assert filled.headers == {"Authorization": "Bearer t-1"}
    assert "t-1" not in repr(filled)


def test_every_missing_value_is_named_with_its_description() -> None:
    key = {"name": "X-Key", "description": "Your key", "isRequired": True}
    made = make_remote("https://{tenant}.example.com/mcp", TOKEN, key, {"name": "X-Optional"})
    with pytest.raises(InvalidInput) as caught:
        fill_remote(made, {}, {})
    assert caught.value.errors == [
        {"loc": ["variables", "tenant"], "msg": "required", "type": "missing"},
        {"loc": ["variables", "token"], "msg": "required", "type": "missing"},
        {"loc": ["headers", "X-Key"], "msg": "required: Your key", "type": "missing"},
    ]
    filled = fill_remote(made, {"x-key": "k"}, {"tenant": "a", "token": "t"})
    assert filled.headers == {"x-key": "k", "Authorization": "Bearer t"}


def test_a_given_header_replaces_the_template_and_its_variables() -> None:
    filled = fill_remote(make_remote(URL, TOKEN), {"authorization": "Basic x"}, {})
    assert filled.headers == {"authorization": "Basic x"}


def test_an_optional_header_without_value_is_not_sent() -> None:
    optional = {"name": "X-Team", "value": "team-{team}"}
    made = make_remote(URL, optional, {"name": "X-Other"}, {"name": "X-Fixed", "value": "always"})
    assert fill_remote(made, {}, {}).headers == {"X-Fixed": "always"}
    assert fill_remote(made, {}, {"team": "7"}).headers == {"X-Fixed": "always", "X-Team": "team-7"}


def test_defaults_stand_in_for_missing_values() -> None:
    region = {"region": {"default": "eu"}}
    made = make_remote(
        "https://{region}.example.com/", {"name": "X-A", "default": "1", "isRequired": True}, variables=region
    )
    filled = fill_remote(made, {}, {})
    assert (filled.url, filled.headers) == ("https://eu.example.com/", {"X-A": "1"})
    assert fill_remote(made, {"X-A": "2"}, {"region": "us"}).headers == {"X-A": "2"}
    assert find_open_inputs(made, {}, {}) == []


def test_a_value_must_be_one_of_the_choices() -> None:
    made = make_remote(URL, {"name": "X-Size", "choices": ["small", "large"]})
    assert fill_remote(made, {"X-Size": "large"}, {}).headers == {"X-Size": "large"}
    with pytest.raises(InvalidInput, match=r"headers.X-Size: must be one of small, large"):
        fill_remote(made, {"X-Size": "canary"}, {})


def test_an_unknown_variable_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput, match="there are token"):
        fill_remote(make_remote(URL, TOKEN), {}, {"token": "t", "tokn": "t"})


def test_a_value_with_braces_is_not_expanded_again() -> None:
    made = make_remote("https://{a}.example.com/{b}")
    assert fill_remote(made, {}, {"a": "{b}", "b": "x"}).url == "https://{b}.example.com/x"


def test_a_secret_in_the_url_is_pointed_out() -> None:
    made = make_remote("https://x.example.com/?key={key}", variables={"key": {"isSecret": True}})
    assert fill_remote(made, {}, {"key": "k"}).notes == (
        "`key` is part of the URL, which is stored and shown as it is",
    )
    assert fill_remote(make_remote(URL, TOKEN), {}, {"token": "t"}).notes == ()


def test_a_remote_is_chosen_by_its_url() -> None:
    made = entry("com.acme/x", remote(URL), remote(URL + "/sse", "sse"))
    server = parse_server(json.dumps(made).encode())
    assert choose_remote(server, None).transport == "streamable_http"
    assert choose_remote(server, URL + "/sse").transport == "sse"
    with pytest.raises(InvalidInput, match="choose one of"):
        choose_remote(server, "https://elsewhere.example.com")


def test_a_local_server_cannot_be_chosen() -> None:
    server = parse_server(json.dumps(entry("com.acme/local")).encode())
    with pytest.raises(InvalidInput, match="on one's own computer"):
        choose_remote(server, None)

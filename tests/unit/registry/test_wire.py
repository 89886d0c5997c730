"""What is read from a registry's answers, and what is left out."""

import json
from typing import Any

import pytest

from app.errors import RegistryFailed
from app.registry.models import RegistryInput, RegistryServer, RemoteHeader
from app.registry.wire import parse_page, parse_server
from tests.support.registry_server import OFFICIAL, entry, remote

URL = "https://mcp.example.com/mcp"


def parse_one(made: dict[str, Any]) -> RegistryServer:
    return parse_server(json.dumps(made).encode())


def parse_many(*entries: Any, **metadata: Any) -> list[str]:
    body = json.dumps({"servers": entries, "metadata": metadata}).encode()
    return [server.name for server in parse_page(body).servers]


def test_an_entry_is_read_with_its_links_and_status() -> None:
    server = parse_one(
        entry(
            "com.acme/weather",
            remote(URL),
            status="deprecated",
            message="use com.acme/climate",
            title="Weather",
            websiteUrl="https://acme.example",
            repository={"url": "https://github.com/acme/weather", "source": "github"},
        )
    )
    assert (server.name, server.title, server.version) == ("com.acme/weather", "Weather", "1.0.0")
    assert (server.status, server.status_message) == ("deprecated", "use com.acme/climate")
    assert (server.website_url, server.repository_url) == ("https://acme.example", "https://github.com/acme/weather")
    assert [(each.transport, each.url) for each in server.remotes] == [("streamable_http", URL)]
    assert (server.usable, server.unusable_reason) == (True, None)


def test_a_server_with_packages_alone_is_not_usable() -> None:
    server = parse_one(entry("com.acme/local"))
    assert not server.usable
    assert "on one's own computer" in str(server.unusable_reason)


def test_streamable_http_comes_before_sse() -> None:
    server = parse_one(entry("com.acme/both", remote(URL + "/sse", "sse"), remote(URL)))
    assert [each.transport for each in server.remotes] == ["streamable_http", "sse"]


@pytest.mark.parametrize(
    "broken",
    [
        remote(URL, "stdio"),
        remote(URL, "websocket"),
        remote("https://a b/"),
        remote("https://x/\u200b"),
        remote(""),
        {"type": "sse"},
        "text",
        remote("x" * 3000),
    ],
)
def test_a_remote_that_cannot_be_used_is_left_out(broken: Any) -> None:
    assert parse_one(entry("com.acme/x", broken)).remotes == ()
    assert len(parse_one(entry("com.acme/x", broken, remote(URL))).remotes) == 1


def test_hidden_characters_and_line_breaks_are_removed_from_texts() -> None:
    text = "Safe\u202e text\u200b\nin \U000e0041two lines\x1b[31m"
    server = parse_one(entry("com.acme/x", title=text, description=text, status="deprecated", message=text))
    assert server.title == server.description == server.status_message == "Safe text in two lines"


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "//acme.example", "https://", 7, "http://[x"]
)
def test_a_link_with_another_scheme_than_http_is_dropped(url: Any) -> None:
    server = parse_one(entry("com.acme/x", websiteUrl=url, repository={"url": url}))
    assert (server.website_url, server.repository_url) == (None, None)


@pytest.mark.parametrize("name", ["", "no-slash", "a/b/c", "a b/c", "../x/y", "ä/b", "x" * 300 + "/y", None, 3])
def test_entries_without_a_valid_name_are_left_out(name: Any) -> None:
    assert parse_many(entry("com.acme/good"), entry("a/b") | {"server": {"name": name}}) == ["com.acme/good"]


@pytest.mark.parametrize("broken", [None, 3, "x", [], {}, {"server": None}, {"server": {"name": "a/b"}, "_meta": 3}])
def test_a_broken_entry_does_not_spoil_the_others(broken: Any) -> None:
    assert "com.acme/good" in parse_many(broken, entry("com.acme/good"))


def test_older_versions_and_repeated_names_are_left_out() -> None:
    older = entry("com.acme/x")
    older["_meta"][OFFICIAL]["isLatest"] = False
    assert parse_many(older, entry("com.acme/y"), entry("com.acme/y", version="0.9.0")) == ["com.acme/y"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"servers": 3}', b"<html>", b'{"servers": [], "metadata": {"nextCursor": 3}}']
)
def test_an_answer_of_another_shape_is_an_error(body: bytes) -> None:
    with pytest.raises(RegistryFailed) as caught:
        parse_page(body)
    assert caught.value.reason == "invalid_answer"


def test_a_header_is_asked_for_as_it_is_declared() -> None:
    declared = {
        "name": "X-Key",
        "description": "Your key",
        "isRequired": True,
        "isSecret": True,
        "placeholder": "k-…",
        "choices": ["a", "b"],
    }
    [found] = parse_one(entry("com.acme/x", remote(URL, headers=[declared]))).remotes
    assert found.headers == (RemoteHeader("X-Key", None, required=True),)
    expected = RegistryInput("header", "X-Key", "Your key", required=True, secret=True, placeholder="k-…")
    assert found.inputs == (expected.__class__(**expected.__dict__ | {"choices": ("a", "b")}),)


def test_the_variables_of_a_template_are_asked_for_instead_of_the_header() -> None:
    header = {
        "name": "Authorization",
        "value": "Bearer {token}",
        "isRequired": True,
        "variables": {"token": {"description": "A token", "isSecret": True}},
    }
    [found] = parse_one(entry("com.acme/x", remote(URL, headers=[header]))).remotes
    assert found.headers == (RemoteHeader("Authorization", "Bearer {token}", required=True),)
    assert found.inputs == (RegistryInput("variable", "token", "A token", required=True, secret=True),)


def test_a_variable_that_is_not_declared_is_asked_for_like_its_header() -> None:
    header = {
        "name": "Authorization",
        "value": "Bearer {key}",
        "isRequired": True,
        "isSecret": True,
        "description": "K",
    }
    [found] = parse_one(entry("com.acme/x", remote(URL, headers=[header]))).remotes
    assert found.inputs == (RegistryInput("variable", "key", "K", required=True, secret=True),)


def test_every_variable_in_the_url_is_required() -> None:
    made = remote("https://{tenant}.example.com/{region}/mcp", variables={"tenant": {"description": "Your tenant"}})
    [found] = parse_one(entry("com.acme/x", made)).remotes
    assert [(each.name, each.required, each.description) for each in found.inputs] == [
        ("tenant", True, "Your tenant"),
        ("region", True, ""),
    ]


def test_a_variable_with_a_fixed_value_is_not_asked_for() -> None:
    made = remote("https://{host}/mcp", variables={"host": {"value": "eu.example.com"}})
    [found] = parse_one(entry("com.acme/x", made)).remotes
    assert (found.url, found.inputs) == ("https://eu.example.com/mcp", ())


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("io.github.user/weather", "weather"), ("com.notion/mcp", "notion"), ("com.acme/MCP-Server", "acme")],
)
def test_a_name_is_suggested_that_says_what_the_server_is(name: str, suggested: str) -> None:
    assert parse_one(entry(name)).suggested_name == suggested

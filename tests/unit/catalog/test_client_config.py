"""Reading the configuration files of MCP clients."""

from typing import Any

import pytest

from app.catalog.client_config.config import MAX_ENTRIES, read_client_config
from app.catalog.client_config.entries import ResolvedEntry, SkippedEntry, find_open_values, resolve_entry
from app.catalog.client_config.placeholders import Placeholder, hide_values
from app.errors import InvalidInput

Json = dict[str, Any]

URL = "https://mcp.example.com/mcp"
SSE_URL = "https://mcp.example.com/sse"
CANARY = "canary-9f3e1b"
HEADERS = {"Authorization": f"Bearer {CANARY}"}


def resolve(fields: Any, *, programs: tuple[str, ...] = (), **values: str) -> ResolvedEntry | SkippedEntry:
    config = read_client_config({"mcpServers": {"files": fields}})
    return resolve_entry(config, config.entries[0], values, programs)


def resolved(fields: Any, *, programs: tuple[str, ...] = (), **values: str) -> ResolvedEntry:
    entry = resolve(fields, programs=programs, **values)
    assert isinstance(entry, ResolvedEntry), entry
    return entry


def skipped(fields: Any, **values: str) -> SkippedEntry:
    entry = resolve(fields, programs=(), **values)
    assert isinstance(entry, SkippedEntry), entry
    return entry


@pytest.mark.parametrize(
    "config",
    [
        {"mcpServers": {"files": {"url": URL}}},  # Claude, Cursor, Windsurf, Cline
        {"servers": {"files": {"type": "http", "url": URL}}},  # VS Code, .vscode/mcp.json
        {"editor.fontSize": 14, "mcp": {"servers": {"files": {"url": URL}}}},  # VS Code, settings.json
        {"context_servers": {"files": {"url": URL}}},  # Zed
        {"theme": "dark", "mcpServers": {"files": {"httpUrl": URL}}},  # Gemini CLI
        {"files": {"url": URL}},  # the servers alone
        {"files": {"url": URL}, "$schema": "https://example.com/schema.json"},
    ],
)
def test_servers_are_found_in_the_files_of_all_clients(config: Json) -> None:
    read = read_client_config(config)
    assert [entry.name for entry in read.entries] == ["files"]
    entry = resolve_entry(read, read.entries[0], {}, ())
    assert isinstance(entry, ResolvedEntry)
    assert (entry.body["url"], entry.body["transport"]) == (URL, "streamable_http")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ([], "a configuration is a JSON object"),
        ("text", "a configuration is a JSON object"),
        ({}, "no servers found"),
        ({"mcpServers": []}, "`mcpServers` must be an object"),
        ({"servers": None}, "`servers` must be an object"),
        ({"editor.fontSize": 14, "mcp": {}}, "no servers found"),
        ({"url": URL}, "give the server a name"),
        ({"command": "npx"}, "give the server a name"),
        ({"mcpServers": {str(number): {} for number in range(MAX_ENTRIES + 1)}}, "at most 100"),
    ],
)
def test_what_is_no_configuration_is_refused_with_the_reason(config: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_client_config(config)


def test_an_empty_object_of_servers_is_a_configuration() -> None:
    assert read_client_config({"mcpServers": {}}).entries == []
    assert len(read_client_config({"mcpServers": {str(n): {} for n in range(MAX_ENTRIES)}}).entries) == MAX_ENTRIES


@pytest.mark.parametrize(
    ("fields", "transport"),
    [
        ({"url": URL}, "streamable_http"),
        ({"serverUrl": URL}, "streamable_http"),
        ({"url": URL, "type": "http"}, "streamable_http"),
        ({"url": URL, "type": "HTTP"}, "streamable_http"),
        ({"url": URL, "type": "streamable-http"}, "streamable_http"),
        ({"url": URL, "type": "streamable_http"}, "streamable_http"),
        ({"url": URL, "type": "streamableHttp"}, "streamable_http"),
        ({"url": URL, "transport": "sse"}, "sse"),
        ({"url": URL, "transportType": "sse"}, "sse"),
    ],
)
def test_the_transport_has_many_names(fields: Json, transport: str) -> None:
    body = resolved(fields).body
    assert (body["transport"], body["url"]) == (transport, URL)


@pytest.mark.parametrize(
    ("fields", "transport"),
    [
        ({"url": SSE_URL}, "sse"),
        ({"serverUrl": SSE_URL}, "sse"),
        ({"url": "${BASE}"}, "sse"),
        ({"command": "npx", "args": ["-y", "mcp-remote", SSE_URL], "type": "stdio"}, "sse"),
        ({"command": "npx", "args": ["mcp-remote", SSE_URL, "--transport", "http-first"]}, "sse"),
        ({"command": "npx", "args": ["mcp-remote", SSE_URL, "--transport", "http-only"]}, "streamable_http"),
        ({"url": SSE_URL, "type": "http"}, "streamable_http"),
        ({"httpUrl": SSE_URL}, "streamable_http"),  # Gemini CLI, whose `url` is for SSE
    ],
)
def test_a_url_that_ends_in_sse_is_taken_as_sse_unless_the_entry_names_a_transport(
    fields: Json, transport: str
) -> None:
    body = resolved(fields, BASE=SSE_URL).body
    assert (body["transport"], body["url"]) == (transport, SSE_URL)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("text", "it is not an object"),
        (None, "it is not an object"),
        ({}, "it has no `url`"),
        ({"url": 7}, "it has no `url`"),
        ({"url": URL, "type": "ws"}, "its `type` is not supported"),
        ({"url": URL, "transport": {"type": "http"}}, "its `type` is not supported"),
    ],
)
def test_an_entry_that_cannot_be_understood_is_skipped_with_the_reason(fields: Any, reason: str) -> None:
    entry = skipped(fields)
    assert entry.kind == "invalid"
    assert entry.reason.startswith(reason)


def test_a_program_is_taken_only_if_the_operator_lists_it() -> None:
    fields = {"command": "npx", "args": ["-y", "server-files"], "env": {"TOKEN": CANARY}, "cwd": "/srv"}
    entry = skipped(fields)
    assert entry.kind == "program"
    assert "TOOLSCOUT_STDIO_SERVERS" in entry.reason
    assert CANARY not in entry.reason
    listed = resolved(fields, programs=("files",))
    assert listed.body == {
        "name": "files",
        "transport": "stdio",
        "description": "",
        "enabled": True,
        "tool_permissions": {},
    }
    assert listed.notes == ["it runs as the operator's file says; not used: `command`, `args`, `env`, `cwd`"]
    assert skipped(fields | {"type": "stdio", "url": URL}).kind == "program"


@pytest.mark.parametrize("text", ["${env:TOKEN}", "${TOKEN}", "${input:TOKEN}", "${TOKEN:-other}"])
def test_placeholders_are_filled_in_headers_and_urls(text: str) -> None:
    entry = resolved({"url": f"{URL}?team={text}", "headers": {"Authorization": f"Bearer {text}"}}, TOKEN=CANARY)
    assert entry.body["url"] == f"{URL}?team={CANARY}"
    assert entry.body["headers"] == HEADERS
    assert entry.used == {"TOKEN": CANARY}
    assert CANARY not in repr(entry)


def test_a_placeholder_without_a_value_is_refused_by_name() -> None:
    fields = {"url": f"{URL}/${{input:team}}", "headers": {"A": "${env:TOKEN}", "B": "${TOKEN}${X:-}"}}
    entry = skipped(fields)
    assert entry.kind == "missing_value"
    assert entry.reason.startswith("there is no value for `team`, `TOKEN`: give it in `values`")
    assert skipped(fields, team="", TOKEN="").reason == entry.reason
    assert resolved(fields, team="a", TOKEN="b").body["headers"] == {"A": "b", "B": "b"}


def test_a_default_is_used_if_there_is_no_value() -> None:
    fields = {"url": "${BASE:-https://mcp.example.com}/mcp"}
    assert resolved(fields).body["url"] == URL
    assert resolved(fields, BASE="https://other.example.com").body["url"] == "https://other.example.com/mcp"


def test_a_value_is_not_searched_for_placeholders() -> None:
    assert resolved({"url": URL, "headers": {"A": "${X}"}}, X="${Y}").body["headers"] == {"A": "${Y}"}


def test_the_inputs_of_vs_code_describe_what_is_asked_for() -> None:
    inputs = [
        {"type": "promptString", "id": "key", "description": "The key", "password": True},
        {"type": "pickString", "id": "region", "options": ["eu", {"label": "US", "value": "us"}], "default": "eu"},
        {"type": "promptString", "id": "unused"},
        "not an input",
    ]
    headers = {"A": "${input:key} ${TOKEN}", "B": "${input:undeclared}", "C": "${input:key}${N:-7}"}
    servers = {"files": {"url": "https://${input:region}.example.com", "headers": headers}}
    config = read_client_config({"servers": servers, "inputs": inputs})
    assert find_open_values(config) == [
        Placeholder("region", is_input=True, is_secret=False, default="eu", options=("eu", "us")),
        Placeholder("key", is_input=True, description="The key"),
        Placeholder("TOKEN"),
        Placeholder("undeclared", is_input=True),
        Placeholder("N", default="7"),
    ]
    entry = resolve_entry(config, config.entries[0], {"key": "k", "TOKEN": "t", "undeclared": "u"}, ())
    assert isinstance(entry, ResolvedEntry)
    assert entry.body["url"] == "https://eu.example.com"
    assert find_open_values(read_client_config({"mcp": {"servers": servers, "inputs": inputs}}))[1].description


def test_placeholders_of_programs_are_not_asked_for() -> None:
    fields = {"command": "npx", "args": ["${input:a}"], "env": {"B": "${input:b}"}, "headers": {"C": "${c}"}}
    assert find_open_values(read_client_config({"servers": {"files": fields, "odd": 7}})) == []


def test_a_disabled_server_and_disabled_tools_stay_disabled() -> None:
    assert resolved({"url": URL}).body["enabled"] is True
    assert resolved({"url": URL, "disabled": False}).body["enabled"] is True
    assert resolved({"url": URL, "disabled": True}).body["enabled"] is False
    assert resolved({"url": URL, "enabled": False}).body["enabled"] is False
    assert resolved({"url": URL, "disabledTools": ["rm"]}).body["tool_permissions"] == {"rm": False}
    fields = {"url": URL, "includeTools": ["ls", "rm"], "excludeTools": ["rm"]}
    assert resolved(fields).body["tool_permissions"] == {"*": False, "ls": True, "rm": False}


def test_fields_that_are_not_imported_are_named() -> None:
    assert resolved({"url": URL, "headers": HEADERS, "description": "Files.", "type": "http"}).notes == []
    fields = {"url": URL, "autoApprove": ["ls"], "envFile": ".env", "cwd": "/srv", "timeout": 60}
    assert resolved(fields).notes == ["not imported: `autoApprove`, `envFile`, `cwd`, `timeout`"]
    [note] = resolved({"url": URL, "oauth": {"clientSecret": CANARY}}).notes
    assert note == "not imported: `oauth`; if the server needs a token, set it in `headers`"
    [note] = resolved({"url": f"{URL}?key=${{KEY}}"}, KEY=CANARY).notes
    assert note.startswith("its URL contains `KEY`")
    [note] = resolved({"url": URL} | {f"x{number}": 1 for number in range(12)}).notes
    assert note.endswith("`x9` and 2 more")


def test_headers_of_a_wrong_type_are_left_to_the_validation() -> None:
    assert resolved({"url": URL, "headers": {"A": 7, "B": "${B}"}}, B="b").body["headers"] == {"A": 7, "B": "b"}
    assert resolved({"url": URL, "headers": ["A: 7"]}).body["headers"] == ["A: 7"]
    assert "headers" not in resolved({"url": URL, "headers": None}).body


def test_a_server_behind_mcp_remote_is_imported_as_itself() -> None:
    arguments = ["-y", "mcp-remote@latest", URL, "--header", "Authorization:${AUTH}", "--header", "X-Team: ${TEAM}"]
    fields = {"command": "npx", "args": arguments, "env": {"AUTH": f"Bearer {CANARY}"}, "disabled": True}
    entry = resolved(fields, TEAM="blue")
    assert entry.body["headers"] == HEADERS | {"X-Team": "blue"}
    assert (entry.body["url"], entry.body["transport"], entry.body["enabled"]) == (URL, "streamable_http", False)
    assert entry.notes == ["mcp-remote is not needed: Toolscout connects to the server behind it"]
    assert skipped(fields).reason.startswith("there is no value for `TEAM`")
    assert [each.name for each in find_open_values(read_client_config({"mcpServers": {"files": fields}}))] == ["TEAM"]


def test_options_of_mcp_remote_are_read_or_named() -> None:
    arguments = ["mcp-remote", URL, "--transport", "sse-only", f"--static-oauth-client-info={CANARY}"]
    entry = resolved({"command": "npx", "args": arguments})
    assert entry.body["transport"] == "sse"
    assert entry.notes[0].endswith("; not imported: `--static-oauth-client-info`")


@pytest.mark.parametrize(
    "arguments", [["-y", "server-files", URL], ["mcp-remote"], ["mcp-remote", 7], "mcp-remote", None]
)
def test_other_programs_are_not_mistaken_for_mcp_remote(arguments: Any) -> None:
    assert skipped({"command": "npx", "args": arguments}).kind == "program"


def test_values_are_hidden_in_messages_whatever_their_case() -> None:
    used = {"TOKEN": "CaNaRy", "N": "a"}
    assert hide_values("canary.example.com is not a public host name", used) == (
        "${TOKEN}.example.com is not a public host name"
    )

"""Every input is answered with a 2xx or a problem: never with a 5xx, and never with the input in the answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.checks import JSON_TYPE, MCP_PATHS, Json, assert_problem, door_routes, leave_a_category
from tests.support.clients import TestUser, get_app, new_user
from tests.support.factories import tool

CANARY = "canary-77aa31"
KIB = 1024
MIB = 1024 * KIB


def question(**fields: Any) -> bytes:
    return json.dumps({"query": CANARY, **fields}).encode()


MALFORMED = {
    "empty": b"",
    "blank": b"  ",
    "broken": b'{"query": "canary-77aa31"',
    "single quotes": b"{'query': 'canary-77aa31'}",
    "trailing text": b'{"query": "canary-77aa31"} canary-77aa31',
    "a comment": b'{"query": "x" /* canary-77aa31 */}',
    "not UTF-8": b'{"query": "canary-77aa31 \xff"}',
    "UTF-16": '{"query": "canary-77aa31"}'.encode("utf-16"),
    "a raw NUL": b'{"query": "canary-77aa31\x00"}',
    "an escaped NUL": rb'{"query": "canary-77aa31 \u0000"}',
    "an escaped NUL in a key": rb'{"canary-77aa31\u0000": 1}',
    "a lone surrogate": rb'{"query": "canary-77aa31 \ud800"}',
    "a lone surrogate in a key": rb'{"\udfff": "canary-77aa31"}',
    "NaN": b'{"query": "canary-77aa31", "similarity_threshold": NaN}',
    "Infinity": b'{"query": "canary-77aa31", "similarity_threshold": Infinity}',
    "minus Infinity": b'{"query": "canary-77aa31", "similarity_threshold": -Infinity}',
    "a number that overflows": b'{"query": "canary-77aa31", "similarity_threshold": 1e999}',
    "2000 objects deep": b'{"query":' * 2_000 + b'"canary-77aa31"' + b"}" * 2_000,
    "2000 lists deep": b'{"messages":' + b"[" * 2_000 + b'"canary-77aa31"' + b"]" * 2_000 + b"}",
}
INVALID = {
    "null": b"null",
    "a list": b'["canary-77aa31"]',
    "a text": b'"canary-77aa31"',
    "a number": b"7",
    "empty query": question(query=""),
    "blank query": question(query=" \n\t\u00a0 "),
    "query not a text": question(query=[CANARY]),
    "query too long": question(query=CANARY * 20_000),
    "neither query nor messages": b"{}",
    "both query and messages": question(messages=[{"role": "user", "content": CANARY}]),
    "both null": question(query=None, messages=None),
    "no messages": question(query=None, messages=[]),
    "messages without text": question(query=None, messages=[{"role": "user", "content": " "}]),
    "messages without a user": question(query=None, messages=[{"role": "system", "content": CANARY}]),
    "messages not a list": question(query=None, messages={"role": "user", "content": CANARY}),
    "messages of texts": question(query=None, messages=[CANARY]),
    "too many messages": question(query=None, messages=[{"role": "user", "content": CANARY}] * 501),
    "content of the wrong type": question(query=None, messages=[{"role": "user", "content": {"text": CANARY}}]),
    "limit 0": question(limit=0),
    "limit 51": question(limit=51),
    "limit -1": question(limit=-1),
    "limit as a text": question(limit="8"),
    "limit true": question(limit=True),
    "limit with a fraction": question(limit=8.5),
    "limit beyond 64 bits": question(limit=2**70),
    "threshold below 0": question(similarity_threshold=-0.1),
    "threshold above 1": question(similarity_threshold=1.1),
    "threshold as a text": question(similarity_threshold="0.5"),
    "threshold true": question(similarity_threshold=True),
    "unknown strategy": question(strategy=CANARY),
    "strategy in capitals": question(strategy="HYBRID"),
    "unknown format": question(format=CANARY),
    "format null": question(format=None),
    "switch as a text": question(include_core_tools="true"),
    "switch as a number": question(explain=1),
    "server_ids not a list": question(server_ids=CANARY),
    "server_ids of numbers": question(server_ids=[7]),
    "an empty server id": question(server_ids=[""]),
    "a very long server id": question(server_ids=[CANARY * 100]),
    "too many server ids": question(server_ids=[CANARY] * 1_001),
    "keep of nulls": question(keep=[None]),
    "tags not a list": question(tags=CANARY),
    "an empty tag": question(tags=[""]),
    "a tag with a line break": question(tags=[f"{CANARY}\n"]),
    "an empty project id": question(project_id=""),
    "a very long project id": question(project_id=CANARY * 100),
    "project_id as a list": question(project_id=[CANARY]),
    "max_tokens 0": question(max_tokens=0),
    "max_tokens as a text": question(max_tokens=CANARY),
    "unknown field": question(unknown=CANARY),
    "a known field in capitals": question(Limit=8),
}
VALID = {
    "only a query": question(),
    "100 kB": question(query=f"{CANARY} " * 7_000),
    "a query of control characters and words": question(query="\x1b[2J\u202e list my files"),
    "emoji as escaped surrogate pairs": rb'{"query": "list my files \ud83d\ude00"}',
    "other scripts": question(query="прочитай файл 読む اقرأ"),
    "only punctuation": question(query="?!"),
    "limit 1": question(limit=1),
    "limit 50": question(limit=50),
    "threshold 0": question(similarity_threshold=0),
    "threshold 1": question(similarity_threshold=1),
    "every default spelled out": question(
        messages=None,
        limit=None,
        similarity_threshold=None,
        include_core_tools=True,
        server_ids=None,
        tags=None,
        project_id=None,
        strategy=None,
        max_tokens=None,
        keep=None,
        format="mcp",
        explain=False,
    ),
    "hybrid": question(strategy="hybrid"),
    "semantic": question(strategy="semantic"),
    "bm25": question(strategy="bm25"),
    "openai": question(format="openai"),
    "openai_responses": question(format="openai_responses"),
    "anthropic": question(format="anthropic"),
    "explained": question(explain=True),
    "one token": question(max_tokens=1),
    "a huge token budget": question(max_tokens=2**60),
    "empty lists": question(server_ids=[], tags=[], keep=[]),
    "ids of any shape": question(server_ids=["' OR 1=1 --", "%", "{}"], keep=["../..", "\u202e"]),
    "OpenAI's messages": question(query=None, messages=[{"role": "user", "content": CANARY, "name": "x"}]),
    "Anthropic's blocks": question(
        query=None, messages=[{"role": "user", "content": [{"type": "text", "text": CANARY}, {"type": "image"}]}]
    ),
    "malformed messages before a valid one": question(
        query=None,
        messages=[{}, {"role": 7, "content": None}, {"role": "user", "content": [7]}, {"role": "user", "content": "x"}],
    ),
    "900 lists deep in an ignored field": (
        b'{"messages": [{"role": "user", "content": "list files", "x": ' + b"[" * 900 + b"]" * 900 + b"}]}"
    ),
}


@pytest.fixture(scope="module")
async def reader(container: Container) -> AsyncIterator[TestUser]:
    """A user with a tool and a project, for requests that change nothing."""
    async with new_user(container) as created:
        await created.add_tools(tool("list_files", "Lists files."))
        assert (await created.http.post("/projects", json={"name": "all", "server_ids": None})).status_code == 201
        yield created


async def post_question(user: TestUser, content: bytes, **headers: str) -> httpx.Response:
    return await user.http.post("/discover", content=content, headers={**JSON_TYPE, **headers})


@pytest.mark.parametrize("content", [*MALFORMED.values(), *INVALID.values()], ids=[*MALFORMED, *INVALID])
async def test_an_invalid_question_is_refused_and_not_repeated(reader: TestUser, content: bytes) -> None:
    answer = await post_question(reader, content)
    assert_problem(answer, 422)
    assert CANARY not in answer.text


@pytest.mark.parametrize("content", VALID.values(), ids=VALID.keys())
async def test_an_unusual_but_valid_question_is_answered(reader: TestUser, content: bytes) -> None:
    answer = await post_question(reader, content)
    assert answer.status_code == 200, answer.text
    assert answer.json()["degraded"] is False


async def test_a_message_of_one_very_long_word_is_answered_quickly(reader: TestUser) -> None:
    """Normalisation turns the sign into a word of six letters."""
    answer = await reader.discover("\N{SQUARE KIROMEETORU}" * 1_500, strategy="bm25")
    assert answer["search_duration_ms"] < 5_000  # it once took minutes


async def test_a_refusal_names_the_invalid_fields(reader: TestUser) -> None:
    body = assert_problem(await post_question(reader, question(limit=0, format=CANARY)), 422)
    assert [error["loc"] for error in body["errors"]] == [["body", "limit"], ["body", "format"]]
    assert "body.limit" in body["detail"]


@pytest.mark.parametrize(
    ("path", "body", "location"),
    [
        ("/discover", {"query": ""}, ["query"]),
        ("/discover", {"query": " \n\u00a0\u3000"}, ["query"]),
        ("/discover", {"query": "\u200b \u2060\ufeff"}, ["query"]),
        ("/discover", {}, ["query"]),
        ("/discover", {"messages": []}, ["messages"]),
        ("/discover", {"messages": [{"role": "user", "content": " "}]}, ["messages"]),
        ("/discover/why", {"query": "", "tool": "list_files"}, ["query"]),
        ("/catalog/search", {"query": ["x", " "], "tools": []}, ["query", 1]),
        ("/eval", {"items": []}, ["items"]),
        ("/eval", {"items": [{"message": " ", "tools": []}]}, ["items", 0, "message"]),
        ("/eval", {"items": [{"messages": [{"role": "user", "content": ""}], "tools": []}]}, ["items", 0, "messages"]),
        ("/execute", {}, ["tool_key"]),
        ("/execute", {"tool_call": {"type": "tool_use", "name": "x"}, "arguments": {}}, ["arguments"]),
        ("/servers", {"name": "files", "transport": "sse"}, ["url"]),
        ("/servers", {"name": "files", "transport": "push", "url": "https://files.example"}, ["url"]),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_a_rule_about_several_fields_names_the_field(
    reader: TestUser, path: str, body: Json, location: list[str | int]
) -> None:
    problem = assert_problem(await reader.http.post(path, json=body), 422)
    assert [error["loc"] for error in problem["errors"]] == [["body", *location]]
    assert problem["detail"].startswith(".".join(map(str, ["body", *location])))


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_body_is_refused_by_every_route(
    admin: httpx.AsyncClient, reader: TestUser, container: Container, content: bytes
) -> None:
    """The ids are real, so that only the body can be wrong."""
    [server] = (await reader.http.get("/servers")).json()["items"]
    [project] = (await reader.http.get("/projects")).json()["items"]
    tool_id = (await reader.tools())["list_files"]["id"]
    ids = {"server_id": server["id"], "tool_id": tool_id, "project_id": project["id"], "user_id": reader.id}
    ids["category_id"] = await leave_a_category(container, reader.id)
    routes = [route for route in door_routes(get_app(container)) if route.takes_body and route.path not in MCP_PATHS]
    assert len(routes) > 10
    for route in routes:
        headers = {**JSON_TYPE, "X-User-Id": reader.id}
        answer = await admin.request(route.method, route.path.format(**ids), content=content, headers=headers)
        assert_problem(answer, 422)
        assert CANARY not in answer.text


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "APPLICATION/JSON",
        "Application/Json; charset=utf-8",
    ],
)
async def test_the_content_type_of_json_is_accepted_in_every_spelling(reader: TestUser, content_type: str) -> None:
    assert (await post_question(reader, question(), **{"Content-Type": content_type})).status_code == 200


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "x"]
)
async def test_a_body_with_another_content_type_is_refused(reader: TestUser, content_type: str) -> None:
    answer = await post_question(reader, question(), **{"Content-Type": content_type})
    assert_problem(answer, 415)
    assert CANARY not in answer.text


async def test_a_body_without_a_content_type_is_refused(reader: TestUser) -> None:
    assert_problem(await reader.http.post("/discover", content=question()), 415)


QUERIES: list[tuple[str, int]] = [
    ("/tools", 200),
    ("/tools?limit=1", 200),
    ("/tools?limit=200", 200),
    ("/tools?limit=0", 422),
    ("/tools?limit=201", 422),
    ("/tools?limit=-1", 422),
    ("/tools?limit=canary-77aa31", 422),
    ("/tools?limit=1e3", 422),
    ("/tools?limit=", 422),
    ("/tools?limit=99999999999999999999999999", 422),
    ("/tools?enabled=false", 200),
    ("/tools?enabled=canary-77aa31", 422),
    ("/tools?name=%ff%fe", 200),
    ("/tools?name=%ED%A0%80", 200),
    ("/tools?name=%5C%25_", 200),
    ("/tools?name=" + "canary-77aa31" * 20, 422),
    ("/tools?name=canary-77aa31%00", 422),
    ("/tools?%00=canary-77aa31", 422),
    ("/tools?tag=%00", 422),
    ("/tools?server_id=%00canary-77aa31", 422),
    ("/tools?server_id=canary-77aa31", 200),
    ("/tools?cursor=", 422),
    ("/tools?cursor=canary-77aa31", 422),
    ("/tools?cursor=%00", 422),
    ("/tools?cursor=%FF%C3%A9", 422),
    ("/tools?cursor=bnVsbA==", 422),  # null
    ("/tools?cursor=WzEsMl0=", 422),  # [1,2]
    ("/tools?cursor=WyJhIl0=", 422),  # ["a"]
    ("/tools?cursor=WyJhIiwiYiIsImMiXQ==", 422),  # ["a","b","c"]
    ("/tools?cursor=WyJhXHUwMDAwIiwiYiJd", 422),  # ["a\u0000","b"]
    ("/tools?cursor=WyJcdWQ4MDAiLCJiIl0=", 422),  # ["\ud800","b"]
    ("/tools?cursor=WyJhIiwiYiJd", 200),  # ["a","b"]
    ("/tools?cursor=" + "A" * 1_001, 422),
    ("/tools?unknown=canary-77aa31", 200),
    ("/tools/canary-77aa31", 404),
    ("/tools/%00", 422),
    ("/tools/canary-77aa31%00", 422),
    ("/tools/%ff", 404),
    ("/tools/" + "canary-77aa31" * 1_000, 404),
    ("/servers/%00", 422),
    ("/servers/canary-77aa31/runs", 404),
    ("/servers/canary-77aa31/runs?cursor=%00", 422),
    ("/runs/%00", 422),
    ("/runs/canary-77aa31", 404),
    ("/tools?visible=true", 200),
    ("/tools?visible=canary-77aa31", 422),
    ("/tools?state=changed", 200),
    ("/tools?state=canary-77aa31", 422),
    ("/tools?flag=instructions", 200),
    ("/tools?flag=canary-77aa31", 422),
    ("/tools?project_id=", 422),
    ("/tools?project_id=%00", 422),
    ("/tools?project_id=canary-77aa31", 404),
    ("/tools/canary-77aa31/history", 404),
    ("/tools/canary-77aa31/history?limit=0", 404),
    ("/tags", 200),
    ("/tags?project_id=canary-77aa31", 404),
    ("/categories", 200),
    ("/categories/canary-77aa31", 404),
    ("/categories/%00", 422),
    ("/categories?project_id=canary-77aa31", 404),
    ("/tools?categories=canary-77aa31", 422),
    ("/tools?categories=%00", 422),
    ("/rules", 200),
    ("/projects", 200),
    ("/projects?limit=0", 422),
    ("/projects?cursor=canary-77aa31", 422),
    ("/projects/canary-77aa31", 404),
    ("/projects/%00", 422),
]


@pytest.mark.parametrize(("address", "status"), QUERIES, ids=[address[:60] for address, _ in QUERIES])
async def test_a_path_or_query_is_answered_or_refused_and_not_repeated(
    reader: TestUser, address: str, status: int
) -> None:
    answer = await reader.http.get(address)
    if status == 200:
        assert answer.status_code == 200, answer.text
    else:
        assert_problem(answer, status)
    assert CANARY not in answer.text


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/canary-77aa31", "/discover/canary-77aa31", "/%2e%2e/etc/passwd", "/%00"])
async def test_an_unknown_path_is_a_problem(reader: TestUser, method: str, path: str) -> None:
    answer = await reader.http.request(method, path)
    assert_problem(answer, 422 if "%00" in path else 404)
    assert CANARY not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/discover", "POST"),
        ("OPTIONS", "/discover", "POST"),
        ("POST", "/tools", "GET"),
        ("BREW", "/tools", "GET"),
    ],
)
async def test_a_wrong_method_is_a_problem_that_names_the_allowed_one(
    reader: TestUser, method: str, path: str, allowed: str
) -> None:
    answer = await reader.http.request(method, path)
    assert_problem(answer, 405)
    assert answer.headers["allow"] == allowed


async def test_the_problem_of_an_unknown_path_names_the_documentation(reader: TestUser) -> None:
    assert "/docs" in assert_problem(await reader.http.get("/discovery"), 404)["detail"]


async def test_a_body_up_to_the_limit_is_read_and_a_larger_one_is_not(reader: TestUser) -> None:
    """White space counts like other content."""
    assert (await post_question(reader, question() + b" " * (MIB - len(question())))).status_code == 200
    answer = await post_question(reader, question() + b" " * (MIB - len(question()) + 1))
    assert_problem(answer, 413)
    assert CANARY not in answer.text
    assert_problem(await post_question(reader, b" " * (2 * MIB)), 413)


async def test_a_pushed_list_may_be_larger_than_other_bodies(user: TestUser) -> None:
    server_id = await user.add_server()
    path, text = f"/servers/{server_id}/tools", b'{"tools": [{"name": "list_files"}]}'
    for size, status in ((2 * MIB, 200), (16 * MIB, 200), (16 * MIB + 1, 413)):
        body = text + b" " * (size - len(text))
        answer = await user.http.put(path, content=body, headers=JSON_TYPE, params={"wait": True})
        assert answer.status_code == status, answer.text


class Stream:
    """A body without a Content-Length that counts how many bytes were read."""

    def __init__(self, chunk: bytes, chunks: int) -> None:
        self._chunk = chunk
        self._chunks = chunks
        self.bytes_read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._chunks):
            self.bytes_read += len(self._chunk)
            yield self._chunk


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [("POST", "/discover", MIB), ("PUT", "/servers/{}/tools", 16 * MIB), ("POST", "/catalog/search", 16 * MIB)],
)
async def test_an_endless_stream_is_refused_at_the_limit(user: TestUser, method: str, path: str, limit: int) -> None:
    chunk = 64 * KIB
    stream = Stream(b" " * chunk, 100 * MIB // chunk)
    path = path.format(await user.add_server())
    answer = await user.http.request(method, path, content=stream, headers=JSON_TYPE)
    assert_problem(answer, 413)
    assert "content-length" not in answer.request.headers
    assert stream.bytes_read <= limit + 2 * chunk


async def test_a_stream_within_the_limit_is_read_completely(reader: TestUser) -> None:
    stream = Stream(b" " * KIB, 100)

    async def body() -> AsyncIterator[bytes]:
        async for chunk in stream:
            yield chunk
        yield question()

    answer = await reader.http.post("/discover", content=body(), headers=JSON_TYPE)
    assert answer.status_code == 200
    assert stream.bytes_read == 100 * KIB


async def test_a_content_length_above_the_limit_is_refused_before_anything_is_read(reader: TestUser) -> None:
    stream = Stream(b" " * KIB, 10)
    headers = {**JSON_TYPE, "Content-Length": str(2 * MIB)}
    assert_problem(await reader.http.post("/discover", content=stream, headers=headers), 413)
    assert stream.bytes_read == 0


@pytest.mark.parametrize(
    "length",
    [b"0", b"1", b"-1", b"x", b"", b"\xb2", b"9" * 5_000],
    ids=["zero", "short", "negative", "a letter", "empty", "superscript two", "5000 digits"],
)
async def test_a_wrong_or_invalid_content_length_causes_no_server_error(reader: TestUser, length: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    answer = await reader.http.post("/discover", content=question(), headers=headers)
    assert answer.status_code < 500, answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/servers", {"name": CANARY, "transport": CANARY}),
        ("/servers", {"name": CANARY, "transport": "sse", "url": f"ftp://{CANARY}"}),
        ("/servers", {"name": CANARY, "transport": "push", "headers": {"X-Key": f"{CANARY}\n"}}),
        ("/servers", {"name": f"{CANARY}\n", "transport": "push"}),
        ("/servers", {"name": "x", "transport": "push", "tags": [f"{CANARY}\n"]}),
        ("/servers", {"name": "x", "transport": "push", "env": {"KEY": CANARY}}),
    ],
    ids=str,
)
async def test_other_routes_do_not_repeat_refused_input_either(user: TestUser, path: str, body: Json) -> None:
    answer = await user.http.post(path, json=body)
    assert_problem(answer, 422, "url_not_allowed" if "url" in body else None)
    assert CANARY not in answer.text
    assert (await user.http.post(path, json={"name": CANARY, "transport": "push"})).status_code == 201


RULE = {"pattern": ["list_*"], "server": "files", "enabled": True, "tags": ["safe"]}
BAD_RULES: dict[str, Any] = {
    "not a list": CANARY,
    "a text instead of a rule": [CANARY],
    "no pattern": [{"enabled": True}],
    "an empty list of patterns": [RULE | {"pattern": []}],
    "a pattern not in a list": [RULE | {"pattern": CANARY}],
    "an empty pattern": [RULE | {"pattern": [""]}],
    "nothing but a negation sign": [RULE | {"pattern": ["!"]}],
    "a pattern that is too long": [RULE | {"pattern": [CANARY * 20]}],
    "too many patterns": [RULE | {"pattern": [CANARY] * 51}],
    "too many patterns in all": [RULE | {"pattern": [CANARY] * 50}] * 21,
    "too many rules": [RULE] * 201,
    "only negated": [RULE | {"pattern": [f"!{CANARY}"]}],
    "an unclosed expression": [RULE | {"pattern": [f"/({CANARY}/"]}],
    "a look-ahead": [RULE | {"pattern": [f"/(?={CANARY})/"]}],
    "a switch as a text": [RULE | {"enabled": "true"}],
    "a tag with a line break": [RULE | {"tags": [f"{CANARY}\n"]}],
    "too many tags": [RULE | {"tags": [CANARY] * 65}],
    "an invalid server name": [RULE | {"server": f"{CANARY}\n"}],
    "an unknown field": [RULE | {"name": CANARY}],
}


@pytest.mark.parametrize("rules", BAD_RULES.values(), ids=BAD_RULES.keys())
async def test_invalid_rules_are_refused_by_every_route_that_takes_rules(user: TestUser, rules: Any) -> None:
    routes: list[tuple[str, str, Json]] = [
        ("PUT", "/rules", {}),
        ("POST", "/rules/preview", {}),
        ("POST", "/projects", {"name": "support", "server_ids": None}),
    ]
    for method, path, body in routes:
        answer = await user.http.request(method, path, json={**body, "rules": rules})
        assert_problem(answer, 422)
        assert CANARY not in answer.text
        assert (await user.http.request(method, path, json={**body, "rules": [RULE]})).is_success


PROJECT: Json = {"name": "support", "server_ids": None}


@pytest.mark.parametrize(
    "body",
    [
        {"server_ids": None},
        {**PROJECT, "name": ""},
        {**PROJECT, "name": None},
        {**PROJECT, "name": f"{CANARY}\n"},
        {**PROJECT, "name": CANARY * 20},
        {**PROJECT, "server_ids": CANARY},
        {**PROJECT, "server_ids": [7]},
        {**PROJECT, "server_ids": [""]},
        {**PROJECT, "server_ids": [CANARY] * 1_001},
        {**PROJECT, "optimization": CANARY},
        {**PROJECT, "optimization": "HYBRID"},
        {**PROJECT, "read_only": None},
        {**PROJECT, "read_only": 1},
        {**PROJECT, "limit": 0},
        {**PROJECT, "limit": 51},
        {**PROJECT, "limit": "8"},
        {**PROJECT, "similarity_threshold": 1.1},
        {**PROJECT, "similarity_threshold": True},
        {**PROJECT, "rules": None},
        {**PROJECT, "unknown": CANARY},
    ],
    ids=lambda body: str(body)[:80],
)
async def test_an_invalid_project_is_not_created(user: TestUser, body: Json) -> None:
    answer = await user.http.post("/projects", json=body)
    assert_problem(answer, 422)
    assert CANARY not in answer.text
    assert (await user.http.get("/projects")).json()["items"] == []
    assert (await user.http.post("/projects", json=PROJECT)).status_code == 201

"""Whatever comes in is answered with a 2xx or with a problem: never a 5xx, and never with the input in it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.checks import JSON_TYPE, Json, assert_problem, door_routes
from tests.support.clients import TestUser, get_app, new_user
from tests.support.factories import tool

CANARY = "canary-77aa31"
KIB = 1024
MIB = 1024 * KIB


def asking(**fields: Any) -> bytes:
    return json.dumps({"query": CANARY, **fields}).encode()


UNREADABLE = {
    "nothing": b"",
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
    "a number beyond all bounds": b'{"query": "canary-77aa31", "similarity_threshold": 1e999}',
    "2000 objects deep": b'{"query":' * 2_000 + b'"canary-77aa31"' + b"}" * 2_000,
    "2000 lists deep": b'{"messages":' + b"[" * 2_000 + b'"canary-77aa31"' + b"]" * 2_000 + b"}",
}
WRONG = {
    "null": b"null",
    "a list": b'["canary-77aa31"]',
    "a text": b'"canary-77aa31"',
    "a number": b"7",
    "empty query": asking(query=""),
    "blank query": asking(query=" \n\t\u00a0 "),
    "query not a text": asking(query=[CANARY]),
    "query too long": asking(query=CANARY * 20_000),
    "neither query nor messages": b"{}",
    "both query and messages": asking(messages=[{"role": "user", "content": CANARY}]),
    "both null": asking(query=None, messages=None),
    "no messages": asking(query=None, messages=[]),
    "messages that say nothing": asking(query=None, messages=[{"role": "user", "content": " "}]),
    "messages without a user": asking(query=None, messages=[{"role": "system", "content": CANARY}]),
    "messages not a list": asking(query=None, messages={"role": "user", "content": CANARY}),
    "messages of texts": asking(query=None, messages=[CANARY]),
    "too many messages": asking(query=None, messages=[{"role": "user", "content": CANARY}] * 501),
    "content of an odd shape": asking(query=None, messages=[{"role": "user", "content": {"text": CANARY}}]),
    "limit 0": asking(limit=0),
    "limit 51": asking(limit=51),
    "limit -1": asking(limit=-1),
    "limit as a text": asking(limit="8"),
    "limit true": asking(limit=True),
    "limit with a fraction": asking(limit=8.5),
    "limit beyond 64 bits": asking(limit=2**70),
    "threshold below 0": asking(similarity_threshold=-0.1),
    "threshold above 1": asking(similarity_threshold=1.1),
    "threshold as a text": asking(similarity_threshold="0.5"),
    "threshold true": asking(similarity_threshold=True),
    "unknown strategy": asking(strategy=CANARY),
    "strategy in capitals": asking(strategy="HYBRID"),
    "unknown format": asking(format=CANARY),
    "format null": asking(format=None),
    "switch as a text": asking(include_core_tools="true"),
    "switch as a number": asking(explain=1),
    "server_ids not a list": asking(server_ids=CANARY),
    "server_ids of numbers": asking(server_ids=[7]),
    "an empty server id": asking(server_ids=[""]),
    "a very long server id": asking(server_ids=[CANARY * 100]),
    "too many server ids": asking(server_ids=[CANARY] * 1_001),
    "keep of nulls": asking(keep=[None]),
    "tags not a list": asking(tags=CANARY),
    "an empty tag": asking(tags=[""]),
    "a tag with a line break": asking(tags=[f"{CANARY}\n"]),
    "an empty project id": asking(project_id=""),
    "a very long project id": asking(project_id=CANARY * 100),
    "project_id as a list": asking(project_id=[CANARY]),
    "max_tokens 0": asking(max_tokens=0),
    "max_tokens as a text": asking(max_tokens=CANARY),
    "unknown field": asking(unknown=CANARY),
    "a known field in capitals": asking(Limit=8),
}
FINE = {
    "the least": asking(),
    "100 kB": asking(query=f"{CANARY} " * 7_000),
    "a query of control characters and words": asking(query="\x1b[2J\u202e list my files"),
    "emoji as escaped surrogate pairs": rb'{"query": "list my files \ud83d\ude00"}',
    "other scripts": asking(query="прочитай файл 読む اقرأ"),
    "only punctuation": asking(query="?!"),
    "limit 1": asking(limit=1),
    "limit 50": asking(limit=50),
    "threshold 0": asking(similarity_threshold=0),
    "threshold 1": asking(similarity_threshold=1),
    "every default spelled out": asking(
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
    "hybrid": asking(strategy="hybrid"),
    "semantic": asking(strategy="semantic"),
    "bm25": asking(strategy="bm25"),
    "openai": asking(format="openai"),
    "openai_responses": asking(format="openai_responses"),
    "anthropic": asking(format="anthropic"),
    "explained": asking(explain=True),
    "a token": asking(max_tokens=1),
    "more tokens than there are": asking(max_tokens=2**60),
    "nothing to choose from": asking(server_ids=[], tags=[], keep=[]),
    "ids of any shape": asking(server_ids=["' OR 1=1 --", "%", "{}"], keep=["../..", "\u202e"]),
    "OpenAI's messages": asking(query=None, messages=[{"role": "user", "content": CANARY, "name": "x"}]),
    "Anthropic's blocks": asking(
        query=None, messages=[{"role": "user", "content": [{"type": "text", "text": CANARY}, {"type": "image"}]}]
    ),
    "odd turns before a good one": asking(
        query=None,
        messages=[{}, {"role": 7, "content": None}, {"role": "user", "content": [7]}, {"role": "user", "content": "x"}],
    ),
    "900 lists deep where anything may stand": (
        b'{"messages": [{"role": "user", "content": "list files", "x": ' + b"[" * 900 + b"]" * 900 + b"}]}"
    ),
}


@pytest.fixture(scope="module")
async def asker(container: Container) -> AsyncIterator[TestUser]:
    """Has a tool and a project, and asks questions that change nothing."""
    async with new_user(container) as made:
        await made.add_tools(tool("list_files", "Lists files."))
        assert (await made.http.post("/projects", json={"name": "all", "server_ids": None})).status_code == 201
        yield made


async def post(user: TestUser, content: bytes, **headers: str) -> httpx.Response:
    return await user.http.post("/discover", content=content, headers={**JSON_TYPE, **headers})


@pytest.mark.parametrize("content", [*UNREADABLE.values(), *WRONG.values()], ids=[*UNREADABLE, *WRONG])
async def test_a_bad_question_is_refused_without_being_repeated(asker: TestUser, content: bytes) -> None:
    answer = await post(asker, content)
    assert_problem(answer, 422)
    assert CANARY not in answer.text


@pytest.mark.parametrize("content", FINE.values(), ids=FINE.keys())
async def test_a_strange_but_proper_question_is_answered(asker: TestUser, content: bytes) -> None:
    answer = await post(asker, content)
    assert answer.status_code == 200, answer.text
    assert answer.json()["degraded"] is False


async def test_a_message_that_is_one_long_word_holds_nobody_up(asker: TestUser) -> None:
    """The sign is a word of six letters once it is normalised."""
    answer = await asker.discover("\N{SQUARE KIROMEETORU}" * 1_500, strategy="bm25")
    assert answer["search_duration_ms"] < 5_000  # it took minutes once, whatever the machine


async def test_a_refusal_says_where_it_hurts(asker: TestUser) -> None:
    body = assert_problem(await post(asker, asking(limit=0, format=CANARY)), 422)
    assert [error["loc"] for error in body["errors"]] == [["body", "limit"], ["body", "format"]]
    assert "body.limit" in body["detail"]


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_cannot_be_read_is_refused_wherever_a_body_is_taken(
    admin: httpx.AsyncClient, asker: TestUser, container: Container, content: bytes
) -> None:
    """With real ids, so that nothing but the body can be wrong."""
    [server] = (await asker.http.get("/servers")).json()["items"]
    [project] = (await asker.http.get("/projects")).json()["items"]
    tool_id = (await asker.tools())["list_files"]["id"]
    ids = {"server_id": server["id"], "tool_id": tool_id, "project_id": project["id"], "user_id": asker.id}
    routes = [route for route in door_routes(get_app(container)) if route.takes_body]
    assert len(routes) > 10
    for route in routes:
        headers = {**JSON_TYPE, "X-User-Id": asker.id}
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
async def test_json_is_taken_under_its_name_however_it_is_spelled(asker: TestUser, content_type: str) -> None:
    assert (await post(asker, asking(), **{"Content-Type": content_type})).status_code == 200


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "x"]
)
async def test_a_body_that_does_not_claim_to_be_json_is_refused(asker: TestUser, content_type: str) -> None:
    answer = await post(asker, asking(), **{"Content-Type": content_type})
    assert_problem(answer, 415)
    assert CANARY not in answer.text


async def test_a_body_without_a_content_type_is_refused(asker: TestUser) -> None:
    assert_problem(await asker.http.post("/discover", content=asking()), 415)


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
    ("/tools/canary-77aa31/history?limit=0", 422),
    ("/tags", 200),
    ("/tags?project_id=canary-77aa31", 404),
    ("/rules", 200),
    ("/projects", 200),
    ("/projects?limit=0", 422),
    ("/projects?cursor=canary-77aa31", 422),
    ("/projects/canary-77aa31", 404),
    ("/projects/%00", 422),
]


@pytest.mark.parametrize(("address", "status"), QUERIES, ids=[address[:60] for address, _ in QUERIES])
async def test_an_address_is_found_or_refused_without_being_repeated(
    asker: TestUser, address: str, status: int
) -> None:
    answer = await asker.http.get(address)
    if status == 200:
        assert answer.status_code == 200, answer.text
    else:
        assert_problem(answer, status)
    assert CANARY not in answer.text


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/canary-77aa31", "/discover/canary-77aa31", "/%2e%2e/etc/passwd", "/%00"])
async def test_an_unknown_route_is_a_problem_like_any_other(asker: TestUser, method: str, path: str) -> None:
    answer = await asker.http.request(method, path)
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
async def test_a_wrong_method_is_a_problem_that_names_the_right_one(
    asker: TestUser, method: str, path: str, allowed: str
) -> None:
    answer = await asker.http.request(method, path)
    assert_problem(answer, 405)
    assert answer.headers["allow"] == allowed


async def test_a_path_that_is_none_is_a_problem_that_says_where_those_are_that_there_are(asker: TestUser) -> None:
    assert "/docs" in assert_problem(await asker.http.get("/discovery"), 404)["detail"]


async def test_a_body_up_to_the_limit_is_read_and_beyond_it_is_not(asker: TestUser) -> None:
    """White space is content like any other."""
    assert (await post(asker, asking() + b" " * (MIB - len(asking())))).status_code == 200
    answer = await post(asker, asking() + b" " * (MIB - len(asking()) + 1))
    assert_problem(answer, 413)
    assert CANARY not in answer.text
    assert_problem(await post(asker, b" " * (2 * MIB)), 413)


async def test_a_pushed_list_may_be_larger_than_other_bodies(user: TestUser) -> None:
    server_id = await user.add_server()
    path, text = f"/servers/{server_id}/tools", b'{"tools": [{"name": "list_files"}]}'
    for size, status in ((2 * MIB, 200), (16 * MIB, 200), (16 * MIB + 1, 413)):
        body = text + b" " * (size - len(text))
        answer = await user.http.put(path, content=body, headers=JSON_TYPE, params={"wait": True})
        assert answer.status_code == status, answer.text


class Stream:
    """A body without a Content-Length, that counts how much of it was taken."""

    def __init__(self, chunk: bytes, chunks: int) -> None:
        self._chunk = chunk
        self._chunks = chunks
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._chunks):
            self.taken += len(self._chunk)
            yield self._chunk


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [("POST", "/discover", MIB), ("PUT", "/servers/{}/tools", 16 * MIB), ("POST", "/catalog/search", 16 * MIB)],
)
async def test_an_endless_stream_is_refused_without_being_read(
    user: TestUser, method: str, path: str, limit: int
) -> None:
    chunk = 64 * KIB
    stream = Stream(b" " * chunk, 100 * MIB // chunk)
    path = path.format(await user.add_server())
    answer = await user.http.request(method, path, content=stream, headers=JSON_TYPE)
    assert_problem(answer, 413)
    assert "content-length" not in answer.request.headers
    assert stream.taken <= limit + 2 * chunk


async def test_a_stream_within_the_limit_is_read_to_its_end(asker: TestUser) -> None:
    stream = Stream(b" " * KIB, 100)

    async def body() -> AsyncIterator[bytes]:
        async for chunk in stream:
            yield chunk
        yield asking()

    answer = await asker.http.post("/discover", content=body(), headers=JSON_TYPE)
    assert answer.status_code == 200
    assert stream.taken == 100 * KIB


async def test_a_claimed_length_beyond_the_limit_is_refused_before_anything_is_read(asker: TestUser) -> None:
    stream = Stream(b" " * KIB, 10)
    headers = {**JSON_TYPE, "Content-Length": str(2 * MIB)}
    assert_problem(await asker.http.post("/discover", content=stream, headers=headers), 413)
    assert stream.taken == 0


@pytest.mark.parametrize(
    "length",
    [b"0", b"1", b"-1", b"x", b"", b"\xb2", b"9" * 5_000],
    ids=["zero", "short", "negative", "a letter", "nothing", "superscript two", "5000 digits"],
)
async def test_a_length_that_lies_or_is_none_does_no_harm(asker: TestUser, length: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    answer = await asker.http.post("/discover", content=asking(), headers=headers)
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
async def test_other_doors_do_not_repeat_what_they_refuse_either(user: TestUser, path: str, body: Json) -> None:
    answer = await user.http.post(path, json=body)
    assert_problem(answer, 422, "url_not_allowed" if "url" in body else None)
    assert CANARY not in answer.text
    assert (await user.http.post(path, json={"name": CANARY, "transport": "push"})).status_code == 201


RULE = {"pattern": ["list_*"], "server": "files", "enabled": True, "tags": ["safe"]}
BAD_RULES: dict[str, Any] = {
    "no list": CANARY,
    "a text for a rule": [CANARY],
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
    "an expression that is not closed": [RULE | {"pattern": [f"/({CANARY}/"]}],
    "a look-ahead": [RULE | {"pattern": [f"/(?={CANARY})/"]}],
    "a switch as a text": [RULE | {"enabled": "true"}],
    "a tag with a line break": [RULE | {"tags": [f"{CANARY}\n"]}],
    "too many tags": [RULE | {"tags": [CANARY] * 65}],
    "a server that is no name": [RULE | {"server": f"{CANARY}\n"}],
    "an unknown field": [RULE | {"name": CANARY}],
}


@pytest.mark.parametrize("rules", BAD_RULES.values(), ids=BAD_RULES.keys())
async def test_rules_are_refused_alike_wherever_they_are_given(user: TestUser, rules: Any) -> None:
    doors: list[tuple[str, str, Json]] = [
        ("PUT", "/rules", {}),
        ("POST", "/rules/preview", {}),
        ("POST", "/projects", {"name": "support", "server_ids": None}),
    ]
    for method, path, body in doors:
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
async def test_a_project_that_is_not_well_described_is_not_made(user: TestUser, body: Json) -> None:
    answer = await user.http.post("/projects", json=body)
    assert_problem(answer, 422)
    assert CANARY not in answer.text
    assert (await user.http.get("/projects")).json()["items"] == []
    assert (await user.http.post("/projects", json=PROJECT)).status_code == 201

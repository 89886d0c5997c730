"""`/registry/servers` and `POST /servers/from-registry`, against a registry on loopback."""

import asyncio
from typing import Any

import pytest

from app.container import Container
from app.limits.circuit_breaker import CircuitBreaker
from app.registry.client import RegistryClient
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY
from tests.support.mcp_server import FakeMcpServer
from tests.support.registry_server import FakeRegistry, Mode, entry, remote
from tests.support.worker_steps import until

Json = dict[str, Any]
URL = "https://mcp.example.com/mcp"
CANARY = "canary-51f0aa"


async def search(user: TestUser, **query: Any) -> Json:
    answer = await user.http.get("/registry/servers", params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def names(answer: Json) -> list[str]:
    return [each["name"] for each in answer["items"]]


async def test_servers_are_found_by_a_part_of_their_name(searcher: TestUser, registry: FakeRegistry) -> None:
    header = {"name": "X-Key", "description": "Your key", "isRequired": True, "isSecret": True}
    registry.reset(
        entry("com.acme/weather", remote(URL, headers=[header]), title="Weather"), entry("com.acme/stocks", remote(URL))
    )
    answer = await search(searcher, q=" weather ")
    assert answer == {
        "items": [
            {
                "name": "com.acme/weather",
                "title": "Weather",
                "description": "Tools of com.acme/weather",
                "version": "1.0.0",
                "status": "active",
                "status_message": "",
                "website_url": None,
                "repository_url": None,
                "usable": True,
                "unusable_reason": None,
                "suggested_name": "weather",
                "remotes": [
                    {
                        "transport": "streamable_http",
                        "url": URL,
                        "inputs": [
                            {
                                "kind": "header",
                                "name": "X-Key",
                                "description": "Your key",
                                "required": True,
                                "secret": True,
                                "default": None,
                                "placeholder": None,
                                "choices": [],
                            }
                        ],
                    }
                ],
            }
        ],
        "next_cursor": None,
        "omitted": None,
    }
    assert registry.requests == ["/v0.1/servers?limit=100&version=latest&search=weather"]
    one = await searcher.http.get("/registry/servers/com.acme/weather")
    assert one.json() == answer["items"][0]


async def test_local_servers_are_marked_and_deleted_ones_are_left_out(
    searcher: TestUser, registry: FakeRegistry
) -> None:
    registry.reset(
        entry("com.acme/local"),
        entry("com.acme/old", remote(URL), status="deprecated", message="use another"),
        entry("com.acme/gone", remote(URL), status="deleted"),
    )
    answer = await search(searcher)
    assert [(each["name"], each["usable"], each["status"]) for each in answer["items"]] == [
        ("com.acme/local", False, "active"),
        ("com.acme/old", True, "deprecated"),
    ]
    assert "own computer" in answer["items"][0]["unusable_reason"]
    assert_problem(await searcher.http.get("/registry/servers/com.acme/gone"), 404, "not_found")


async def test_a_registry_that_lists_deleted_servers_does_not_bring_them_back(
    searcher: TestUser, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.reset(entry("com.acme/gone", remote(URL), status="deleted"), entry("com.acme/here", remote(URL)))
    monkeypatch.setattr(registry, "_list_visible", lambda: registry.entries)
    assert names(await search(searcher)) == ["com.acme/here"]
    assert_problem(await searcher.http.get("/registry/servers/com.acme/gone"), 404, "not_found")


async def test_the_allow_list_decides_what_is_found_and_added(searcher: TestUser, registry: FakeRegistry) -> None:
    allowed = ["com.acme/a", "io.github.acme-team/tools-x", "org.exact/one"]
    foreign = ["com.acmes/a", "com.acme.evil/a", "io.github.acme/other", "org.exact/one-more"]
    registry.reset(*(entry(name, remote(URL)) for name in allowed + foreign))
    answer = await search(searcher)
    assert (names(answer), answer["omitted"]) == (allowed, {"count": 4, "reason": "not_allowed"})
    for name in allowed:
        assert (await searcher.http.get(f"/registry/servers/{name}")).status_code == 200
    requests = len(registry.requests)
    for name in foreign:
        problem = assert_problem(await searcher.http.get(f"/registry/servers/{name}"), 404, "not_found")
        assert "TOOLSCOUT_REGISTRY_ALLOW" in problem["detail"]
        refused = await searcher.http.post("/servers/from-registry", json={"registry_name": name})
        assert_problem(refused, 404, "not_found")
    assert len(registry.requests) == requests


async def test_pages_hold_each_server_once(searcher: TestUser, registry: FakeRegistry) -> None:
    made = [f"com.acme/s-{number:03}" for number in range(230)]
    registry.reset(*(entry(name, remote(URL)) for name in made), *(entry(f"com.other/{n}", remote(URL)) for n in "ab"))
    found: list[str] = []
    cursor: str | None = None
    while True:
        answer = await search(searcher, limit=70, **({} if cursor is None else {"cursor": cursor}))
        assert len(answer["items"]) <= 70
        found += names(answer)
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert found == made
    assert len(registry.requests) == 3  # pages of 100, and the rest from the cache


async def test_a_search_reads_a_bounded_number_of_pages(searcher: TestUser, registry: FakeRegistry) -> None:
    foreign = [entry(f"com.other/s-{number:03}", remote(URL)) for number in range(620)]
    registry.reset(*foreign, entry("org.exact/one", remote(URL)))
    first = await search(searcher)
    assert (names(first), len(registry.requests), first["omitted"]["count"]) == ([], 5, 500)
    second = await search(searcher, cursor=first["next_cursor"])
    assert (names(second), second["next_cursor"]) == (["org.exact/one"], None)


@pytest.mark.parametrize("cursor", ["x", "bnVsbA==", "WzEsMl0=", "WyJhIiwtMV0=", "\u00e9"])
async def test_an_invalid_cursor_is_refused(searcher: TestUser, registry: FakeRegistry, cursor: str) -> None:
    assert_problem(await searcher.http.get("/registry/servers", params={"cursor": cursor}), 422, "invalid_input")
    assert registry.requests == []


async def test_answers_are_cached_for_each_user(searcher: TestUser, service: Container, registry: FakeRegistry) -> None:
    registry.reset(entry("com.acme/weather", remote(URL)))
    for _ in range(3):
        await search(searcher, q="weather")
    assert len(registry.requests) == 1
    async with new_user(service) as other:
        await search(other, q="weather")  # not from the first user's entry, which would tell what that one searched
    assert len(registry.requests) == 2


async def test_one_users_requests_do_not_use_the_registry_up(
    searcher: TestUser, service: Container, registry: FakeRegistry
) -> None:
    registry.reset(entry("com.acme/weather", remote(URL)))
    registry.mode = "hang"
    hanging = [asyncio.create_task(searcher.http.get("/registry/servers", params={"q": str(n)})) for n in range(6)]

    async def has_two() -> bool:
        return len(registry.requests) == 2

    await until(has_two)
    async with new_user(service) as other:
        waiting = asyncio.create_task(other.http.get("/registry/servers"))

        async def has_three() -> bool:
            return len(registry.requests) == 3

        await until(has_three)  # the other user's, while four of the first user's wait
        registry.mode = "ok"
        registry.release()
        assert (await waiting).status_code == 200
    assert {answer.status_code for answer in await asyncio.gather(*hanging)} == {200}


async def test_a_user_who_asks_too_often_is_told_to_wait(
    searcher: TestUser, service: Container, registry: FakeRegistry
) -> None:
    registry.reset(entry("com.acme/weather", remote(URL)))
    answers = [await searcher.http.get("/registry/servers", params={"q": str(number)}) for number in range(40)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["Retry-After"]) >= 1
    async with new_user(service) as other:
        assert names(await search(other)) == ["com.acme/weather"]


@pytest.mark.parametrize(
    ("mode", "status", "cause"),
    [
        ("status", 503, "status_503"),
        ("status", 404, "status_404"),
        ("redirect", 503, "status_307"),
        ("raw", 503, "invalid_answer"),
        ("endless", 503, "too_large"),
    ],
)
async def test_a_registry_that_fails_is_a_clear_problem_and_heals(
    searcher: TestUser, registry: FakeRegistry, mode: Mode, status: int, cause: str
) -> None:
    registry.reset(entry("com.acme/weather", remote(URL)))
    registry.mode, registry.status, registry.content = mode, status, b"<html>"
    problem = assert_problem(await searcher.http.get("/registry/servers"), 502, "registry_failed")
    assert problem["cause"] == cause
    registry.mode = "ok"
    assert names(await search(searcher)) == ["com.acme/weather"]


async def test_a_search_that_the_registry_rejects_is_the_callers_mistake(
    searcher: TestUser, registry: FakeRegistry
) -> None:
    registry.mode, registry.status = "status", 422
    assert_problem(await searcher.http.get("/registry/servers"), 422, "invalid_input")


async def test_a_registry_that_hangs_is_given_up(registry: FakeRegistry, service: Container) -> None:
    limiter = service.rate_limiter
    client = RegistryClient(registry.url, [], breaker=CircuitBreaker(2, 60.0), rate_limiter=limiter, timeout_s=0.2)
    registry.mode = "hang"
    try:
        for user in ("ann", "bob"):
            with pytest.raises(Exception, match=r"did not answer within 0\.2 seconds"):
                await client.search(user, "", 10)
        with pytest.raises(Exception, match="given time to recover"):
            await client.search("carl", "", 10)
    finally:
        await client.aclose()
    assert len(registry.requests) == 2


async def test_without_a_registry_the_answer_says_how_to_get_one(user: TestUser) -> None:
    for answer in (
        await user.http.get("/registry/servers"),
        await user.http.get("/registry/servers/com.acme/weather"),
        await user.http.post("/servers/from-registry", json={"registry_name": "com.acme/weather"}),
    ):
        assert "TOOLSCOUT_REGISTRY_URL" in assert_problem(answer, 404, "not_found")["detail"]


async def test_an_administrator_searches_without_naming_a_user(service: Container, registry: FakeRegistry) -> None:
    registry.reset(entry("com.acme/weather", remote(URL)))
    async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        assert names((await admin.get("/registry/servers")).json()) == ["com.acme/weather"]


async def test_a_server_is_registered_and_its_tools_are_found(
    searcher: TestUser, registry: FakeRegistry, upstream: FakeMcpServer
) -> None:
    url = upstream.url.replace("/mcp", "/{path}")
    header = {"name": "Authorization", "value": "Bearer {token}", "isRequired": True, "isSecret": True}
    made = remote(url, headers=[header, {"name": "X-Team"}], variables={"path": {"description": "the path"}})
    registry.reset(entry("com.acme/mcp", made, status="deprecated", message="use com.acme/new"))
    upstream.requests.clear()
    body: Json = {"registry_name": "com.acme/mcp"}
    problem = assert_problem(await searcher.http.post("/servers/from-registry", json=body), 422, "invalid_input")
    assert problem["errors"] == [
        {"loc": ["variables", "path"], "msg": "required: the path", "type": "missing"},
        {"loc": ["variables", "token"], "msg": "required", "type": "missing"},
    ]
    body |= {"variables": {"path": "mcp", "token": CANARY}, "headers": {"X-Team": "blue"}, "tags": ["outdoors"]}
    answer = await searcher.http.post("/servers/from-registry", json=body)
    assert answer.status_code == 201, answer.text
    made_server = answer.json()["server"]
    assert (made_server["name"], made_server["url"]) == ("acme", upstream.url)
    assert (made_server["description"], made_server["tags"]) == ("Tools of com.acme/mcp", ["outdoors"])
    assert made_server["header_names"] == ["Authorization", "X-Team"]
    assert answer.json() | {"server": None} == {
        "server": None,
        "registry_name": "com.acme/mcp",
        "version": "1.0.0",
        "remote_url": url,
        "notes": ["its publisher has deprecated it: use com.acme/new"],
    }
    assert CANARY not in answer.text
    events = (await searcher.http.get("/audit", params={"action": "server.create"})).json()["items"]
    assert made_server["id"] in {event["target"] for event in events}

    async def has_tools() -> bool:
        return "get_forecast" in await searcher.tools()

    await until(has_tools)
    assert {request.headers["authorization"] for request in upstream.requests} == {f"Bearer {CANARY}"}
    taken = await searcher.http.post("/servers/from-registry", json=body)
    assert_problem(taken, 409, "conflict")
    renamed = await searcher.http.post("/servers/from-registry", json=body | {"name": "weather"})
    assert renamed.json()["server"]["name"] == "weather"


@pytest.mark.parametrize("url", ["http://169.254.169.254/mcp", "https://10.0.0.1/mcp", "http://127.0.0.1:1/mcp"])
async def test_an_address_inside_the_network_is_refused_as_for_any_server(
    searcher: TestUser, registry: FakeRegistry, url: str
) -> None:
    registry.reset(entry("com.acme/inside", remote(url)))
    answer = await searcher.http.post("/servers/from-registry", json={"registry_name": "com.acme/inside"})
    assert_problem(answer, 422, "url_not_allowed")


@pytest.mark.parametrize(
    ("header", "message"), [("Host", "is set by the connection itself"), ("bad name", "is not a header name")]
)
async def test_headers_of_the_registry_are_checked_as_those_of_a_user(
    searcher: TestUser, registry: FakeRegistry, header: str, message: str
) -> None:
    registry.reset(entry("com.acme/odd", remote(URL, headers=[{"name": header, "value": "x"}])))
    answer = await searcher.http.post("/servers/from-registry", json={"registry_name": "com.acme/odd"})
    assert message in assert_problem(answer, 422, "invalid_input")["detail"]


async def test_a_local_server_cannot_be_registered(searcher: TestUser, registry: FakeRegistry) -> None:
    registry.reset(entry("com.acme/local"))
    answer = await searcher.http.post("/servers/from-registry", json={"registry_name": "com.acme/local"})
    assert "own computer" in assert_problem(answer, 422, "invalid_input")["detail"]


async def test_the_users_values_are_in_no_error(searcher: TestUser, registry: FakeRegistry) -> None:
    registry.reset(entry("com.acme/x", remote(URL, headers=[{"name": "X-Key", "choices": ["a"]}])))
    for fields in ({"headers": {"X-Key": CANARY}}, {"headers": {"X-Key": f"{CANARY}\n"}}, {"variables": {"a": CANARY}}):
        answer = await searcher.http.post("/servers/from-registry", json={"registry_name": "com.acme/x", **fields})
        assert answer.status_code == 422
        assert CANARY not in answer.text

"""Authentication and permissions: keys, the headers that carry them, and the users that they act for."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.auth.permissions import Permission
from app.container import Container
from tests.support.checks import OPEN_PATHS, assert_problem, assert_refused, door_routes, rows_of
from tests.support.clients import TestUser, get_app, new_user, open_client
from tests.support.factories import ADMIN_KEY

ADMIN_ROUTES = [
    ("POST", "/users", {"id": "somebody"}),
    ("GET", "/users", None),
    ("GET", "/users/somebody", None),
    ("PATCH", "/users/somebody", {"name": "x"}),
    ("DELETE", "/users/somebody", None),
    ("POST", "/keys", {"kind": "admin"}),
    ("GET", "/keys", None),
    ("DELETE", "/keys/some-id", None),
    ("POST", "/reload", None),
    ("POST", "/shared-servers", {"name": "handbook", "transport": "push"}),
    ("GET", "/shared-servers", None),
    ("GET", "/shared-servers/some-server", None),
    ("PATCH", "/shared-servers/some-server", {"description": "x"}),
    ("POST", "/shared-servers/some-server/reindex", None),
    ("DELETE", "/shared-servers/some-server", None),
]
BAD_USER_IDS = [b"", b" ", b"*", b"-a", b"a b", b"a/b", b"'; DROP TABLE users; --", "é".encode(), b"\xff", b"x" * 129]


@pytest.fixture(scope="module")
async def user(container: Container) -> AsyncIterator[TestUser]:
    """One for all tests of this module: they change nothing of it."""
    async with new_user(container) as made:
        yield made


@pytest.fixture(scope="module")
async def other_user(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as made:
        yield made


@pytest.fixture(scope="module")
async def backend(container: Container, admin: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """A chat backend with its service key."""
    made = await admin.post("/keys", json={"kind": "service"})
    async with open_client(container, Authorization=f"Bearer {made.json()['key']}") as http:
        yield http


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Authorization", "Bearer {}"),
        ("Authorization", "bearer {}"),
        ("authorization", "BEARER {}"),
        ("X-API-Key", "{}"),
        ("x-api-key", "{}"),
    ],
)
async def test_a_key_is_accepted_in_either_header(
    client: httpx.AsyncClient, user: TestUser, header: str, value: str
) -> None:
    assert (await client.get("/servers", headers={header: value.format(user.key)})).status_code == 200


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
async def test_a_key_with_one_wrong_character_is_rejected(
    client: httpx.AsyncClient, user: TestUser, header: str
) -> None:
    scheme = "Bearer " if header == "Authorization" else ""
    wrong = user.key[:-1] + ("A" if user.key[-1] != "A" else "B")
    assert_problem(await client.get("/servers", headers={header: scheme + wrong}), 401)
    assert (await client.get("/servers", headers={header: scheme + user.key})).status_code == 200


@pytest.mark.parametrize("authorization", ["Bearer {}", "Basic {}", "Bearer nonsense", ""])
async def test_a_key_in_both_headers_is_a_bad_request(
    client: httpx.AsyncClient, user: TestUser, authorization: str
) -> None:
    headers = {"Authorization": authorization.format(user.key), "X-API-Key": user.key}
    assert_problem(await client.get("/servers", headers=headers), 400)
    del headers["Authorization"]
    assert (await client.get("/servers", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("Authorization", ["Bearer {key}", "Bearer {other}"]),
        ("Authorization", ["Bearer {key}", "Bearer {key}"]),
        ("Authorization", ["Bearer {key}", ""]),
        ("Authorization", ["Bearer {key}, Bearer {other}"]),
        ("Authorization", ["Bearer {key},bearer {key}"]),
        ("X-API-Key", ["{key}", "{other}"]),
        ("x-api-key", ["{key}", "{key}"]),
        ("X-API-Key", ["{key}, {other}"]),
    ],
)
async def test_a_repeated_key_is_a_bad_request(
    client: httpx.AsyncClient, user: TestUser, other_user: TestUser, header: str, values: list[str]
) -> None:
    sent = [(header, value.format(key=user.key, other=other_user.key)) for value in values]
    for path in ("/servers", "/discover", "/mcp"):
        body = None if path == "/servers" else {"query": "x", "jsonrpc": "2.0", "id": 1, "method": "ping"}
        answer = await client.request("POST" if body else "GET", path, json=body, headers=sent)
        assert answer.status_code == 400, path
        assert "more than once" in answer.text
        assert user.key not in answer.text
    once = values[0].split(",")[0].format(key=user.key)
    assert (await client.get("/servers", headers={header: once})).status_code == 200


@pytest.mark.parametrize("values", [["{0}", "{1}"], ["{0}", "{0}"], ["{0}, {1}"], ["{0},{0}"]])
async def test_a_repeated_user_is_a_bad_request(
    admin: httpx.AsyncClient, user: TestUser, other_user: TestUser, values: list[str]
) -> None:
    sent = [("X-User-Id", value.format(user.id, other_user.id)) for value in values]
    assert_problem(await admin.get("/servers", headers=sent), 400, "bad_request")
    assert (await admin.get("/servers", headers={"X-User-Id": user.id})).status_code == 200


async def test_a_key_of_the_operator_may_contain_commas(client: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
    """It is wrong here, but not because of its commas."""
    for headers in ({"Authorization": "Bearer a,b, c"}, {"X-API-Key": "a,b, c"}):
        assert_problem(await client.get("/servers", headers=headers), 401)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": f"Bearer {ADMIN_KEY} and more"},
        {"Authorization": f"Basic {ADMIN_KEY}"},
        {"Authorization": ADMIN_KEY},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Authorization": "Bearer " + "x" * 100_000},
        {"Authorization": "Bearer ' OR 1=1 --"},
        {"X-API-Key": ""},
        {"X-API-Key": "nonsense"},
        {"X-API-Key": f"Bearer {ADMIN_KEY}"},
    ],
)
async def test_a_request_without_a_valid_key_is_rejected(client: httpx.AsyncClient, headers: dict[str, Any]) -> None:
    answer = await client.get("/servers", headers=headers)
    assert_problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert ADMIN_KEY not in answer.text


async def test_every_route_but_the_open_ones_refuses_to_answer_without_a_key(
    client: httpx.AsyncClient, container: Container
) -> None:
    protected = [route for route in door_routes(get_app(container)) if route.path not in OPEN_PATHS]
    assert len(protected) > 20
    for route in protected:
        body = {"query": "x", "tools": []} if route.takes_body else None
        assert_refused(await client.request(route.method, route.path, json=body), 401)


async def test_a_user_key_may_name_only_its_own_user(user: TestUser, other_user: TestUser) -> None:
    assert (await user.http.get("/servers", headers={"X-User-Id": user.id})).status_code == 200
    real = await user.http.get("/servers", headers={"X-User-Id": other_user.id})
    missing = await user.http.get("/servers", headers={"X-User-Id": "nobody-has-this-id"})
    assert assert_problem(real, 403)["detail"] == assert_problem(missing, 403)["detail"]


async def test_a_user_key_that_names_an_unknown_user_does_not_create_it(user: TestUser, container: Container) -> None:
    name = f"unheard-of-{uuid.uuid4().hex[:8]}"
    assert_problem(await user.http.get("/servers", headers={"X-User-Id": name}), 403)
    assert (await rows_of(container, name))["users"] == 0


async def test_a_service_key_must_name_a_user(backend: httpx.AsyncClient, user: TestUser) -> None:
    for method, path, body in [("GET", "/servers", None), ("POST", "/discover", {"query": "x"})]:
        assert_problem(await backend.request(method, path, json=body), 400)
        named = await backend.request(method, path, json=body, headers={"X-User-Id": user.id})
        assert named.status_code == 200


async def test_a_service_key_creates_a_user_that_it_names_for_the_first_time(
    backend: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    user_id = f"newcomer-{uuid.uuid4().hex[:8]}"
    assert_problem(await admin.get(f"/users/{user_id}"), 404)
    answer = await backend.post("/discover", json={"query": "read a file"}, headers={"X-User-Id": user_id})
    assert answer.status_code == 200
    assert answer.json()["total_searched"] == 0
    assert (await admin.get(f"/users/{user_id}")).json()["id"] == user_id


async def test_a_service_key_acts_for_each_user_that_it_names(
    backend: httpx.AsyncClient, user: TestUser, other_user: TestUser
) -> None:
    for somebody in (user, other_user):
        acting = {"X-User-Id": somebody.id}
        made = await backend.post("/servers", json={"name": "made for me", "transport": "push"}, headers=acting)
        assert made.json()["user_id"] == somebody.id
        listed = (await backend.get("/servers", headers=acting)).json()["items"]
        assert made.json()["id"] in {server["id"] for server in listed}
        assert {server["user_id"] for server in listed} == {somebody.id}


@pytest.mark.parametrize("user_id", BAD_USER_IDS)
async def test_an_invalid_user_id_is_rejected(
    backend: httpx.AsyncClient, admin: httpx.AsyncClient, user_id: bytes
) -> None:
    for http in (backend, admin):
        assert_problem(await http.get("/servers", headers={b"X-User-Id": user_id}), 422)


async def test_an_admin_key_acts_for_the_user_that_it_names(admin: httpx.AsyncClient, user: TestUser) -> None:
    server_id = await user.add_server()
    assert_problem(await admin.get("/servers"), 400)
    answer = await admin.get("/servers", headers={"X-User-Id": user.id})
    assert server_id in {server["id"] for server in answer.json()["items"]}


@pytest.mark.parametrize(("method", "path", "body"), ADMIN_ROUTES)
async def test_only_administrators_may_manage_users_and_keys(
    user: TestUser, backend: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    for http in (user.http, backend):
        for headers in ({}, {"X-User-Id": user.id}):
            assert_problem(await http.request(method, path, json=body, headers=headers), 403)


async def test_an_administrator_may_use_all_of_these_routes(admin: httpx.AsyncClient) -> None:
    somebody = f"somebody-{uuid.uuid4().hex[:8]}"
    key_id = (await admin.post("/keys", json={"kind": "service"})).json()["id"]
    other = {"name": f"shared-{somebody}", "transport": "push"}
    server_id = (await admin.post("/shared-servers", json=other)).json()["id"]
    for method, path, body in ADMIN_ROUTES:
        real_path = path.replace("somebody", somebody).replace("some-id", key_id).replace("some-server", server_id)
        real_body = {"id": somebody} if (method, path) == ("POST", "/users") else body
        assert (await admin.request(method, real_path, json=real_body)).is_success, (method, path)


def test_the_table_of_administrators_routes_is_complete(container: Container) -> None:
    administered = {
        (route.method, route.path)
        for route in door_routes(get_app(container))
        if Permission.ADMINISTER in route.permissions
    }
    templates = {"somebody": "{user_id}", "some-id": "{key_id}", "some-server": "{server_id}"}
    named = {
        (method, "/".join(templates.get(part, part) for part in path.split("/"))) for method, path, _ in ADMIN_ROUTES
    }
    assert administered == named


async def test_the_bootstrap_key_is_an_admin_key_without_a_row(admin: httpx.AsyncClient, container: Container) -> None:
    assert (await admin.get("/users")).status_code == 200
    async with container.database.system_transaction() as session:
        rows = await session.rows("SELECT k::text FROM api_keys k")
    assert ADMIN_KEY not in str(rows)
    assert_problem(await admin.delete("/keys/bootstrap"), 422)

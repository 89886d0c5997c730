"""Access tokens of the identity provider beside API keys: who is let in, as whom, and what a refusal says."""

import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import jwt
import pytest

from app.auth.oidc.tokens import MAX_TOKEN_BYTES
from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.checks import assert_problem, rows_of
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, make_database, make_settings, resolve_nothing
from tests.support.identity_provider import (
    AUDIENCE,
    PUBLIC_URL,
    FakeIdentityProvider,
    encode_part,
    make_key,
    running_identity_provider,
)

METADATA = f"{PUBLIC_URL}/.well-known/oauth-protected-resource"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.fixture(scope="module")
def running_provider() -> Iterator[FakeIdentityProvider]:
    with running_identity_provider() as provider:
        provider.keys = [make_key("first"), make_key("ec", "ES256"), make_key("ed", "EdDSA")]
        yield provider


@pytest.fixture(scope="module")
async def service(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, running_provider: FakeIdentityProvider
) -> AsyncIterator[Container]:
    settings = make_settings(tmp_path_factory.mktemp("sso"), **running_provider.settings())
    async with open_container(settings, make_database(postgres), resolve_nothing) as opened:
        yield opened


@pytest.fixture
def provider(running_provider: FakeIdentityProvider) -> FakeIdentityProvider:
    return running_provider


@pytest.fixture(scope="module")
async def http(service: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(service) as opened:
        yield opened


@pytest.fixture(scope="module")
async def operator(service: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as opened:
        yield opened


def bearer(token: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **headers}


def fresh_id() -> str:
    return f"person-{uuid.uuid4().hex[:8]}"


async def call_mcp(http: httpx.AsyncClient, token: str, path: str = "/mcp") -> httpx.Response:
    accept = {"Accept": "application/json, text/event-stream"}
    return await http.post(path, json=PING, headers=bearer(token, **accept))


async def test_a_token_is_accepted_by_rest_and_mcp_and_creates_its_user(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, operator: httpx.AsyncClient
) -> None:
    somebody = fresh_id()
    assert_problem(await operator.get(f"/users/{somebody}"), 404)
    token = provider.make_token(sub=somebody)
    made = await http.post("/servers", json={"name": "files", "transport": "push"}, headers=bearer(token))
    assert (made.status_code, made.json()["user_id"]) == (201, somebody)
    answer = await http.post("/discover", json={"query": "read a file"}, headers=bearer(token))
    assert answer.status_code == 200
    assert '"result":{}' in (await call_mcp(http, token)).text
    assert (await operator.get(f"/users/{somebody}")).json()["id"] == somebody
    events = (await operator.get("/audit", headers={"X-User-Id": somebody})).json()["items"]
    assert [(event["action"], event["actor"]) for event in reversed(events)] == [
        ("user.create", f"user:oidc:{somebody}"),
        ("server.create", f"user:oidc:{somebody}"),
    ]


async def test_a_user_may_not_administer_nor_act_for_another(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, service: Container
) -> None:
    somebody, other = fresh_id(), fresh_id()
    token = provider.make_token(sub=somebody, groups=["staff"])
    assert_problem(await http.get("/users", headers=bearer(token)), 403)
    assert_problem(await http.get("/servers", headers=bearer(token, **{"X-User-Id": other})), 403)
    assert (await rows_of(service, other))["users"] == 0
    assert (await http.get("/servers", headers=bearer(token, **{"X-User-Id": somebody}))).status_code == 200


async def test_a_member_of_an_admin_group_is_an_administrator(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, service: Container
) -> None:
    token = provider.make_token(sub=fresh_id(), groups=["staff", "operators"])
    assert (await http.get("/users", headers=bearer(token))).status_code == 200
    async with new_user(service) as user:
        server_id = await user.add_server()
        listed = await http.get("/servers", headers=bearer(token, **{"X-User-Id": user.id}))
        assert [server["id"] for server in listed.json()["items"]] == [server_id]
        assert (await http.get(f"/servers/{server_id}", headers=bearer(token))).json()["user_id"] == user.id


async def test_an_administrator_who_names_nobody_acts_for_everyone_or_for_their_own_user(
    http: httpx.AsyncClient, provider: FakeIdentityProvider
) -> None:
    """Where a user is needed, it is the administrator's own: MCP clients that sign in cannot add a header."""
    boss = fresh_id()
    token = provider.make_token(sub=boss, groups=["operators"])
    made = await http.post("/servers", json={"name": "files", "transport": "push"}, headers=bearer(token))
    assert made.json()["user_id"] == boss
    assert (await call_mcp(http, token)).status_code == 200
    users = {event["user_id"] for event in (await http.get("/audit", headers=bearer(token))).json()["items"]}
    assert len(users) > 1


async def test_the_groups_of_a_user_follow_the_token(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, operator: httpx.AsyncClient
) -> None:
    somebody = fresh_id()
    stored = []
    for groups in (["staff", "engineering", "staff"], ["staff"], ["staff"], "guests", None, [1, None, "", "x" * 257]):
        token = provider.make_token(sub=somebody, groups=groups)
        assert (await http.get("/servers", headers=bearer(token))).status_code == 200
        stored.append((await operator.get(f"/users/{somebody}")).json()["groups"])
    assert stored == [["engineering", "staff"], ["staff"], ["staff"], ["guests"], [], []]
    changes = (await operator.get("/audit", params={"action": "user.groups", "target": somebody})).json()["items"]
    assert len(changes) == 4


async def test_a_deleted_user_begins_anew_with_the_next_token(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, operator: httpx.AsyncClient
) -> None:
    token = bearer(provider.make_token(sub=(somebody := fresh_id())))
    await http.post("/servers", json={"name": "files", "transport": "push"}, headers=token)
    assert (await operator.delete(f"/users/{somebody}")).status_code == 204
    assert (await http.get("/servers", headers=token)).json()["items"] == []


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_keys_of_each_type_verify_their_tokens(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, position: int
) -> None:
    token = provider.keys[position].sign(provider.make_claims())
    assert (await http.get("/servers", headers=bearer(token))).status_code == 200


@pytest.mark.parametrize("token_type", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
async def test_the_usual_types_of_tokens_are_accepted(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, token_type: str | None
) -> None:
    token = provider.keys[0].sign(provider.make_claims(), typ=token_type)
    assert (await http.get("/servers", headers=bearer(token))).status_code == 200


Forge = Callable[[FakeIdentityProvider], str]


def sign_with(algorithm: str, key: Any, provider: FakeIdentityProvider, **headers: Any) -> str:
    """Sign by hand: PyJWT refuses to use a public key as a shared secret."""
    signing_input = (
        f"{encode_part({'alg': algorithm, 'kid': 'first', **headers})}.{encode_part(provider.make_claims())}"
    )
    signature = jwt.get_algorithm_by_name(algorithm).sign(signing_input.encode(), key) if algorithm != "none" else b""
    return f"{signing_input}.{jwt.utils.base64url_encode(signature).decode()}"


def tamper(provider: FakeIdentityProvider) -> str:
    header, _, signature = provider.make_token().split(".")
    return f"{header}.{encode_part(provider.make_claims(sub='mallory'))}.{signature}"


def hmac_with_public_key(provider: FakeIdentityProvider) -> str:
    return sign_with("HS256", provider.keys[0].public_pem, provider)


NOW = int(time.time())
REFUSED: dict[str, tuple[Forge, str]] = {
    "expired": (lambda p: p.make_token(exp=NOW - 120), "the token has expired"),
    "without an end": (lambda p: p.make_token(exp=None), "lacks a claim"),
    "an end that is no number": (lambda p: p.make_token(exp="soon"), "is not valid"),
    "of the future": (lambda p: p.make_token(nbf=NOW + 3600), "not valid yet"),
    "issued in the future": (lambda p: p.make_token(iat=NOW + 3600), "not valid yet"),
    "for another audience": (lambda p: p.make_token(aud="https://other.example.com"), "another audience"),
    "for an audience that begins alike": (lambda p: p.make_token(aud=AUDIENCE + "/x"), "another audience"),
    "without an audience": (lambda p: p.make_token(aud=None), "lacks a claim"),
    "of another issuer": (lambda p: p.make_token(iss="https://other.example.com"), "another issuer"),
    "of an issuer that differs by a slash": (lambda p: p.make_token(iss=p.issuer + "/"), "another issuer"),
    "without an issuer": (lambda p: p.make_token(iss=None), "lacks a claim"),
    "unsigned": (lambda p: sign_with("none", None, p), "not signed"),
    "signed with the public key as a secret": (hmac_with_public_key, "not signed"),
    "tampered": (tamper, "wrong signature"),
    "without its signature": (lambda p: p.make_token().rpartition(".")[0] + ".", "wrong signature"),
    "of a stranger's key with a known name": (
        lambda p: make_key("first", "RS384").sign(p.make_claims()),
        "wrong signature",
    ),
    "of an unknown key": (lambda p: make_key("unknown").sign(p.make_claims()), "not signed with a key"),
    "that names a key of another type": (
        lambda p: make_key("other", "ES256").sign(p.make_claims(), kid="first"),
        "not signed with a key",
    ),
    "of a stranger's key without a name": (
        lambda p: make_key(None, "PS256").sign(p.make_claims()),
        "wrong signature",
    ),
    "without a user": (lambda p: p.make_token(sub=None), "does not name a user"),
    "of a user whose id is not allowed": (lambda p: p.make_token(sub="*"), "does not name a user"),
    "of another type": (lambda p: p.keys[0].sign(p.make_claims(), typ="logout+jwt"), "no access token"),
    "that is an ID token": (lambda p: p.make_token(at_hash="x"), "ID token"),
    "that is an ID token of Keycloak": (lambda p: p.make_token(typ="ID"), "ID token"),
    "bound to a key of its client": (lambda p: p.make_token(cnf={"jkt": "x"}), "bound to a key"),
    "with a critical extension": (lambda p: p.keys[0].sign(p.make_claims(), crit=["x"], x=1), "is not valid"),
    "too large": (lambda p: p.make_token(more="x" * MAX_TOKEN_BYTES), "larger than 8 KiB"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("path", ["/discover", "/mcp"])
async def test_an_invalid_token_is_refused_with_a_challenge(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, case: str, path: str
) -> None:
    forge, words = REFUSED[case]
    token = forge(provider)
    body = PING if path == "/mcp" else {"query": "read a file"}
    answer = await http.post(path, json=body, headers=bearer(token))
    assert answer.status_code == 401, answer.text
    assert words in answer.text
    assert token not in answer.text
    challenge = answer.headers["www-authenticate"]
    expected = METADATA + ("/mcp" if path == "/mcp" else "")
    assert challenge.startswith(f'Bearer resource_metadata="{expected}", error="invalid_token", error_description="')
    assert words in challenge
    good = await http.post(path, json=body, headers=bearer(provider.make_token()))
    assert good.status_code == 200, good.text


@pytest.mark.parametrize("depth", [500, 900, 990, 1_020, 2_500])
async def test_a_deeply_nested_token_of_a_stranger_is_refused(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, depth: int
) -> None:
    nested = "[" * depth + "]" * depth
    header = f'{{"alg": "RS256", "kid": "first", "more": {nested}}}'
    part = base64.urlsafe_b64encode(header.encode()).rstrip(b"=").decode()
    for token in (f"{part}.e30.c2ln", f"{provider.make_token().partition('.')[0]}.{part}.c2ln"):
        assert (await http.get("/servers", headers=bearer(token))).status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": [AUDIENCE, "https://other.example.com"]},
        {"aud": PUBLIC_URL},
        {"aud": f"{PUBLIC_URL}/"},
        {"typ": "Bearer"},
        {"iat": None},
    ],
)
async def test_a_token_that_is_almost_refused_is_accepted(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, changes: dict[str, Any]
) -> None:
    assert (await http.get("/servers", headers=bearer(provider.make_token(**changes)))).status_code == 200


async def test_clocks_may_differ_by_a_minute(http: httpx.AsyncClient, provider: FakeIdentityProvider) -> None:
    now = int(time.time())
    for claims in ({"exp": now - 20}, {"nbf": now + 40}, {"iat": now + 40}):
        assert (await http.get("/servers", headers=bearer(provider.make_token(**claims)))).status_code == 200
    for claims in ({"exp": now - 61}, {"nbf": now + 90}, {"iat": now + 90}):
        assert (await http.get("/servers", headers=bearer(provider.make_token(**claims)))).status_code == 401


async def test_a_token_for_an_mcp_endpoint_counts_there_and_nowhere_else(
    http: httpx.AsyncClient, provider: FakeIdentityProvider
) -> None:
    basic, full = (provider.make_token(aud=f"{PUBLIC_URL}{path}") for path in ("/mcp", "/mcp/full"))
    assert (await call_mcp(http, basic)).status_code == 200
    assert (await call_mcp(http, basic, "/mcp/full")).status_code == 200
    assert (await call_mcp(http, full, "/mcp/full")).status_code == 200
    assert (await call_mcp(http, full)).status_code == 401
    assert_problem(await http.get("/servers", headers=bearer(basic)), 401)
    project = await http.post(
        "/projects", json={"name": fresh_id(), "server_ids": []}, headers=bearer(provider.make_token())
    )
    path = f"/projects/{project.json()['id']}/mcp"
    scoped = provider.make_token(aud=f"{PUBLIC_URL}{path}")
    assert (await call_mcp(http, scoped, path)).status_code == 200
    assert (await call_mcp(http, scoped)).status_code == 401
    assert (await call_mcp(http, basic, path)).status_code == 401


async def test_the_host_of_a_request_is_no_audience(http: httpx.AsyncClient, provider: FakeIdentityProvider) -> None:
    token = provider.make_token(aud="http://localhost/mcp")
    answer = await http.post("/mcp", json=PING, headers=bearer(token, Host="localhost"))
    assert answer.status_code == 401


async def test_a_request_without_credentials_is_told_where_to_get_a_token(http: httpx.AsyncClient) -> None:
    rest, mcp = await http.get("/servers"), await http.post("/mcp", json=PING)
    assert assert_problem(rest, 401)["code"] == "unauthenticated"
    assert rest.headers["www-authenticate"] == f'Bearer resource_metadata="{METADATA}"'
    assert mcp.headers["www-authenticate"] == f'Bearer resource_metadata="{METADATA}/mcp"'


async def test_without_an_identity_provider_a_token_is_an_unknown_key(
    client: httpx.AsyncClient, provider: FakeIdentityProvider
) -> None:
    answer = await client.get("/servers", headers=bearer(provider.make_token()))
    assert_problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_api_keys_work_beside_tokens(http: httpx.AsyncClient, service: Container) -> None:
    async with new_user(service) as user:
        for headers in ({"Authorization": f"Bearer {user.key}"}, {"X-API-Key": user.key}):
            assert (await http.get("/servers", headers=headers)).status_code == 200
    answer = await http.get("/servers", headers={"X-API-Key": "ts_user_unknown"})
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_a_token_is_taken_from_the_authorization_header_alone(
    http: httpx.AsyncClient, provider: FakeIdentityProvider
) -> None:
    assert_problem(await http.get("/servers", headers={"X-API-Key": provider.make_token()}), 401)
    repeated = [("Authorization", f"Bearer {provider.make_token()}")] * 2
    assert_problem(await http.get("/servers", headers=repeated), 400)


async def test_a_valid_token_costs_one_round_trip_to_the_database(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, service: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = bearer(provider.make_token())
    assert (await http.get("/servers", headers=token)).status_code == 200
    fetches = []
    fetch = type(service.database).system_fetch

    async def count_fetch(self: Any, statements: Any, **options: Any) -> Any:
        fetches.append(len(statements))
        return await fetch(self, statements, **options)

    monkeypatch.setattr(type(service.database), "system_fetch", count_fetch)
    requests = len(provider.requests)
    assert (await http.get("/servers", headers=token)).status_code == 200
    assert fetches == [1]
    assert len(provider.requests) == requests


async def test_the_rate_limit_counts_tokens_and_keys_of_a_user_together(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, provider: FakeIdentityProvider
) -> None:
    settings = make_settings(tmp_path_factory.mktemp("rate"), **provider.settings(rate_per_user=0.25))
    async with (
        open_container(settings, make_database(postgres), resolve_nothing) as service,
        new_user(service) as user,
        open_client(service) as http,
    ):
        tokens = [provider.make_token(sub=user.id, jti=str(number)) for number in range(3)]
        statuses = [(await http.get("/servers", headers=bearer(token))).status_code for token in tokens]
        assert statuses == [200, 429, 429]
        assert (await user.http.get("/servers")).status_code == 429
        assert (await http.get("/servers", headers=bearer(provider.make_token()))).status_code == 200


@pytest.mark.parametrize(
    ("claim", "claims", "user_id"),
    [
        ("email", {"email": "alice@example.com"}, "alice@example.com"),
        ("email", {"email": "alice@example.com", "email_verified": True}, "alice@example.com"),
        ("email", {"email": "alice@example.com", "email_verified": "true"}, "alice@example.com"),
        ("email", {"email": "alice@example.com", "email_verified": False}, None),
        ("email", {"email": "alice@example.com", "email_verified": "false"}, None),
        ("https://example.com/id", {"https://example.com/id": "a-1"}, "a-1"),
        ("person.id", {"person": {"id": "a-2"}}, "a-2"),
        ("person.id", {"person": "a-2"}, None),
    ],
)
async def test_the_claim_that_names_the_user_can_be_chosen(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    provider: FakeIdentityProvider,
    claim: str,
    claims: dict[str, Any],
    user_id: str | None,
) -> None:
    settings = make_settings(tmp_path_factory.mktemp("claim"), **provider.settings(oidc_user_claim=claim))
    async with (
        open_container(settings, make_database(postgres), resolve_nothing, working=False) as service,
        open_client(service) as http,
    ):
        body = {"name": "files", "transport": "push"}
        answer = await http.post("/servers", json=body, headers=bearer(provider.make_token(**claims)))
    assert answer.status_code == (201 if user_id else 401)
    assert user_id is None or answer.json()["user_id"] == user_id


async def test_no_token_is_logged(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    tokens = [provider.make_token(), *(forge(provider) for forge, _ in REFUSED.values())]
    for token in tokens:
        await http.get("/servers", headers=bearer(token))
    logged = "\n".join(json.dumps(record.__dict__, default=str) for record in caplog.records)
    assert caplog.records
    assert not [token for token in tokens if token.split(".")[1] in logged]


async def test_a_known_user_keeps_what_it_had_with_keys(
    http: httpx.AsyncClient, provider: FakeIdentityProvider, service: Container
) -> None:
    async with new_user(service) as user:
        assert isinstance(user, TestUser)
        server_id = await user.add_server()
        listed = await http.get("/servers", headers=bearer(provider.make_token(sub=user.id)))
        assert [server["id"] for server in listed.json()["items"]] == [server_id]

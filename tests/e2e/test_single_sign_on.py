"""People come with access tokens of an identity provider, oidc-provider, instead of API keys."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, free_port, running_service
from tests.support.browser import open_browser
from tests.support.factories import SLOW_MACHINE_ENV, tool
from tests.support.leaks import dump_database, find_leaks
from tests.support.mcp_client import get_text
from tests.support.oauth_client import connect_with_oauth
from tests.support.oidc_provider import OidcProvider, Person
from tests.support.protected_server import ProtectedServer
from tests.support.worker_steps import until

pytestmark = pytest.mark.needs_npm

AUDIENCE = "https://tools.example.com"


@dataclass(frozen=True)
class SignOn:
    service: Service
    provider: OidcProvider

    def get_token(self, account: str, resource: str = AUDIENCE) -> str:
        """Return an access token for this resource, by default for the whole service."""
        token: str = self.provider.issue_tokens(account, resource)["access_token"]
        return token

    def open(self, token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.service.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    async def assert_refused(self, token: str) -> None:
        """REST and MCP both refuse it, with the address at which a client learns where to sign in."""
        async with self.open(token) as http:
            answers = [await http.get("/tools"), await http.post("/mcp", json={})]
        for answer in answers:
            assert answer.status_code == 401, answer.text
            challenge = answer.headers["WWW-Authenticate"]
            assert 'error="invalid_token"' in challenge
            metadata = f'resource_metadata="{self.service.url}/.well-known/oauth-protected-resource'
            assert metadata in challenge

    async def assert_accepted(self, token: str) -> None:
        async with self.open(token) as http:
            answer = await http.get("/tools")
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, _running_provider: OidcProvider) -> Iterator[Service]:
    port = free_port()
    client = _running_provider.register(f"http://127.0.0.1:{port}/console/sign-in/callback")
    settings = {
        "TOOLSCOUT_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "TOOLSCOUT_OIDC_ISSUER": _running_provider.url,
        "TOOLSCOUT_OIDC_AUDIENCE": AUDIENCE,
        "TOOLSCOUT_OIDC_ADMIN_GROUPS": "operators",
        "TOOLSCOUT_OIDC_CLIENT_ID": client["client_id"],
        "TOOLSCOUT_OIDC_CLIENT_SECRET": client["client_secret"],
        "TOOLSCOUT_OIDC_SCOPES": "openid email groups",
        "TOOLSCOUT_LOG_LEVEL": "DEBUG",
        **SLOW_MACHINE_ENV,
    }
    with running_service(tmp_path_factory.mktemp("service"), settings, port) as running:
        yield running


@pytest.fixture
def sign_on(service: Service, provider: OidcProvider) -> SignOn:
    return SignOn(service, provider)


async def test_the_sdks_client_connects_without_an_api_key(sign_on: SignOn) -> None:
    url = f"{sign_on.service.url}/mcp"
    async with connect_with_oauth(url, Person("ada")) as client:
        assert [each.name for each in (await client.list_tools()).tools] == ["tool_discovery", "tool_execute"]
        found = await client.call_tool("tool_discovery", {"query": ["send a mail"]})
        assert not found.is_error, get_text(found)
    asked = sign_on.provider.find_requests("/token", grant_type="authorization_code", resource=url)
    assert asked[-1]["status"] == 200


async def test_each_person_is_a_user_of_their_own(sign_on: SignOn) -> None:
    hers, his = sign_on.get_token("ada"), sign_on.get_token("bob")
    async with sign_on.open(hers) as ada, sign_on.open(his) as bob:
        server = (await ada.post("/servers", json={"name": "files", "transport": "push"})).json()
        tools = {"tools": [tool("list_files", "Lists files.")]}
        await ada.put(f"/servers/{server['id']}/tools", json=tools, params={"wait": True})
        assert [each["name"] for each in (await ada.get("/tools")).json()["items"]] == ["list_files"]
        assert (await bob.get("/tools")).json()["items"] == []
        assert (await bob.get(f"/servers/{server['id']}")).status_code == 404
        assert (await ada.get("/tools", headers={"X-User-Id": "bob"})).status_code == 403
    with sign_on.service.admin() as admin:
        assert {"ada", "bob"} <= {user["id"] for user in admin.get("/users").json()["items"]}


async def test_members_of_an_admin_group_are_administrators(sign_on: SignOn) -> None:
    async with sign_on.open(sign_on.get_token("root")) as http:
        assert (await http.get("/users")).status_code == 200
    async with sign_on.open(sign_on.get_token("ada")) as http:
        assert (await http.get("/users")).status_code == 403


async def test_a_token_for_another_resource_is_refused(sign_on: SignOn, server: ProtectedServer) -> None:
    token = sign_on.get_token("ada", server.url)
    assert server.accepts(token)
    await sign_on.assert_refused(token)
    await sign_on.assert_accepted(sign_on.get_token("ada"))


async def test_a_token_for_an_mcp_endpoint_is_accepted_there_and_below_alone(sign_on: SignOn) -> None:
    basic, full = (sign_on.get_token("ada", f"{sign_on.service.url}{path}") for path in ("/mcp", "/mcp/full"))
    async with sign_on.open(basic) as http:
        assert (await http.post("/mcp", json={})).status_code == 400
        assert (await http.post("/mcp/full", json={})).status_code == 400
        assert (await http.get("/tools")).status_code == 401
    async with sign_on.open(full) as http:
        assert (await http.post("/mcp/full", json={})).status_code == 400
        assert (await http.post("/mcp", json={})).status_code == 401


async def test_an_id_token_is_not_an_access_token(sign_on: SignOn) -> None:
    issued = sign_on.provider.issue_tokens("ada", AUDIENCE)
    await sign_on.assert_refused(issued["id_token"])
    await sign_on.assert_accepted(issued["access_token"])


async def test_replaced_keys_are_fetched_and_the_old_ones_no_longer_count(sign_on: SignOn) -> None:
    old = sign_on.get_token("ada")
    await sign_on.assert_accepted(old)
    sign_on.provider.rotate_keys()
    async with sign_on.open(sign_on.get_token("ada")) as http:

        async def is_accepted() -> bool:  # the keys are fetched at most once in ten seconds
            return (await http.get("/tools")).status_code == 200

        await until(is_accepted)
    await sign_on.assert_refused(old)


def encode(part: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def decode(part: str) -> dict[str, object]:
    decoded: dict[str, object] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return decoded


async def test_a_token_that_was_changed_or_is_not_signed_is_refused(sign_on: SignOn) -> None:
    token = sign_on.get_token("ada")
    header, payload, signature = token.split(".")
    other_user = encode(decode(payload) | {"sub": "root", "groups": ["operators"]})
    unsigned = encode(decode(header) | {"alg": "none"})
    for forged in (
        f"{header}.{other_user}.{signature}",
        f"{header}.{payload}.",
        f"{unsigned}.{payload}.",
        f"{unsigned}.{payload}.{signature}",
        f"{header}.{payload}.{signature[:-8]}AAAAAAAA",
    ):
        await sign_on.assert_refused(forged)
    await sign_on.assert_accepted(token)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_tokens_of_every_usual_algorithm_are_accepted(sign_on: SignOn, algorithm: str) -> None:
    sign_on.provider.change(algorithm=algorithm)
    token = sign_on.get_token("ada")
    assert decode(token.split(".")[0])["alg"] == algorithm
    await sign_on.assert_accepted(token)


@pytest.mark.needs_chromium
@pytest.mark.parametrize(("account", "sees_users"), [("root", True), ("ada", False)])
async def test_people_sign_in_to_the_console_in_a_browser_and_no_secret_of_it_is_kept(
    sign_on: SignOn, account: str, *, sees_users: bool
) -> None:
    async with open_browser() as browser:
        page = await browser.new_page(base_url=sign_on.service.url)
        page.set_default_timeout(60_000)
        await page.route("**/*.googleapis.com/**", lambda route: route.abort())  # the provider's pages want a font
        await page.goto("/console")
        await page.get_by_role("link", name="Sign in with").click()
        await page.locator("input[name=login]").fill(account)
        await page.locator("input[name=password]").fill("any")
        await page.get_by_role("button", name="Sign-in").click()
        await page.get_by_role("button", name="Continue").click()
        await page.get_by_role("button", name="Sign out").wait_for()
        assert page.url.startswith(f"{sign_on.service.url}/console")
        assert "code=" not in page.url
        assert await page.get_by_role("link", name="Users", exact=True).is_visible() is sees_users
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("link", name="Sign in with").wait_for()
        await page.goto("/console/servers")
        await page.get_by_role("link", name="Sign in with").wait_for()
    secrets = sign_on.provider.find_secrets()
    assert sign_on.provider.find_requests("/token")[-1]["body"]["id_token"] in secrets
    with sign_on.service.admin() as http:
        answers = http.get("/audit", params={"limit": 200}).text + http.get("/metrics").text
    log = (sign_on.service.folder / "service.log").read_text()
    dump = dump_database(EmbeddedPostgres(sign_on.service.folder / "data").url)
    assert account in dump["users"]
    assert find_leaks("\n".join([log, answers, *dump.values()]), secrets) == []

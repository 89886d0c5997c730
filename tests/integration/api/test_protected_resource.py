"""The metadata of our MCP endpoints as protected resources, and the way from a 401 to it."""

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from mcp.client.auth.utils import build_protected_resource_metadata_discovery_urls
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

from app.container import Container
from tests.support.checks import assert_problem
from tests.support.clients import open_client
from tests.support.factories import OpenService
from tests.support.identity_provider import PUBLIC_URL, FakeIdentityProvider, running_identity_provider

WELL_KNOWN = "/.well-known/oauth-protected-resource"
PROJECT = f"/projects/{uuid.uuid4()}"
MCP_PATHS = ["/mcp", "/mcp/full", f"{PROJECT}/mcp", f"{PROJECT}/mcp/full"]


@pytest.fixture
def provider() -> Iterator[FakeIdentityProvider]:
    with running_identity_provider() as running:
        yield running


@pytest.fixture
async def http(open_service: OpenService, provider: FakeIdentityProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with open_service(**provider.settings()) as service, open_client(service) as opened:
        yield opened


async def test_each_mcp_endpoint_is_described_as_clients_compute_it(
    http: httpx.AsyncClient, provider: FakeIdentityProvider
) -> None:
    for path in MCP_PATHS:
        server_url = f"{PUBLIC_URL}{path}"
        refused = await http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        named = refused.headers["www-authenticate"].removeprefix('Bearer resource_metadata="').removesuffix('"')
        assert named == build_protected_resource_metadata_discovery_urls(None, server_url)[0]
        document = (await http.get(named)).json()
        assert document["resource"] == resource_url_from_server_url(server_url)
        assert document["authorization_servers"] == [provider.issuer]
        assert document["bearer_methods_supported"] == ["header"]
        assert document["scopes_supported"] == ["openid", "profile", "email"]
        assert document["resource_documentation"] == f"{PUBLIC_URL}/docs"


async def test_a_request_without_credentials_is_told_of_tokens_only_where_they_are_accepted(
    http: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    detail = assert_problem(await http.get("/servers"), 401)["detail"]
    assert detail.startswith("send an API key, or an access token of the identity provider: ")
    assert assert_problem(await client.get("/servers"), 401)["detail"].startswith("send an API key: ")


async def test_the_service_as_a_whole_is_a_resource_that_covers_its_endpoints(http: httpx.AsyncClient) -> None:
    resource = (await http.get(WELL_KNOWN)).json()["resource"]
    assert resource == PUBLIC_URL
    assert all(check_resource_allowed(f"{PUBLIC_URL}{path}", resource) for path in MCP_PATHS)


@pytest.mark.parametrize("path", ["/servers", "/mcp/", "/mcp/other", "/projects/mcp", "/projects/a/b/mcp", "//mcp"])
async def test_other_paths_are_no_resources(http: httpx.AsyncClient, path: str) -> None:
    assert_problem(await http.get(f"{WELL_KNOWN}{path}"), 404)
    assert (await http.get(f"{WELL_KNOWN}/mcp?some=parameter")).status_code == 200


async def test_without_an_identity_provider_there_is_no_metadata(client: httpx.AsyncClient) -> None:
    for path in ("", *MCP_PATHS):
        assert_problem(await client.get(f"{WELL_KNOWN}{path}"), 404)


async def test_pages_of_any_origin_may_read_it(http: httpx.AsyncClient) -> None:
    for path in ("", "/mcp"):
        headers = {"Origin": "https://inspector.example.com"}
        asked = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "mcp-protocol-version"}
        preflight = await http.options(f"{WELL_KNOWN}{path}", headers=headers | asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "*"
        assert (await http.get(f"{WELL_KNOWN}{path}", headers=headers)).headers["access-control-allow-origin"] == "*"


async def test_pages_of_a_listed_origin_may_read_the_challenge(
    open_service: OpenService, provider: FakeIdentityProvider
) -> None:
    origin = {"Origin": "https://inspector.example.com"}
    async with open_service(**provider.settings(web_origins=origin["Origin"])) as service, open_client(service) as http:
        refused = await http.post("/mcp", json={}, headers=origin)
        assert refused.status_code == 401
        assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]
        assert (await http.get(f"{WELL_KNOWN}/mcp", headers=origin)).status_code == 200


async def test_without_a_public_url_the_request_tells_the_host_if_it_is_ours(
    open_service: OpenService, provider: FakeIdentityProvider
) -> None:
    settings = provider.settings(public_url=None, served_hosts="tools.example.com")
    async with open_service(**settings) as service, open_client(service) as http:
        for host in ("localhost:8000", "tools.example.com"):
            document = (await http.get(f"{WELL_KNOWN}/mcp", headers={"Host": host})).json()
            assert document["resource"] == f"http://{host}/mcp"
            refused = await http.get("/servers", headers={"Host": host})
            assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="http://{host}{WELL_KNOWN}"'
        for host in ("evil.example.com", 'a"b'):
            assert_problem(await http.get(f"{WELL_KNOWN}/mcp", headers={"Host": host}), 421)
            assert (await http.get("/servers", headers={"Host": host})).headers["www-authenticate"] == "Bearer"


async def test_strangers_need_no_database_to_read_it(
    open_service: OpenService, provider: FakeIdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(**provider.settings()) as service, open_client(service) as http:
        assert isinstance(service, Container)

        async def fail(*_: object, **__: object) -> None:
            raise AssertionError("the database was asked")

        monkeypatch.setattr(type(service.database), "system_fetch", fail)
        assert (await http.get(WELL_KNOWN)).status_code == 200

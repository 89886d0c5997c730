"""The authorization server and the protected MCP server that other tests use, written by others, work with each other.

Toolscout takes no part: what fails here is not its fault.
"""

import httpx
import jwt
import pytest
from mcp.shared.auth import OAuthClientInformationFull

from tests.support.fastmcp_server import running_fastmcp_server
from tests.support.mcp_client import get_text
from tests.support.oauth_client import CALLBACK, MemoryTokens, connect_with_oauth
from tests.support.oidc_provider import OidcProvider, Person
from tests.support.protected_server import ALGORITHMS, ProtectedServer

pytestmark = pytest.mark.needs_npm


def test_the_server_challenges_a_request_without_a_token(server: ProtectedServer) -> None:
    answer = httpx.post(server.url, json={})
    assert answer.status_code == 401
    assert "resource_metadata=" in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_the_sdks_client_signs_in_and_calls(
    provider: OidcProvider, server: ProtectedServer, algorithm: str
) -> None:
    provider.change(algorithm=algorithm)
    storage = MemoryTokens()
    async with connect_with_oauth(server.url, Person("ada"), storage) as client:
        assert get_text(await client.call_tool("list_notes", {})) == "the notes of ada"
    assert storage.tokens is not None
    assert jwt.get_unverified_header(storage.tokens.access_token)["alg"] == algorithm
    claims = jwt.decode(storage.tokens.access_token, options={"verify_signature": False})
    assert (claims["aud"], claims["iss"], claims["groups"]) == (server.url, provider.url, ["staff"])


async def test_a_token_of_replaced_keys_is_refused_and_a_new_one_is_accepted(
    provider: OidcProvider, server: ProtectedServer
) -> None:
    storage = MemoryTokens()
    async with connect_with_oauth(server.url, Person("ada"), storage) as client:
        await client.call_tool("list_notes", {})
        provider.rotate_keys()
        assert storage.tokens is not None
        assert not server.accepts(storage.tokens.access_token)
        assert get_text(await client.call_tool("list_notes", {})) == "the notes of ada"


async def test_an_opaque_token_is_accepted_until_the_provider_revokes_it(
    provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(accessTokenFormat="opaque")
    storage = MemoryTokens()
    async with connect_with_oauth(server.url, Person("bob"), storage) as client:
        assert get_text(await client.call_tool("list_notes", {})) == "the notes of bob"
    assert storage.tokens is not None
    assert server.accepts(storage.tokens.access_token)
    provider.revoke_grants()
    assert not server.accepts(storage.tokens.access_token)


async def test_a_refresh_token_is_accepted_once(provider: OidcProvider, server: ProtectedServer) -> None:
    storage = MemoryTokens()
    async with connect_with_oauth(server.url, Person("ada"), storage) as client:
        await client.call_tool("list_notes", {})
    assert storage.tokens is not None
    assert storage.client is not None
    client_id, secret, spent = storage.client.client_id, storage.client.client_secret, storage.tokens.refresh_token
    assert secret is not None
    assert spent is not None
    answers = [provider.refresh((client_id, secret), spent, server.url) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert answers[0].json()["refresh_token"] != spent
    assert answers[1].json()["error"] == "invalid_grant"


async def test_a_tool_can_ask_for_more_scopes(provider: OidcProvider, server: ProtectedServer) -> None:
    before = len(provider.find_requests("/auth"))
    # The client would register with the scopes that it needs first, and the provider lets it ask for no others.
    registered = OAuthClientInformationFull(**provider.register(CALLBACK), issuer=provider.url)
    storage = MemoryTokens(client=registered)
    async with connect_with_oauth(server.url, Person("ada"), storage) as client:
        await client.call_tool("list_notes", {})
        assert get_text(await client.call_tool("delete_note", {"name": "plan"})) == "ada deleted plan"
    scopes = [each["params"]["scope"] for each in provider.find_requests("/auth")[before:]]
    assert "tools:write" not in scopes[0]
    assert {"tools:read", "tools:write"} <= set(scopes[-1].split())


def test_a_person_who_refuses_is_sent_back_with_an_error(provider: OidcProvider) -> None:
    registration = {"redirect_uris": ["http://127.0.0.1:1/callback"], "token_endpoint_auth_method": "none"}
    client_id = httpx.post(f"{provider.url}/reg", json=registration).json()["client_id"]
    query = {"client_id": client_id, "response_type": "code", "scope": "openid", "state": "s"}
    query |= {"code_challenge": "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM", "code_challenge_method": "S256"}
    url = str(httpx.URL(f"{provider.url}/auth", params=query))
    assert "error=access_denied" in Person("ada").deny(url)
    back = Person("ada").authorize(url)
    assert "code=" in back
    assert httpx.URL(back).params["iss"] == provider.url


def test_a_fault_answers_in_place_of_the_provider_and_is_recorded(provider: OidcProvider) -> None:
    with provider.failing("/token", status=500, body="rubbish"):
        assert httpx.post(f"{provider.url}/token").text == "rubbish"
    assert httpx.post(f"{provider.url}/token").json()["error"] == "invalid_request"
    with provider.failing("/token"), pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{provider.url}/token", timeout=0.2)


async def test_the_sdks_client_signs_in_to_a_server_of_fastmcp() -> None:
    with running_fastmcp_server() as server:
        async with connect_with_oauth(server.url, Person("ada")) as client:
            assert get_text(await client.call_tool("add_task", {"title": "milk"})) == "added milk"

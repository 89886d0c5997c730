"""Who Toolscout is to an authorization server: the operator's client, a metadata document, or a registration."""

import json
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import SecretStr
from starlette.responses import JSONResponse

from app.container import Container
from tests.support.authorization_server import AuthorizationServer
from tests.support.checks import assert_problem
from tests.support.clients import new_user, open_client
from tests.support.factories import OpenService
from tests.support.protected_server import ProtectedServer
from tests.support.sign_in import SignIn

PUBLIC = "https://tools.example.com"
DOCUMENT = f"{PUBLIC}/oauth/client-metadata.json"


@pytest.fixture(scope="module")
async def public_service(
    open_shared_service: OpenService, running: tuple[AuthorizationServer, ProtectedServer]
) -> AsyncIterator[Container]:
    allowed = ",".join(server.address for server in running)
    async with open_shared_service(outbound_allow=allowed, public_url=f"{PUBLIC}/") as opened:
        yield opened


@pytest.fixture
async def public(
    public_service: Container, authorization: AuthorizationServer, protected: ProtectedServer
) -> AsyncIterator[SignIn]:
    """A user of a service with a public address."""
    async with new_user(public_service) as user:
        yield SignIn(public_service, user, authorization, protected)


def get_client_id(url: str) -> str:
    return parse_qs(urlsplit(url).query)["client_id"][0]


async def test_the_metadata_document_says_who_we_are(public: SignIn) -> None:
    async with open_client(public.service) as stranger:
        answer = await stranger.get("/oauth/client-metadata.json")
    document = answer.json()
    assert (document["client_id"], document["redirect_uris"]) == (DOCUMENT, [f"{PUBLIC}/oauth/callback"])
    assert (document["token_endpoint_auth_method"], document["application_type"]) == ("none", "web")


async def test_a_service_without_a_public_address_has_no_document(client: httpx.AsyncClient) -> None:
    assert_problem(await client.get("/oauth/client-metadata.json"), 404)


async def test_the_metadata_document_is_used_where_the_server_supports_it(public: SignIn) -> None:
    public.authorization.metadata = {"client_id_metadata_document_supported": True}
    public.authorization.clients[DOCUMENT] = {"redirect_uris": [f"{PUBLIC}/oauth/callback"]}
    server_id = await public.add_server()
    assert get_client_id(await public.start(server_id)) == DOCUMENT
    await public.connect(server_id)
    assert public.authorization.find_requests("/reg") == []
    assert (await public.user.execute("list_notes")).status_code == 200


async def test_a_client_is_registered_where_the_server_does_not_support_it(public: SignIn) -> None:
    assert get_client_id(await public.start(await public.add_server())) == "client-0"
    [registered] = public.authorization.find_requests("/reg")
    assert registered["redirect_uris"] == [f"{PUBLIC}/oauth/callback"]


@pytest.mark.parametrize("method", [None, "client_secret_post"])
async def test_the_operators_client_comes_first(
    open_service: OpenService, authorization: AuthorizationServer, protected: ProtectedServer, method: str | None
) -> None:
    authorization.metadata = {"client_id_metadata_document_supported": True}
    authorization.clients["ours"] = {"client_secret": "s3cret", "redirect_uris": [f"{PUBLIC}/oauth/callback"]}
    client = {"client_id": "ours", "client_secret": "s3cret", "scope": "tools:read tools:write"}
    client |= {} if method is None else {"token_endpoint_auth_method": method}
    changes = {
        "outbound_allow": f"{authorization.address},{protected.address}",
        "public_url": PUBLIC,
        "oauth_clients": SecretStr(json.dumps({f"{authorization.url}/": client})),
    }
    async with open_service(**changes) as service, new_user(service) as user:
        sign_in = SignIn(service, user, authorization, protected)
        server_id = await sign_in.add_server()
        url = await sign_in.start(server_id)
        assert get_client_id(url) == "ours"
        assert parse_qs(urlsplit(url).query)["scope"] == ["tools:read tools:write"]
        await sign_in.connect(server_id)
        await sign_in.age_token(3_601)
        assert (await user.execute("list_notes")).status_code == 200
    assert authorization.find_requests("/reg") == []


async def test_a_server_that_registers_nobody_says_what_the_operator_can_do(sign_in: SignIn) -> None:
    sign_in.authorization.faults["/reg"] = JSONResponse({"error": "invalid_client_metadata"}, 400)
    answer = await sign_in.user.http.post(f"/servers/{await sign_in.add_server()}/connect")
    assert "TOOLSCOUT_OAUTH_CLIENTS" in assert_problem(answer, 502, "SERVER_CONNECTION_ERROR")["detail"]


async def test_a_client_is_used_again_while_its_account_lives(sign_in: SignIn, service: Container) -> None:
    server_id = await sign_in.connect()
    await sign_in.connect(server_id)
    assert len(sign_in.authorization.find_requests("/reg")) == 1
    await sign_in.user.http.delete(f"/servers/{server_id}/connection")
    await sign_in.connect(server_id)
    assert len(sign_in.authorization.find_requests("/reg")) == 2

"""No address of a sign-in leads into our network: each is checked like that of a server."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.container import Container
from tests.support.checks import assert_problem
from tests.support.mcp_server import Listener, listener
from tests.support.sign_in import SignIn

Json = dict[str, Any]


@pytest.fixture
def inside() -> Iterator[Listener]:
    """A listener in our network that the operator does not list."""
    with listener() as opened:
        yield opened


def name_metadata(sign_in: SignIn, **changes: Any) -> None:
    """Let the server's challenge name metadata that somebody else serves."""
    sign_in.authorization.resource_metadata = {
        "resource": sign_in.protected.url,
        "authorization_servers": [sign_in.authorization.url],
        "scopes_supported": ["tools:read"],
    } | changes
    sign_in.protected.challenge = f'Bearer resource_metadata="{sign_in.authorization.url}/resource"'


async def test_metadata_at_an_allowed_address_is_used(sign_in: SignIn) -> None:
    name_metadata(sign_in)
    await sign_in.connect()
    assert (await sign_in.user.execute("list_notes")).status_code == 200


async def refuse(sign_in: SignIn) -> str:
    answer = await sign_in.user.http.post(f"/servers/{await sign_in.add_server()}/connect")
    return str(assert_problem(answer, 502, "SERVER_CONNECTION_ERROR")["detail"])


async def test_metadata_of_the_resource_inside_our_network_is_not_fetched(sign_in: SignIn, inside: Listener) -> None:
    sign_in.protected.challenge = f'Bearer resource_metadata="http://127.0.0.1:{inside.port}/"'
    assert "only https:// is allowed" in await refuse(sign_in)
    assert inside.connects == 0


async def test_an_authorization_server_inside_our_network_is_not_asked(sign_in: SignIn, inside: Listener) -> None:
    name_metadata(sign_in, authorization_servers=[f"http://127.0.0.1:{inside.port}"])
    assert "only https:// is allowed" in await refuse(sign_in)
    assert inside.connects == 0


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://localhost/",
        "https://10.0.0.1/",
        "http://example.com/",
        "https://user:secret@example.com/",
    ],
)
@pytest.mark.parametrize("endpoint", ["registration_endpoint", "authorization_endpoint"])
async def test_an_endpoint_that_is_not_public_is_refused(sign_in: SignIn, endpoint: str, url: str) -> None:
    sign_in.authorization.metadata = {endpoint: url}
    await refuse(sign_in)


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "no address"])
async def test_what_is_no_address_of_a_page_is_refused(sign_in: SignIn, url: str) -> None:
    sign_in.authorization.metadata = {"authorization_endpoint": url}
    answer = await sign_in.user.http.post(f"/servers/{await sign_in.add_server()}/connect")
    assert answer.status_code in (422, 502)


async def test_a_token_endpoint_inside_our_network_gets_no_code(sign_in: SignIn, inside: Listener) -> None:
    sign_in.authorization.metadata = {"token_endpoint": f"http://127.0.0.1:{inside.port}/token"}
    callback = sign_in.authorization.approve(await sign_in.start(await sign_in.add_server()))
    page = await sign_in.come_back(callback)
    assert (page.status_code, "cannot be reached" in page.text) == (400, True)
    assert inside.connects == 0


async def test_a_revocation_endpoint_inside_our_network_gets_no_token(sign_in: SignIn, inside: Listener) -> None:
    sign_in.authorization.metadata = {"revocation_endpoint": f"http://127.0.0.1:{inside.port}/revoke"}
    server_id = await sign_in.connect()
    assert (await sign_in.user.http.delete(f"/servers/{server_id}/connection")).status_code == 204
    assert inside.connects == 0


async def test_an_address_that_is_no_longer_allowed_is_not_asked_for_new_tokens(
    sign_in: SignIn, service: Container
) -> None:
    server_id = await sign_in.connect()
    await sign_in.age_token(3_601)
    service.mcp_pool.guard.allow([sign_in.protected.address])
    try:
        assert_problem(await sign_in.user.execute("list_notes"), 502, "SERVER_CONNECTION_ERROR")
    finally:
        service.mcp_pool.guard.allow([sign_in.protected.address, sign_in.authorization.address])
    assert (await sign_in.user.execute("list_notes")).status_code == 200
    assert server_id


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": None},
        {"code_challenge_methods_supported": ["plain"]},
    ],
    ids=["issuer", "incomplete", "no-pkce"],
)
async def test_metadata_that_cannot_be_trusted_is_refused(sign_in: SignIn, metadata: Json) -> None:
    sign_in.authorization.metadata = metadata
    answer = await sign_in.user.http.post(f"/servers/{await sign_in.add_server()}/connect")
    assert answer.status_code in (422, 502), answer.text
    assert "evil" not in answer.text


async def test_metadata_about_another_resource_is_refused(sign_in: SignIn) -> None:
    name_metadata(sign_in, resource="https://another.example/mcp")
    assert "not about this server" in await refuse(sign_in)

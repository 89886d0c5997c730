"""What we rely on in the SDK's OAuth client, though it is not public: a new version may change it."""

import inspect

import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider

from app.mcp_client.transport import SignIn, find_challenge

METHODS = {
    "_auth_flow": ["self", "request"],
    "_exchange_token_authorization_code": ["self", "auth_code", "code_verifier"],
    "_handle_token_response": ["self", "response"],
    "_refresh_token": ["self"],
    "_handle_refresh_response": ["self", "response"],
    "_expected_issuer": ["self"],
}


@pytest.mark.parametrize("name", METHODS)
def test_the_sdks_client_has_the_methods_that_we_call(name: str) -> None:
    assert list(inspect.signature(getattr(OAuthClientProvider, name)).parameters) == METHODS[name]


@pytest.mark.parametrize(
    ("status", "challenge", "sign_in", "expected"),
    [
        (401, 'Bearer resource_metadata="https://a.example/"', "unknown", (401, None)),
        (401, 'Bearer scope="read write"', "unknown", (401, "read write")),
        (401, 'Basic realm="a", bearer', "unknown", (401, None)),
        (401, "Basic", "unknown", None),
        (401, "", "unknown", None),
        (401, "", "token", (401, None)),
        (401, "Bearer", "own_headers", None),
        (403, 'Bearer error="insufficient_scope", scope="write"', "token", (403, "write")),
        (403, 'Bearer error="insufficient_scope", scope="write"', "unknown", (403, "write")),
        (403, 'Bearer error="insufficient_scope", scope="write"', "own_headers", None),
        (403, 'Bearer error="invalid_token"', "token", None),
        (403, "", "token", None),
    ],
)
def test_a_challenge_is_told_from_rejected_credentials(
    status: int, challenge: str, sign_in: SignIn, expected: tuple[int, str | None] | None
) -> None:
    response = httpx2.Response(status, headers={"WWW-Authenticate": challenge} if challenge else {})
    error = find_challenge(response, sign_in)
    assert expected == (None if error is None else (error.http_status, error.required_scope))

"""The comparison of responses with the OpenAPI document, by which every test that uses a client checks the document."""

import httpx
import pytest

from app.container import Container
from tests.support.clients import TestUser, describe, get_app, get_contract
from tests.support.openapi_contract import OpenApiContract


def make_response(method: str, path: str, status: int, **content: object) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request(method, f"http://toolscout{path}"), **content)  # type: ignore[arg-type]


def test_responses_are_compared_with_the_document_of_the_application(container: Container) -> None:
    assert describe(container.settings.role) == get_app(container).openapi()


async def test_described_responses_pass(user: TestUser, container: Container) -> None:
    assert (await user.http.get("/servers")).status_code == 200
    assert (await user.http.get("/servers/unknown")).status_code == 404
    contract = OpenApiContract(describe(container.settings.role))
    await contract.check(make_response("GET", "/healthz", 200, json={"status": "ok"}))
    await contract.check(make_response("GET", "/not-described", 418, text="a teapot"))
    assert user.http.event_hooks["response"] == [get_contract(container).check]


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (make_response("GET", "/healthz", 200, json={"status": 1}), r"not as described: .*status: 1 is not of type"),
        (make_response("GET", "/healthz", 200, text="ok"), "as 'text/plain'"),
        (make_response("GET", "/healthz", 201, json={"status": "ok"}), "which the document does not describe"),
        (make_response("GET", "/servers/x", 404, json={}), "as 'application/json'"),
        (
            make_response("GET", "/servers/x", 404, json={}, headers={"Content-Type": "application/problem+json"}),
            "'title' is a required property",
        ),
    ],
    ids=["another shape", "another media type", "another status", "an error that is no problem", "a poor problem"],
)
async def test_a_response_that_differs_is_noticed(container: Container, response: httpx.Response, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        await OpenApiContract(describe(container.settings.role)).check(response)

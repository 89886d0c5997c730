"""Rate limit: a user over its rate gets 429 with Retry-After, and other users are not affected."""

from functools import partial

import httpx
import pytest

from app.limits.rate_limit import RateLimiter
from tests.support.checks import assert_problem
from tests.support.clients import new_user, open_client
from tests.support.console_client import find_error, open_console
from tests.support.factories import ADMIN_KEY, OpenService

pytestmark = pytest.mark.no_retry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def _frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token flows in, however slow this machine is."""
    monkeypatch.setattr("app.container.RateLimiter", partial(RateLimiter, clock=Clock()))


@pytest.mark.usefixtures("_frozen_clock")
async def test_one_user_over_its_rate_does_not_touch_another(open_service: OpenService) -> None:
    async with open_service(rate_per_user=0.5) as service, new_user(service) as greedy, new_user(service) as other:
        answers = [await greedy.http.get("/tools") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert_problem(answers[2], 429, "rate_limited")
        assert 1 <= int(answers[2].headers["retry-after"]) <= 2
        assert (await other.http.get("/tools")).status_code == 200
        assert (await greedy.http.get("/healthz")).status_code == 200
        assert 'toolscout_requests_refused_total{reason="rate_limited"} 2.0' in (await greedy.http.get("/metrics")).text


@pytest.mark.usefixtures("_frozen_clock")
async def test_a_service_key_takes_tokens_of_its_user_and_an_admin_key_takes_none(
    open_service: OpenService,
) -> None:
    async with open_service(rate_per_user=0.25) as service:
        async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin:
            key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
            assert {(await admin.get("/tools", headers={"X-User-Id": "carol"})).status_code for _ in range(5)} == {200}
        async with open_client(service, Authorization=f"Bearer {key}") as backend:
            asked = [await backend.get("/tools", headers={"X-User-Id": name}) for name in ("carol", "dave", "carol")]
    assert [answer.status_code for answer in asked] == [200, 200, 429]


@pytest.mark.usefixtures("_frozen_clock")
async def test_the_mcp_endpoint_has_the_same_rate_limit(open_service: OpenService) -> None:
    async with open_service(rate_per_user=0.25) as service, new_user(service) as user:
        answers = [await list_tools(user.http) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["data"]["code"] == "rate_limited"
    assert int(answers[1].headers["retry-after"]) >= 1


@pytest.mark.usefixtures("_frozen_clock")
async def test_the_console_has_the_same_rate_limit(open_service: OpenService) -> None:
    async with open_service(rate_per_user=0.75) as service, new_user(service) as user, new_user(service) as other:
        async with open_console(service, user.key) as console:  # takes two tokens, for the pages after signing in
            pages = [await console.http.get("/console/servers") for _ in range(2)]
            assert [page.status_code for page in pages] == [200, 429]
            assert int(pages[1].headers["retry-after"]) >= 1
            assert "Too many requests" in find_error(pages[1].text)
            assert (await console.http.get("/console/sign-in")).status_code == 200
        assert (await user.http.get("/tools")).status_code == 429
        async with open_console(service, other.key) as console:
            await console.get_page("/console/servers")


async def list_tools(http: httpx.AsyncClient) -> httpx.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    return await http.post(
        "/mcp", json=message, headers={"Accept": "application/json, text/event-stream", "Host": "localhost"}
    )

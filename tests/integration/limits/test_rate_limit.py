"""Rate limit: a user over its rate gets 429 with Retry-After, and other users are not affected."""

import itertools
from functools import partial

import httpx
import pytest

from app.errors import RateLimited
from app.limits import rate_limit
from app.limits.rate_limit import RateLimiter
from app.observability.metrics import Metrics
from tests.support.checks import assert_problem
from tests.support.clients import new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService

pytestmark = pytest.mark.no_retry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def exhaust(limits: RateLimiter, user_id: str) -> int:
    """Send requests until one is refused, and return how many passed."""
    for count in itertools.count():
        try:
            limits.acquire(user_id)
        except RateLimited:
            return count
    raise AssertionError


def test_after_a_burst_requests_pass_at_the_configured_rate() -> None:
    clock = Clock()
    limits = RateLimiter(10, Metrics(), clock)
    assert exhaust(limits, "alice") == 40
    clock.now += 1
    assert exhaust(limits, "alice") == 10
    clock.now += 3600
    assert exhaust(limits, "alice") == 40


def test_each_user_has_its_own_bucket() -> None:
    limits = RateLimiter(1, Metrics(), Clock())
    assert exhaust(limits, "alice") == exhaust(limits, "bob") == 4


@pytest.mark.parametrize(("per_second", "retry_after_s"), [(10, 1), (0.1, 10)])
def test_a_refused_request_passes_after_retry_after(per_second: float, retry_after_s: int) -> None:
    clock = Clock()
    limits = RateLimiter(per_second, Metrics(), clock)
    exhaust(limits, "alice")
    with pytest.raises(RateLimited) as refused:
        limits.acquire("alice")
    assert refused.value.retry_after_s == retry_after_s
    clock.now += retry_after_s
    limits.acquire("alice")


def test_refused_requests_take_no_tokens() -> None:
    clock = Clock()
    limits = RateLimiter(1, Metrics(), clock)
    exhaust(limits, "alice")
    for _ in range(20):
        assert exhaust(limits, "alice") == 0
    clock.now += 1
    assert exhaust(limits, "alice") == 1


def test_the_number_of_buckets_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MAX_BUCKETS", 100)
    limits = RateLimiter(1, Metrics(), Clock())
    for number in range(1_000):
        limits.acquire(f"user-{number}")
    assert len(limits._buckets) == 100


def test_zero_means_no_limit() -> None:
    limits = RateLimiter(0, Metrics(), Clock())
    for _ in range(1_000):
        limits.acquire("alice")


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


async def list_tools(http: httpx.AsyncClient) -> httpx.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    return await http.post(
        "/mcp", json=message, headers={"Accept": "application/json, text/event-stream", "Host": "localhost"}
    )

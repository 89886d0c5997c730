"""Rate limit: a user over its rate gets 429 with Retry-After, and other users are not affected."""

import itertools

import pytest

from app.errors import RateLimited
from app.limits import rate_limit
from app.limits.rate_limit import RateLimiter
from app.observability.metrics import Metrics

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


def test_several_tokens_are_taken_together_or_not_at_all() -> None:
    clock = Clock()
    limits = RateLimiter(2, Metrics(), clock)
    limits.acquire("alice")
    limits.acquire("alice", 5, taken=1)
    limits.acquire("alice")
    with pytest.raises(RateLimited, match="slow down") as refused:
        limits.acquire("alice", 3, taken=1)
    assert refused.value.retry_after_s == 2, "until there is room for the request, too"
    assert exhaust(limits, "alice") == 1, "the refused ones took none"
    limits.acquire("alice", 0)
    clock.now += 2
    limits.acquire("alice")
    limits.acquire("alice", 3, taken=1)


def test_more_than_a_bucket_holds_is_never_possible_and_the_error_says_so() -> None:
    limits = RateLimiter(2, Metrics(), Clock())
    limits.acquire("alice")
    with pytest.raises(RateLimited, match="at most 8 are possible at once, and these are 9"):
        limits.acquire("alice", 8, taken=1)
    limits.acquire("alice", 7, taken=1)


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

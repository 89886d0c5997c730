from app.limits.circuit_breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def make_open_breaker(failures: int = 3, retry_s: float = 15.0) -> tuple[CircuitBreaker, Clock]:
    """Return a breaker that has just opened."""
    clock = Clock()
    breaker = CircuitBreaker(failures, retry_s, clock)
    for _ in range(failures):
        breaker.record_failure()
    return breaker, clock


def test_a_new_breaker_allows_every_attempt() -> None:
    breaker = CircuitBreaker(failures=1, retry_s=15, clock=Clock())
    assert not breaker.is_open
    assert all(breaker.allows_attempt() for _ in range(10))


def test_it_opens_after_the_last_allowed_failure() -> None:
    breaker = CircuitBreaker(failures=3, retry_s=15, clock=Clock())
    for _ in range(2):
        breaker.record_failure()
    assert breaker.allows_attempt()
    breaker.record_failure()
    assert breaker.is_open
    assert not breaker.allows_attempt()


def test_a_success_resets_the_count() -> None:
    breaker = CircuitBreaker(failures=3, retry_s=15, clock=Clock())
    for _ in range(10):
        breaker.record_failure()
        breaker.record_failure()
        breaker.record_success()
    assert breaker.allows_attempt()
    assert not breaker.is_open


def test_an_open_breaker_rejects_attempts_until_the_pause_is_over() -> None:
    breaker, clock = make_open_breaker(retry_s=15)
    clock.now += 14.9
    assert not breaker.allows_attempt()
    assert breaker.is_open
    clock.now += 0.1
    assert breaker.allows_attempt()


def test_after_the_pause_one_attempt_is_allowed() -> None:
    breaker, clock = make_open_breaker(retry_s=15)
    clock.now += 15
    assert [breaker.allows_attempt() for _ in range(5)] == [True, False, False, False, False]


def test_a_successful_attempt_closes_it() -> None:
    breaker, clock = make_open_breaker()
    clock.now += 15
    breaker.allows_attempt()
    breaker.record_success()
    assert not breaker.is_open
    assert all(breaker.allows_attempt() for _ in range(5))


def test_a_failed_attempt_opens_it_for_another_pause() -> None:
    breaker, clock = make_open_breaker(retry_s=15)
    clock.now += 15
    breaker.allows_attempt()
    clock.now += 1
    breaker.record_failure()
    clock.now += 14.9
    assert not breaker.allows_attempt()
    clock.now += 0.1
    assert [breaker.allows_attempt(), breaker.allows_attempt()] == [True, False]


def test_an_attempt_without_an_outcome_does_not_block_it_forever() -> None:
    breaker, clock = make_open_breaker(retry_s=15)
    clock.now += 15
    assert breaker.allows_attempt()
    clock.now += 15
    assert breaker.allows_attempt()


def test_failures_of_one_user_open_it_for_this_user_alone() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures=3, retry_s=15, clock=clock)
    for _ in range(10):
        breaker.record_failure("alice")
    assert breaker.is_open
    assert not breaker.allows_attempt("alice")
    assert all(breaker.allows_attempt("bob") for _ in range(5))
    clock.now += 15
    assert [breaker.allows_attempt("alice"), breaker.allows_attempt("alice")] == [True, False]


def test_a_failure_of_a_second_user_opens_it_for_all() -> None:
    breaker = CircuitBreaker(failures=3, retry_s=15, clock=Clock())
    for user_id in ("alice", "alice", "bob"):
        breaker.record_failure(user_id)
    assert not any(breaker.allows_attempt(user_id) for user_id in ("alice", "bob", "carol"))
    breaker.record_success()
    for _ in range(3):
        breaker.record_failure("bob")
    assert breaker.allows_attempt("alice")
    assert not breaker.allows_attempt("bob")

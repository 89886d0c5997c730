from app.embeddings.circuit_breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def broken(failures: int = 3, retry_s: float = 15.0) -> tuple[CircuitBreaker, Clock]:
    """A breaker that has just opened."""
    clock = Clock()
    breaker = CircuitBreaker(failures, retry_s, clock)
    for _ in range(failures):
        breaker.failed()
    return breaker, clock


def test_a_new_breaker_lets_everyone_through() -> None:
    breaker = CircuitBreaker(failures=1, retry_s=15, clock=Clock())
    assert not breaker.is_open
    assert all(breaker.allows_attempt() for _ in range(10))


def test_it_opens_with_the_last_of_the_failures_and_not_before() -> None:
    breaker = CircuitBreaker(failures=3, retry_s=15, clock=Clock())
    for _ in range(2):
        breaker.failed()
    assert breaker.allows_attempt()
    breaker.failed()
    assert breaker.is_open
    assert not breaker.allows_attempt()


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = CircuitBreaker(failures=3, retry_s=15, clock=Clock())
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.allows_attempt()
    assert not breaker.is_open


def test_while_open_nobody_gets_through_until_the_pause_is_over() -> None:
    breaker, clock = broken(retry_s=15)
    clock.now += 14.9
    assert not breaker.allows_attempt()
    assert breaker.is_open
    clock.now += 0.1
    assert breaker.allows_attempt()


def test_after_the_pause_one_caller_tries_for_all() -> None:
    breaker, clock = broken(retry_s=15)
    clock.now += 15
    assert [breaker.allows_attempt() for _ in range(5)] == [True, False, False, False, False]


def test_a_try_that_succeeds_closes_it() -> None:
    breaker, clock = broken()
    clock.now += 15
    breaker.allows_attempt()
    breaker.succeeded()
    assert not breaker.is_open
    assert all(breaker.allows_attempt() for _ in range(5))


def test_a_try_that_fails_opens_it_for_another_pause() -> None:
    breaker, clock = broken(retry_s=15)
    clock.now += 15
    breaker.allows_attempt()
    clock.now += 1
    breaker.failed()
    clock.now += 14.9
    assert not breaker.allows_attempt()
    clock.now += 0.1
    assert [breaker.allows_attempt(), breaker.allows_attempt()] == [True, False]


def test_a_try_that_is_never_heard_of_again_does_not_lock_it_for_ever() -> None:
    breaker, clock = broken(retry_s=15)
    clock.now += 15
    assert breaker.allows_attempt()
    clock.now += 15
    assert breaker.allows_attempt()

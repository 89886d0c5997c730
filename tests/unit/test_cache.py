from app.cache import TtlCache


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def cache_of(size: int = 3, ttl_s: float = 10.0) -> tuple[TtlCache[str, int], Clock]:
    clock = Clock()
    return TtlCache(size, ttl_s, clock), clock


def test_an_entry_lives_until_its_time_is_over() -> None:
    cache, clock = cache_of(ttl_s=10)
    cache.put("a", 1)
    clock.now += 9.9
    assert cache.get("a") == 1
    clock.now += 0.1
    assert cache.get("a") is None


def test_reading_does_not_prolong_an_entry_but_writing_does() -> None:
    cache, clock = cache_of(ttl_s=10)
    cache.put("read", 1)
    cache.put("written", 1)
    clock.now += 6
    cache.get("read")
    cache.put("written", 2)
    clock.now += 6
    assert cache.get("read") is None
    assert cache.get("written") == 2


def test_an_expired_entry_is_let_go_when_it_is_asked_for() -> None:
    cache, clock = cache_of(ttl_s=10)
    cache.put("a", 1)
    clock.now += 11
    assert len(cache) == 1
    cache.get("a")
    assert len(cache) == 0


def test_it_never_holds_more_than_its_size() -> None:
    cache, _ = cache_of(size=3)
    for number in range(100):
        cache.put(f"key-{number}", number)
        assert len(cache) <= 3
    assert [cache.get(f"key-{number}") for number in (96, 97, 98, 99)] == [None, 97, 98, 99]


def test_the_least_recently_used_entry_goes_first() -> None:
    cache, _ = cache_of(size=3)
    for key in "abc":
        cache.put(key, 1)
    cache.get("a")
    cache.put("b", 2)
    cache.put("d", 1)
    assert [cache.get(key) for key in "abcd"] == [1, 2, None, 1]


def test_a_cache_of_size_zero_keeps_nothing() -> None:
    cache, _ = cache_of(size=0)
    cache.put("a", 1)
    assert cache.get("a") is None
    assert len(cache) == 0


def test_a_cleared_cache_is_empty_and_goes_on_working() -> None:
    cache, _ = cache_of()
    cache.put("a", 1)
    cache.clear()
    assert cache.get("a") is None
    cache.put("a", 2)
    assert cache.get("a") == 2


def test_values_that_are_false_are_kept_like_any_other() -> None:
    cache, _ = cache_of()
    cache.put("a", 0)
    assert cache.get("a") == 0

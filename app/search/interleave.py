"""Merge several rankings into one. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import TypeVar

T = TypeVar("T")


def interleave(
    rankings: Sequence[Sequence[T]], limit: int, key: Callable[[T], str], score: Callable[[T], float]
) -> list[T]:
    """Take the best item of each ranking, then the second of each, up to the limit, and sort these by score.

    An item that stands in several rankings is returned once, with its highest score.
    """
    alternating = [item for row in zip_longest(*rankings) for item in row if item is not None]
    best = {key(item): item for item in sorted(alternating, key=score)}
    taken = [best[key(item)] for item in islice(unique_by(alternating, key), limit)]
    return sorted(taken, key=score, reverse=True)


def unique_by(items: Iterable[T], key: Callable[[T], str]) -> Iterator[T]:
    """Yield the first item of each key."""
    seen: set[str] = set()
    for item in items:
        if key(item) not in seen:
            seen.add(key(item))
            yield item

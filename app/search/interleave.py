"""Several rankings, one answer. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import TypeVar

T = TypeVar("T")


def interleave(
    rankings: Sequence[Sequence[T]], most: int, key: Callable[[T], str], score: Callable[[T], float]
) -> list[T]:
    """The best of each ranking, then the second of each, until there are enough; then by score. Each thing once, as the
    ranking shows it that likes it best."""
    turns = [each for turn in zip_longest(*rankings) for each in turn if each is not None]
    best = {key(each): each for each in sorted(turns, key=score)}
    taken = [best[key(each)] for each in islice(unique_by(turns, key), most)]
    return sorted(taken, key=score, reverse=True)


def unique_by(things: Iterable[T], key: Callable[[T], str]) -> Iterator[T]:
    seen: set[str] = set()
    for each in things:
        if key(each) not in seen:
            seen.add(key(each))
            yield each

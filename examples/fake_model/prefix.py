"""The prefix of a request: what reasoning is bound to, and what a prompt cache compares."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

Tokenize = Callable[[str], int]


def sign_prefix(*prefix: Any) -> str:
    """Return the signature of reasoning that was produced after this prefix.

    A client that sends the reasoning back sends the prefix, too: the fake needs no memory to check it. Moving a
    `cache_control` marker is no change, as the documentation of the Messages API says.
    """
    return hashlib.sha256(serialize(without_cache_control(prefix)).encode()).hexdigest()


def serialize(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def without_cache_control(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_cache_control(item) for key, item in value.items() if key != "cache_control"}
    return [without_cache_control(item) for item in value] if isinstance(value, list | tuple) else value


def count_words(text: str) -> int:
    """Count words and punctuation: near enough for an example that only shows what is cached."""
    return len(re.findall(r"\w+|[^\w\s]", text))


@dataclass(frozen=True)
class Usage:
    input_tokens: int
    cached_tokens: int


class PromptCache:
    """Counts the tokens of requests, and how many of them an earlier request began with.

    A request is a list of parts: tools first, then the blocks of the messages. Whole parts are compared, as the
    breakpoints of a cache stand between them. Real caches also have a minimum length and forget after a while, so
    these counts are the best that a client can get.
    """

    def __init__(self, count_tokens: Tokenize) -> None:
        self._count_tokens = cache(count_tokens)
        self._requests: list[Sequence[str]] = []

    def record(self, parts: Sequence[str], *, is_cached: bool = True) -> Usage:
        """Count an accepted request; `is_cached`: it asks for the cache, if the API wants to be asked."""
        common = max((_count_common(parts, earlier) for earlier in self._requests), default=0) if is_cached else 0
        if is_cached:
            self._requests.append(parts)
        counts = [self._count_tokens(part) for part in parts]
        return Usage(sum(counts), sum(counts[:common]))


def _count_common(parts: Sequence[str], earlier: Sequence[str]) -> int:
    pairs = zip(parts, earlier, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(parts), len(earlier)))

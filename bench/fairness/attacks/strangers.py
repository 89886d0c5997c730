"""Attacks of callers without a valid key, and of one caller who looks like many."""

from collections.abc import Iterator

from bench.fairness.attacks.base import Attack
from bench.fairness.connections import hold_open, make_head
from bench.fairness.stage import Stage

CONNECTIONS = 500
LARGE_BODIES = 40
LARGE_BODY_BYTES = 16 * 2**20


def invent_key(number: int) -> tuple[str, str]:
    return "Authorization", f"Bearer ts_user_nobody-has-this-key-{number:06}-0123456789abcdef"


async def send_half_bodies(stage: Stage) -> None:
    heads = [make_head("/discover", 1_000, [invent_key(number)]) for number in range(CONNECTIONS)]
    await hold_open(stage.service.port, [head + b'{"query": ' for head in heads], stage.attacker_statuses)


async def send_half_heads(stage: Stage) -> None:
    half = b"POST /discover HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ts_user_"
    await hold_open(stage.service.port, [half] * CONNECTIONS, stage.attacker_statuses)


async def send_large_bodies(stage: Stage) -> None:
    head = make_head("/catalog/search", LARGE_BODY_BYTES, [invent_key(0)])
    body = b" " * (LARGE_BODY_BYTES - 1)
    await hold_open(stage.service.port, [head + body] * LARGE_BODIES, stage.attacker_statuses)


async def spell_one_key_differently(stage: Stage) -> None:
    heads = [make_head("/discover", 1_000, headers) for headers in _spell(stage.keys.attacker)]
    await hold_open(stage.service.port, [head + b'{"query": ' for head in heads], stage.attacker_statuses)


def _spell(key: str) -> Iterator[list[tuple[str, str]]]:
    """Yield headers that all name the same user, and of which no two are equal."""
    spellings = [("Authorization", f"Bearer {key}"), ("Authorization", f"bearer  {key}"), ("X-API-Key", key)]
    for number in range(CONNECTIONS):
        yield [spellings[number % len(spellings)], ("Cookie", f"visit={number}")]


ATTACKS = [
    Attack("half-bodies", f"{CONNECTIONS} connections with an invented key and half a body", send_half_bodies),
    Attack("half-heads", f"{CONNECTIONS} connections with half a head", send_half_heads),
    Attack("large-bodies", f"{LARGE_BODIES} bodies of 16 MiB with an invented key", send_large_bodies),
    Attack("spellings", f"{CONNECTIONS} half bodies of one user, each spelt differently", spell_one_key_differently),
]

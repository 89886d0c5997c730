"""How long a revoked key is still accepted."""

import asyncio
import time
from collections.abc import Awaitable, Callable

ENDS_WITHIN_S = 3.0
"""The documented limit is one second, and the cache lives for half of that; the rest is for a busy machine."""


async def seconds_until_refused(is_accepted: Callable[[], Awaitable[bool]]) -> float:
    """Return when the last accepted request started: how long a request takes does not count."""
    started, accepted_at = time.monotonic(), 0.0
    while True:
        sent_at = time.monotonic() - started
        if not await is_accepted():
            return accepted_at
        accepted_at = sent_at
        assert accepted_at < 5, "the key is still accepted"
        await asyncio.sleep(0.02)

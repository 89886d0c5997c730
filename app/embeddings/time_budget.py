"""Wait for an embedder for a limited time, in which neither its queue nor a stall of this process counts."""

import asyncio
from collections.abc import Coroutine

from app.embeddings.base import QueryTicket, Vectors
from app.errors import EmbeddingFailed

BUSY = "busy"
"""The reason of a failure after too long a wait in a queue of this process. It says nothing about the embedder."""

_SLICES = 32
"""A stall of the event loop costs one slice of the time: 25 ms of the default budget of a query."""
_LOOK_S = 1.0
"""Without a limit, a slice of this time only looks whether the ticket still waits."""


async def embed_in_time(
    embedding: Coroutine[None, None, Vectors],
    ticket: QueryTicket,
    *,
    budget_s: float | None,
    max_wait_s: float | None = None,
) -> Vectors:
    """Return the vectors, or raise `EmbeddingFailed` if the embedder takes longer than its budget, or if the ticket
    waits for longer than `max_wait_s` before that. None is no limit.

    `asyncio.timeout` measures by the clock, so it would also fail if the answer arrives in time while the loop is
    stalled. Here a slice counts as its nominal length, however late the loop ends it.
    """
    task = asyncio.create_task(embedding)
    wait_left = work_left = _SLICES
    try:
        while wait_left and work_left:
            limit_s = max_wait_s if ticket.is_waiting() else budget_s
            done, _pending = await asyncio.wait({task}, timeout=(_LOOK_S if limit_s is None else limit_s) / _SLICES)
            if done:
                return task.result()
            if ticket.is_waiting():
                wait_left -= max_wait_s is not None
            else:
                work_left -= budget_s is not None
        if work_left:
            raise EmbeddingFailed(BUSY, "too many texts of this user wait for the embedder")
        raise EmbeddingFailed("timeout", "the embedder did not answer in time")
    finally:
        if task.cancel():  # false if it is done
            await asyncio.gather(task, return_exceptions=True)

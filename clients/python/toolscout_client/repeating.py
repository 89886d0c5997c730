"""Which requests are sent again, and when.

Nothing here sends or waits: it says what to do next, and is told what came of it. So one text serves the client that
blocks and the one that is awaited.
"""

import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from toolscout_client.errors import Conflict, ConnectionFailed, ToolscoutError, TryLater, error_of

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
LONGEST_RETRY_AFTER_S = 30.0
"""Whoever is told to wait longer than this wants to know it at once."""

_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_REFUSED = (httpx.ConnectError, httpx.ConnectTimeout)
_DROPPED = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)


@dataclass(frozen=True)
class Call:
    """To send this request; what comes of it is a response, or an error of httpx."""

    method: str
    path: str
    json: Any = field(default=None, repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """In place of the client's own."""
    repeatable: bool = False
    """It does no harm twice: a question, or a deed that Toolscout knows again."""


@dataclass(frozen=True)
class Pause:
    """To do nothing for so long."""

    seconds: float


Steps = Generator[Call | Pause, Any, T]


def answered(call: Call, retries: int) -> Steps[httpx.Response]:
    """The answer, if it is a good one; raises `ToolscoutError` otherwise."""
    tries = _Tries(call, retries)
    while True:
        outcome: httpx.Response | httpx.RequestError = yield call
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return outcome
        yield Pause(tries.pause_after(outcome))


class _Tries:
    def __init__(self, call: Call, retries: int) -> None:
        self._call = call
        self._left = retries
        self._pause_s = FIRST_PAUSE_S
        self._lost = False
        self._deadline = time.monotonic() + (call.timeout or 0)

    def pause_after(self, outcome: httpx.Response | httpx.RequestError) -> float:
        """Raises where it is not sent again."""
        error = error_of(outcome) if isinstance(outcome, httpx.Response) else _failed(outcome)
        cause = outcome if isinstance(outcome, httpx.RequestError) else None
        if self._lost and isinstance(error, Conflict):
            self._wait_for_the_first(error)
        elif self._left > 0 and self._may_follow(outcome, error):
            self._left -= 1
            self._lost = self._lost or isinstance(outcome, _DROPPED)
        else:
            raise error from cause
        return self._next_pause() + (error.retry_after or 0)

    def _may_follow(self, outcome: httpx.Response | httpx.RequestError, error: ToolscoutError) -> bool:
        if isinstance(error, TryLater):
            return error.retry_after is not None and error.retry_after <= LONGEST_RETRY_AFTER_S
        return isinstance(outcome, _REFUSED) or (self._call.repeatable and isinstance(outcome, _DROPPED))

    def _wait_for_the_first(self, conflict: Conflict) -> None:
        """The first request did arrive, though its answer was lost, and is still being carried out."""
        if time.monotonic() > self._deadline:
            message = "the connection was lost, and what was asked for has not ended since"
            raise ConnectionFailed(message, code="connection_failed", outcome="unknown") from conflict

    def _next_pause(self) -> float:
        """At random, so that those who failed together do not return together."""
        longest, self._pause_s = self._pause_s, min(self._pause_s * 2, LONGEST_PAUSE_S)
        return random.uniform(longest / 2, longest)  # noqa: S311 no secret


def _failed(error: httpx.RequestError) -> ConnectionFailed:
    outcome = "failed" if isinstance(error, _NOTHING_SENT) else "unknown"
    # neither a password in the URL nor ids in its path: a model may be shown this
    place = error.request.url.netloc.decode()
    message = f"no answer from {place}: {str(error) or type(error).__name__}"
    return ConnectionFailed(message, code="connection_failed", outcome=outcome)

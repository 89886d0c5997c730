"""Which requests are sent again, and when.

Nothing here sends or sleeps. A generator yields what to do next, a `Request` or a `Sleep`, and receives the outcome, so
that the blocking client and the asyncio client share this code.
"""

import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from toolscout_client.errors import Conflict, ConnectionFailed, ToolscoutError, TryLater, error_from_response

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
MAX_RETRY_AFTER_S = 30.0
"""A longer `Retry-After` is raised at once instead of being waited for."""

_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_REFUSED = (httpx.ConnectError, httpx.ConnectTimeout)
_DROPPED = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)


@dataclass(frozen=True)
class Request:
    """Send this request. The outcome is a response or an `httpx.RequestError`."""

    method: str
    path: str
    json: Any = field(default=None, repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """Overrides the timeout of the client."""
    retry_safe: bool = False
    """Sending it twice does no harm: it only reads, or it carries an idempotency key."""


@dataclass(frozen=True)
class Sleep:
    seconds: float


Steps = Generator[Request | Sleep, Any, T]


def send_with_retries(request: Request, retries: int) -> Steps[httpx.Response]:
    """Return a successful response. Raise `ToolscoutError` otherwise."""
    policy = _RetryPolicy(request, retries)
    while True:
        outcome: httpx.Response | httpx.RequestError = yield request
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return outcome
        yield Sleep(policy.next_pause(outcome))


class _RetryPolicy:
    def __init__(self, request: Request, retries: int) -> None:
        self._request = request
        self._retries_left = retries
        self._pause_s = FIRST_PAUSE_S
        self._answer_lost = False
        self._deadline = time.monotonic() + (request.timeout or 0)

    def next_pause(self, outcome: httpx.Response | httpx.RequestError) -> float:
        """Return how long to wait before the next attempt. Raise if the request must not be sent again."""
        if isinstance(outcome, httpx.Response):
            error, cause = error_from_response(outcome), None
        else:
            error, cause = _connection_error(outcome), outcome
        if self._answer_lost and _is_still_running(error):
            self._check_deadline(error)
        elif self._retries_left > 0 and self._may_retry(outcome, error):
            self._retries_left -= 1
            self._answer_lost = self._answer_lost or isinstance(outcome, _DROPPED)
        else:
            raise error from cause
        return self._next_jitter() + (error.retry_after or 0)

    def _may_retry(self, outcome: httpx.Response | httpx.RequestError, error: ToolscoutError) -> bool:
        if isinstance(error, TryLater):
            return error.retry_after is not None and error.retry_after <= MAX_RETRY_AFTER_S
        return isinstance(outcome, _REFUSED) or (self._request.retry_safe and isinstance(outcome, _DROPPED))

    def _check_deadline(self, conflict: ToolscoutError) -> None:
        """Let the first request run until the deadline."""
        if time.monotonic() > self._deadline:
            message = "the connection was lost, and the first request has not ended since"
            raise ConnectionFailed(message, code="connection_failed", outcome="unknown") from conflict

    def _next_jitter(self) -> float:
        """Double the pause each time, with jitter, so that clients that failed together do not return together."""
        upper, self._pause_s = self._pause_s, min(self._pause_s * 2, MAX_PAUSE_S)
        return random.uniform(upper / 2, upper)  # noqa: S311 not used for security


def _is_still_running(error: ToolscoutError) -> bool:
    """After a lost answer, whether the first request has arrived and is still running. Other conflicts are answers."""
    return isinstance(error, Conflict) and error.code == "conflict" and not error.choices


def _connection_error(error: httpx.RequestError) -> ConnectionFailed:
    outcome = "failed" if isinstance(error, _NOTHING_SENT) else "unknown"
    # Only host and port: the message may be shown to a model, and a URL may contain a password or ids.
    host = error.request.url.netloc.decode()
    message = f"no answer from {host}: {str(error) or type(error).__name__}"
    return ConnectionFailed(message, code="connection_failed", outcome=outcome)

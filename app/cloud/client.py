"""The client of the cloud: another catalogue service that searches the visible tools of some projects.

The operator sets its address, see operator_http.py. The time-out is for the whole of a request.
"""

import asyncio
import logging
import math
import time
from contextlib import suppress

import httpx2

from app.cloud.wire import CloudMatch, CloudRequest, encode_request, parse_answer
from app.errors import CloudFailed
from app.limits.circuit_breaker import CircuitBreaker
from app.observability.metrics import Metrics
from app.operator_http import JSON_BODY, AnswerTooLarge, make_http_client, read_answer
from app.settings import Settings

logger = logging.getLogger("toolscout.cloud")

CHECK_EVERY_S = 60.0
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_MAX_REQUESTS = 32
"""At the same time. Further ones wait: a process that has so many in progress must not open more connections."""


class CloudClient:
    def __init__(
        self, url: str, key: str | None, *, timeout_s: float, breaker: CircuitBreaker, metrics: Metrics
    ) -> None:
        self._url = f"{url.rstrip('/')}/catalog/search"
        self._timeout_s = timeout_s
        self._breaker = breaker
        self._metrics = metrics
        self._slots = asyncio.Semaphore(_MAX_REQUESTS)
        self._http = make_http_client(_MAX_REQUESTS, key)
        self._attempts: set[asyncio.Task[list[CloudMatch]]] = set()
        self._attempted_at = -math.inf
        self._failure: CloudFailed | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def warning(self) -> str | None:
        """What `/readyz` says about the cloud; None while it answers."""
        if self._failure is None:
            return None
        return (
            f"the cloud (TOOLSCOUT_CLOUD_URL) cannot be used ({self._failure.reason}): projects with "
            f"`optimization: cloud` are searched by words alone. {self._failure.message}"
        )

    def check_breaker(self) -> None:
        """Raise `CloudFailed` while the circuit breaker is open, so that nothing is prepared in vain."""
        if self._breaker.is_open:
            raise _breaker_open()

    async def search(self, request: CloudRequest) -> list[CloudMatch]:
        """Return the best matches, best first, or raise `CloudFailed`."""
        if not self._breaker.allows_attempt():
            raise _breaker_open()
        attempt = asyncio.create_task(self._attempt(request))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._discard)
        # Shielded: without the outcome, the breaker would never open for callers who are less patient than we are.
        return await asyncio.shield(attempt)

    async def check(self) -> None:
        """Raise `CloudFailed` unless the cloud answers a search over no tools."""
        await self.search(encode_request("is anybody there?", "", (), 1))

    def start(self) -> None:
        """Check the cloud now, and whenever it was not used for a while, so that `/readyz` tells its state."""
        self._watching = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        tasks = [*self._attempts, *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    async def _watch(self) -> None:
        while True:
            if time.monotonic() - self._attempted_at >= CHECK_EVERY_S:
                with suppress(CloudFailed):  # the outcome is recorded
                    await self.check()
            await asyncio.sleep(CHECK_EVERY_S)

    def _discard(self, attempt: asyncio.Task[list[CloudMatch]]) -> None:
        self._attempts.discard(attempt)
        if not attempt.cancelled():
            attempt.exception()  # the caller gets it; if the caller is gone, asyncio must not log it as unretrieved

    async def _attempt(self, request: CloudRequest) -> list[CloudMatch]:
        self._attempted_at = started = time.monotonic()
        try:
            matches = await self._search_in_time(request)
        except CloudFailed as failure:
            if failure.reason != "busy":  # waiting in this process says nothing about the cloud
                self._record(failure, time.monotonic() - started)
            raise
        self._record(None, time.monotonic() - started)
        return matches

    async def _search_in_time(self, request: CloudRequest) -> list[CloudMatch]:
        sent = False
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                sent = True
                return await self._send(request)
        except TimeoutError as error:
            if not sent:
                raise CloudFailed("busy", "too many requests to the cloud are in progress") from error
            raise CloudFailed("timeout", f"it did not answer within {self._timeout_s:g} seconds") from error

    async def _send(self, request: CloudRequest) -> list[CloudMatch]:
        try:
            async with self._http.stream("POST", self._url, content=request.body, headers=JSON_BODY) as response:
                if response.status_code != httpx2.codes.OK:
                    raise CloudFailed(f"status_{response.status_code}", _explain_status(response.status_code))
                body = await read_answer(response, _MAX_ANSWER_BYTES)
        except AnswerTooLarge as error:
            raise CloudFailed("too_large", f"it answered with {error}") from error
        except httpx2.HTTPError as error:
            raise CloudFailed("unreachable", f"it cannot be reached ({type(error).__name__})") from error
        return parse_answer(body, request.tool_keys, request.limit)

    def _record(self, failure: CloudFailed | None, seconds: float) -> None:
        if failure is None:
            self._breaker.record_success()
        else:
            self._breaker.record_failure()
            logger.warning("search through the cloud failed", extra={"reason": failure.reason})
        self._failure = failure
        self._metrics.cloud_seconds.labels("succeeded" if failure is None else "failed").observe(seconds)
        self._metrics.cloud_breaker_open.set(self._breaker.is_open)


def make_cloud_client(settings: Settings, metrics: Metrics) -> CloudClient | None:
    """Return the client for the cloud of the settings, or None if they name none."""
    if settings.cloud_url is None:
        return None
    return CloudClient(
        settings.cloud_url,
        None if settings.cloud_key is None else settings.cloud_key.get_secret_value(),
        timeout_s=settings.cloud_timeout_s,
        breaker=CircuitBreaker(settings.breaker_failures, settings.breaker_retry_s),
        metrics=metrics,
    )


def _explain_status(status: int) -> str:
    advice = {
        400: "a service key there needs a user: make a user key for TOOLSCOUT_CLOUD_KEY",
        401: "check TOOLSCOUT_CLOUD_KEY",
        403: "check what TOOLSCOUT_CLOUD_KEY may do",
        404: "TOOLSCOUT_CLOUD_URL is the address without /catalog/search",
    }.get(status)
    return f"it answered with status {status}" + ("" if advice is None else f": {advice}")


def _breaker_open() -> CloudFailed:
    return CloudFailed("breaker_open", "the cloud failed repeatedly and is given time to recover")

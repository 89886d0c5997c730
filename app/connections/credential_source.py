"""Credentials that the operator's own service issues (`TOOLSCOUT_CREDENTIAL_URL`): one request for each user and
server, whose answer is kept in memory until it expires.

    POST {"user_id": "alice", "server": {"id": "…", "name": "github", "url": "https://…"}}
    200  {"headers": {"Authorization": "Bearer …"}, "expires_in": 3600}
    404  there are none for this user and server
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import httpx2
import orjson
from cachetools import LRUCache

from app.catalog.request_headers import are_headers, merge_headers
from app.errors import InvalidInput, ServerUnreachable
from app.mcp_types import Endpoint
from app.operator_http import JSON_BODY, AnswerTooLarge, make_http_client, read_answer
from app.settings import Settings
from app.text.strict_json import parse_json

_MAX_CACHED = 10_000
_MAX_REQUESTS = 20
_MAX_ANSWER_BYTES = 256 * 1024
_DEFAULT_TTL_S = 300.0
_MAX_TTL_S = 86_400.0
_NOTHING_TTL_S = 30.0
"""How long the answer counts that there are no credentials: a user who has just signed in does not wait longer."""
_MAX_MARGIN_S = 30.0
"""Headers are requested again so long before they expire, or a tenth of their lifetime if that is less."""

_REJECTED = "the server rejected the credentials of the operator's credential service (TOOLSCOUT_CREDENTIAL_URL)"

T = TypeVar("T")
_Key = tuple[str, str, str | None, int]


@dataclass(frozen=True)
class IssuedHeaders:
    headers: Mapping[str, str] = field(repr=False)
    """Empty if there are none."""
    version: int
    """Increases with every answer."""
    expires_at: float
    """By the monotonic clock."""


class CredentialSource:
    def __init__(self, url: str, key: str | None, *, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._cache: LRUCache[_Key, IssuedHeaders] = LRUCache(_MAX_CACHED)
        self._requests: dict[_Key, asyncio.Task[IssuedHeaders]] = {}
        self._slots = asyncio.Semaphore(_MAX_REQUESTS)
        self._versions = itertools.count(time.time_ns() // 1_000_000)
        self._http = make_http_client(_MAX_REQUESTS, key)

    async def get_headers(self, endpoint: Endpoint) -> IssuedHeaders:
        """Return the user's headers for the server, from memory while they are valid. Callers share one request.

        Raise `ServerUnreachable` with the cause `credentials` if the service does not answer as it should: without
        credentials that exist, the server would do or show something else.
        """
        key = _make_key(endpoint)
        cached = self._cache.get(key)
        if cached is not None and time.monotonic() < cached.expires_at:
            return cached
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = asyncio.create_task(self._request(endpoint))
            request.add_done_callback(lambda task: self._on_answer(key, task))
        # Shielded: the others wait for the same answer.
        return await asyncio.shield(request)

    async def authorize(self, endpoint: Endpoint) -> Endpoint | None:
        """Return the endpoint with the issued headers beside its own, or None if there are none."""
        issued = await self.get_headers(endpoint)
        if not issued.headers:
            return None
        headers = merge_headers(endpoint.headers, issued.headers)
        return replace(endpoint, headers=headers, credential_version=issued.version, is_issued=True)

    async def use(self, endpoint: Endpoint, operation: Callable[[Endpoint], Awaitable[T]]) -> T:
        """Run an operation on the server, once more if the server rejects the headers and there are newer ones.

        A server that rejects a request has not run it.
        """
        try:
            return await operation(endpoint)
        except ServerUnreachable as error:
            if error.http_status not in (401, 403):
                raise
            rejected = error
        self._cache.pop(_make_key(endpoint), None)
        renewed = await self.authorize(endpoint)
        if renewed is None or renewed.headers == endpoint.headers:
            # not `AuthorizationRequired`: the user has signed in, to the operator's application
            raise ServerUnreachable("unauthorized", _REJECTED) from rejected
        return await operation(renewed)

    async def aclose(self) -> None:
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await self._http.aclose()

    def _on_answer(self, key: _Key, task: asyncio.Task[IssuedHeaders]) -> None:
        del self._requests[key]
        # retrieves the exception, too: nobody may be waiting for it any more
        if not task.cancelled() and task.exception() is None:
            self._cache[key] = task.result()

    async def _request(self, endpoint: Endpoint) -> IssuedHeaders:
        server = {"id": endpoint.server_id, "name": endpoint.server_name, "url": endpoint.url}
        body = orjson.dumps({"user_id": endpoint.user_id, "server": server})
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                status, answer = await self._send(body)
        except TimeoutError as error:
            raise _fail(f"did not answer within {self._timeout_s:g} seconds") from error
        except AnswerTooLarge as error:
            raise _fail(f"answered with {error}") from error
        except httpx2.HTTPError as error:
            raise _fail(f"cannot be reached ({type(error).__name__})") from error
        if status == httpx2.codes.NOT_FOUND:
            return IssuedHeaders({}, 0, time.monotonic() + _NOTHING_TTL_S)
        if status != httpx2.codes.OK:
            raise _fail(f"answered with status {status}")
        headers, ttl_s = _parse_answer(answer)
        return IssuedHeaders(headers, next(self._versions), time.monotonic() + ttl_s - min(_MAX_MARGIN_S, ttl_s / 10))

    async def _send(self, body: bytes) -> tuple[int, bytes]:
        async with self._http.stream("POST", self._url, content=body, headers=JSON_BODY) as response:
            return response.status_code, await read_answer(response, _MAX_ANSWER_BYTES)


def make_credential_source(settings: Settings) -> CredentialSource | None:
    """Return the client of the operator's service, or None if the settings name none."""
    if settings.credential_url is None:
        return None
    key = None if settings.credential_key is None else settings.credential_key.get_secret_value()
    return CredentialSource(settings.credential_url, key, timeout_s=settings.credential_timeout_s)


def _make_key(endpoint: Endpoint) -> _Key:
    return endpoint.user_id, endpoint.server_id, endpoint.url, endpoint.config_version


def _parse_answer(body: bytes) -> tuple[Mapping[str, str], float]:
    """Return the headers, and the seconds for which they are valid."""
    try:
        answer = parse_json(body)
    except InvalidInput:
        raise _fail("did not answer with JSON") from None  # the cause may quote a secret
    headers = answer.get("headers") if isinstance(answer, dict) else None
    if not headers or not are_headers(headers):
        raise _fail('must answer with {"headers": {…}, "expires_in": seconds}, or with status 404')
    ttl_s = answer.get("expires_in", _DEFAULT_TTL_S)
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or ttl_s <= 0:
        raise _fail("must answer with `expires_in` as a number of seconds")
    return headers, min(float(ttl_s), _MAX_TTL_S)


def _fail(what: str) -> ServerUnreachable:
    return ServerUnreachable("credentials", f"the operator's credential service (TOOLSCOUT_CREDENTIAL_URL) {what}")

"""The client of an MCP registry: searches servers and reads their entries.

The operator sets its address, see operator_http.py. The time-out is for the whole of a request. A user has only a part
of the requests at a time, so that nobody uses the registry up for the others.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar
from urllib.parse import quote, urlencode
from weakref import WeakValueDictionary

import httpx2
import orjson

from app.errors import InvalidInput, NotFound, RegistryFailed, ToolscoutError, Unavailable
from app.limits.byte_cache import ByteCache
from app.limits.circuit_breaker import CircuitBreaker
from app.limits.rate_limit import RateLimiter
from app.observability.metrics import Metrics
from app.operator_http import AnswerTooLarge, make_http_client, read_answer
from app.registry.models import RegistryPage, RegistrySearchResult, RegistryServer
from app.registry.wire import SERVER_NAME, parse_page, parse_server
from app.settings import Settings

logger = logging.getLogger("toolscout.registry")

T = TypeVar("T", RegistryPage, RegistryServer)

TIMEOUT_S = 10.0
CACHE_TTL_S = 300.0
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_CACHE_BYTES = 16 * 1024 * 1024
_PAGE_SIZE = 100
"""The most that the official registry returns at once."""
_MAX_PAGES = 5
"""Pages of the registry that one search reads: an allow-list may leave little of each."""
_MAX_REQUESTS = 16
_MAX_REQUESTS_PER_USER = 2
_REQUESTS_PER_SECOND = 5.0
"""Of one user, on average. What the cache answers does not count."""
_CLIENT_ERRORS = (400, 422)


class RegistryClient:
    def __init__(
        self,
        url: str,
        allowed: Sequence[str],
        *,
        breaker: CircuitBreaker,
        rate_limiter: RateLimiter,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`allowed` are patterns of names; if there are none, all servers are allowed."""
        self._url = f"{url.rstrip('/')}/v0.1/servers"
        self._allowed = allowed
        self._breaker = breaker
        self._rate_limiter = rate_limiter
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(_MAX_REQUESTS)
        self._slots_by_user: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        # Each user has entries of its own: a shared one would tell by its speed what another user has searched.
        self._cache: ByteCache[tuple[str, str], RegistryPage | RegistryServer] = ByteCache(
            _CACHE_BYTES, get_owner=lambda key: key[0], ttl_s=CACHE_TTL_S
        )
        self._http = make_http_client(_MAX_REQUESTS)

    def allow(self, patterns: Sequence[str]) -> None:
        """Replace the patterns of the names that users may see."""
        self._allowed = patterns

    async def search(self, user_id: str, query: str, limit: int, cursor: str | None = None) -> RegistrySearchResult:
        """Return servers whose name contains the query, in the registry's order, without those that were deleted.

        A page may be shorter than `limit`, or empty, although there is a next one: the operator allows few of many.
        """
        position, skipped = _decode_cursor(cursor)
        found: list[RegistryServer] = []
        not_allowed = 0
        for _ in range(_MAX_PAGES):
            page = await self._fetch_page(user_id, query, position)
            for number, server in enumerate(page.servers[skipped:], skipped + 1):
                if len(found) == limit:
                    return RegistrySearchResult(found, _encode_cursor(position, number - 1), not_allowed)
                if server.status == "deleted":
                    continue
                if self._is_allowed(server.name):
                    found.append(server)
                else:
                    not_allowed += 1
            position, skipped = page.next_cursor, 0
            if position is None or len(found) == limit:
                break
        return RegistrySearchResult(found, None if position is None else _encode_cursor(position, 0), not_allowed)

    async def get_server(self, user_id: str, name: str) -> RegistryServer:
        """Return the latest version of a server. Raise `NotFound` if there is none that users may see."""
        if not SERVER_NAME.fullmatch(name):
            raise InvalidInput("a server's name in a registry has the form `io.github.user/weather`")
        if not self._is_allowed(name):
            raise NotFound(f"the operator does not allow {name} of the registry (TOOLSCOUT_REGISTRY_ALLOW)")
        url = f"{self._url}/{quote(name, safe='')}/versions/latest"
        server = await self._fetch(user_id, url, parse_server)
        if server.name != name or server.status == "deleted":
            raise _no_such_server()
        return server

    async def check(self) -> None:
        """Raise `RegistryFailed` or `Unavailable` unless the registry answers."""
        await self._fetch("", f"{self._url}?{urlencode({'limit': 1})}", parse_page)

    async def aclose(self) -> None:
        await self._http.aclose()

    def _is_allowed(self, name: str) -> bool:
        return not self._allowed or any(fnmatchcase(name, pattern) for pattern in self._allowed)

    async def _fetch_page(self, user_id: str, query: str, cursor: str | None) -> RegistryPage:
        parameters = {"limit": str(_PAGE_SIZE), "version": "latest"}
        parameters |= {"search": query} if query else {}
        parameters |= {"cursor": cursor} if cursor else {}
        return await self._fetch(user_id, f"{self._url}?{urlencode(parameters)}", parse_page)

    async def _fetch(self, user_id: str, url: str, parse: Callable[[bytes], T]) -> T:
        """Return the parsed answer, from the cache if the user has asked for it in the last minutes."""
        cached = self._cache.get((user_id, url))
        if cached is not None:
            return cached  # type: ignore[return-value]  # what was parsed from an URL is always of one type
        self._rate_limiter.acquire(user_id)
        if not self._breaker.allows_attempt(user_id):
            raise Unavailable("the registry failed repeatedly and is given time to recover", retry_after_s=15)
        try:
            # parsing a hundred entries takes some milliseconds: off the event loop
            parsed = await asyncio.to_thread(parse, await self._request(user_id, url))
        except RegistryFailed as failure:
            self._breaker.record_failure(user_id)
            logger.warning("request to the registry failed", extra={"reason": failure.reason})
            raise
        except (NotFound, InvalidInput):
            self._breaker.record_success()  # it answered
            raise
        self._breaker.record_success()
        self._cache[user_id, url] = parsed
        return parsed

    async def _request(self, user_id: str, url: str) -> bytes:
        own_slots = self._slots_by_user.setdefault(user_id, asyncio.Semaphore(_MAX_REQUESTS_PER_USER))
        sent = False
        try:
            async with asyncio.timeout(self._timeout_s), own_slots, self._slots:
                sent = True
                return await self._send(url)
        except TimeoutError as error:
            if not sent:
                raise Unavailable("too many requests to the registry are in progress; try again shortly") from error
            raise RegistryFailed("timeout", f"it did not answer within {self._timeout_s:g} seconds") from error

    async def _send(self, url: str) -> bytes:
        try:
            async with self._http.stream("GET", url) as response:
                if response.status_code != httpx2.codes.OK:
                    raise _explain_status(response.status_code, is_entry="/versions/" in url)
                return await read_answer(response, _MAX_ANSWER_BYTES)
        except AnswerTooLarge as error:
            raise RegistryFailed("too_large", f"it answered with {error}") from error
        except httpx2.HTTPError as error:
            raise RegistryFailed("unreachable", f"it cannot be reached ({type(error).__name__})") from error


def make_registry_client(settings: Settings, metrics: Metrics) -> RegistryClient | None:
    """Return the client for the registry of the settings, or None if they name none."""
    if settings.registry_url is None:
        return None
    return RegistryClient(
        settings.registry_url,
        settings.registry_patterns,
        breaker=CircuitBreaker(settings.breaker_failures, settings.breaker_retry_s),
        rate_limiter=RateLimiter(_REQUESTS_PER_SECOND, metrics),
    )


def require_registry(client: RegistryClient | None) -> RegistryClient:
    if client is None:
        raise NotFound("no registry of MCP servers is configured: the operator can set TOOLSCOUT_REGISTRY_URL")
    return client


def _explain_status(status: int, *, is_entry: bool) -> ToolscoutError:
    if status == httpx2.codes.NOT_FOUND and is_entry:
        return _no_such_server()
    if status in _CLIENT_ERRORS:
        return InvalidInput("the registry does not accept this search: write it differently, and start without cursor")
    advice = {404: ": TOOLSCOUT_REGISTRY_URL is the address without /v0.1/servers"}.get(status, "")
    return RegistryFailed(f"status_{status}", f"the registry answered with status {status}{advice}")


def _no_such_server() -> NotFound:
    return NotFound("the registry has no server of that name")


def _encode_cursor(position: str | None, skipped: int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([position, skipped])).decode()


def _decode_cursor(cursor: str | None) -> tuple[str | None, int]:
    """Return the registry's own cursor of a page, and how many of the page's servers were shown already."""
    if cursor is None:
        return None, 0
    try:
        position, skipped = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, binascii.Error, TypeError) as error:
        raise _invalid_cursor() from error
    is_valid = isinstance(position, str | None) and isinstance(skipped, int) and 0 <= skipped <= _PAGE_SIZE
    if not is_valid:
        raise _invalid_cursor()
    return position, skipped


def _invalid_cursor() -> InvalidInput:
    return InvalidInput("invalid cursor: start again without one")

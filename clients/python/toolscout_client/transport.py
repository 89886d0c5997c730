"""Turns an endpoint that is written once, as steps, into a method that blocks and a method that is awaited."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import httpx

from toolscout_client.errors import unreadable_response
from toolscout_client.models import Page, parse
from toolscout_client.retries import Request, Sleep, Steps, send_with_retries

P = ParamSpec("P")
T = TypeVar("T")

FetchPage = Callable[[str | None], Steps[Page[T]]]
"""Fetches the page at a cursor."""


@dataclass(frozen=True)
class SyncTransport:
    """Performs each step and blocks until it is done."""

    http: httpx.Client
    retries: int
    user_id: str | None = None

    def run(self, steps: Steps[T]) -> T:
        outcome = None
        try:
            while True:
                outcome = self._perform(steps.send(outcome))
        except StopIteration as end:
            result: T = end.value
            return result

    def iterate(self, fetch_page: FetchPage[T]) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = self.run(fetch_page(cursor))
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def _perform(self, step: Request | Sleep) -> httpx.Response | httpx.RequestError | None:
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        try:
            return self.http.request(**_httpx_arguments(step, self.user_id))
        except httpx.RequestError as error:
            return error


@dataclass(frozen=True)
class AsyncTransport:
    """The same for asyncio."""

    http: httpx.AsyncClient
    retries: int
    user_id: str | None = None

    async def run(self, steps: Steps[T]) -> T:
        outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = await self._perform(step)

    async def iterate(self, fetch_page: FetchPage[T]) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            page = await self.run(fetch_page(cursor))
            for item in page.items:
                yield item
            if (cursor := page.next_cursor) is None:
                return

    async def _perform(self, step: Request | Sleep) -> httpx.Response | httpx.RequestError | None:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self.http.request(**_httpx_arguments(step, self.user_id))
        except httpx.RequestError as error:
            return error


def _httpx_arguments(request: Request, user_id: str | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"method": request.method, "url": request.path, "json": request.json}
    params = {name: value for name, value in request.params.items() if value is not None}
    arguments["params"] = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in params.items()
    }
    arguments["headers"] = {**request.headers, **({} if user_id is None else {"X-User-Id": user_id})}
    return arguments if request.timeout is None else arguments | {"timeout": request.timeout}


def make_request(
    route: str,
    *ids: str,
    json: Any = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    retry_safe: bool = False,
) -> Request:
    """`route` is a method and a path, such as `GET /servers/{}`. Every GET is safe to retry."""
    method, path = route.split()
    path = path.format(*(quote(part, safe="") for part in ids))
    return Request(method, path, json, params or {}, headers or {}, timeout, retry_safe or method == "GET")


TransportT = TypeVar("TransportT", SyncTransport, AsyncTransport)


class Resource(Generic[TransportT]):
    """A group of endpoints, over either transport."""

    _transport: TransportT

    def __init__(self, transport: TransportT) -> None:
        self._transport = transport

    def _send(self, request: Request) -> Steps[httpx.Response]:
        return send_with_retries(request, self._transport.retries)

    def _send_without_result(self, request: Request) -> Steps[None]:
        yield from self._send(request)

    def _fetch(self, model: type[T], request: Request) -> Steps[T]:
        response = yield from self._send(request)
        with _translate_parse_errors(response):
            return parse(model, response.json())

    def _fetch_list(self, model: type[T], request: Request) -> Steps[list[T]]:
        return (yield from self._fetch_page(model, request)).items

    def _fetch_pages(self, model: type[T], request: Request) -> FetchPage[T]:
        """Use the largest allowed page size unless the request sets one."""
        return lambda cursor: self._fetch_page(
            model, replace(request, params={"limit": 200, **request.params, "cursor": cursor})
        )

    def _fetch_page(self, model: type[T], request: Request) -> Steps[Page[T]]:
        response = yield from self._send(request)
        with _translate_parse_errors(response):
            body = response.json()
            return Page([parse(model, item) for item in body["items"]], body.get("next_cursor"))


@contextmanager
def _translate_parse_errors(response: httpx.Response) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise unreadable_response(response) from error


class endpoint(Generic[P, T]):  # noqa: N801 a decorator
    """Decorates a method that returns steps: callers get the result of the steps, blocking or awaitable."""

    def __init__(self, make_steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._make_steps = make_steps

    @overload
    def __get__(self, resource: Resource[SyncTransport], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, resource: Resource[AsyncTransport], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        @wraps(self._make_steps)
        def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            return resource._transport.run(self._make_steps(resource, *args, **kwargs))

        return self._make_steps if resource is None else run


class paginated(Generic[P, T]):  # noqa: N801 a decorator
    """Decorates a method that returns a function to fetch pages: callers get an iterator over all items."""

    def __init__(self, make_fetch: Callable[Concatenate[Any, P], FetchPage[T]]) -> None:
        self._make_fetch = make_fetch

    @overload
    def __get__(self, resource: Resource[SyncTransport], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, resource: Resource[AsyncTransport], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        @wraps(self._make_fetch)
        def iterate(*args: P.args, **kwargs: P.kwargs) -> Any:
            return resource._transport.iterate(self._make_fetch(resource, *args, **kwargs))

        return self._make_fetch if resource is None else iterate

"""How a call that is written once becomes a method that blocks, or one that is awaited."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import httpx

from toolscout_client.errors import unreadable
from toolscout_client.repeating import Call, Pause, Steps, answered
from toolscout_client.shapes import Page, read

P = ParamSpec("P")
T = TypeVar("T")

PageOf = Callable[[str | None], Steps[Page[T]]]
"""The page at a cursor."""


@dataclass(frozen=True)
class Blocking:
    """Takes each step, and returns when it has been taken."""

    http: httpx.Client
    retries: int
    user_id: str | None = None

    def run(self, steps: Steps[T]) -> T:
        outcome = None
        try:
            while True:
                outcome = self._take(steps.send(outcome))
        except StopIteration as end:
            result: T = end.value
            return result

    def each(self, page_of: PageOf[T]) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = self.run(page_of(cursor))
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def _take(self, step: Call | Pause) -> httpx.Response | httpx.RequestError | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self.http.request(**_spelled(step, self.user_id))
        except httpx.RequestError as error:
            return error


@dataclass(frozen=True)
class Awaiting:
    """The same, for asyncio."""

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
            outcome = await self._take(step)

    async def each(self, page_of: PageOf[T]) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            page = await self.run(page_of(cursor))
            for item in page.items:
                yield item
            if (cursor := page.next_cursor) is None:
                return

    async def _take(self, step: Call | Pause) -> httpx.Response | httpx.RequestError | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self.http.request(**_spelled(step, self.user_id))
        except httpx.RequestError as error:
            return error


def _spelled(call: Call, user_id: str | None) -> dict[str, Any]:
    """In httpx's words."""
    spelled: dict[str, Any] = {"method": call.method, "url": call.path, "json": call.json}
    spelled["params"] = {name: value for name, value in call.params.items() if value is not None}
    spelled["headers"] = {**call.headers, **({} if user_id is None else {"X-User-Id": user_id})}
    return spelled if call.timeout is None else spelled | {"timeout": call.timeout}


def to(
    route: str,
    *ids: str,
    json: Any = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    repeatable: bool = False,
) -> Call:
    """`route` is a method and a path, such as `GET /servers/{}`; what only reads is repeatable."""
    method, path = route.split()
    path = path.format(*(quote(each, safe="") for each in ids))
    return Call(method, path, json, params or {}, headers or {}, timeout, repeatable or method == "GET")


W = TypeVar("W", Blocking, Awaiting)


class Room(Generic[W]):
    """Calls that belong together, carried out in the one way or in the other."""

    _way: W

    def __init__(self, way: W) -> None:
        self._way = way

    def _sent(self, call: Call) -> Steps[httpx.Response]:
        return answered(call, self._way.retries)

    def _tell(self, call: Call) -> Steps[None]:
        """Where there is nothing to answer."""
        yield from self._sent(call)

    def _ask(self, shape: type[T], call: Call) -> Steps[T]:
        response = yield from self._sent(call)
        with _understood(response):
            return read(shape, response.json())

    def _ask_for_all(self, shape: type[T], call: Call) -> Steps[list[T]]:
        return (yield from self._page(shape, call)).items

    def _pages(self, shape: type[T], call: Call) -> PageOf[T]:
        """As large as they may be."""
        return lambda cursor: self._page(shape, replace(call, params={"limit": 200, **call.params, "cursor": cursor}))

    def _page(self, shape: type[T], call: Call) -> Steps[Page[T]]:
        response = yield from self._sent(call)
        with _understood(response):
            told = response.json()
            return Page([read(shape, item) for item in told["items"]], told.get("next_cursor"))


@contextmanager
def _understood(response: httpx.Response) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise unreadable(response) from error


class call(Generic[P, T]):  # noqa: N801 a decorator
    """Of a method that gives steps: for callers a method that gives what the steps lead to."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._steps = steps

    @overload
    def __get__(self, room: Room[Blocking], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, room: Room[Awaiting], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, room: Any, owner: type) -> Any:
        @wraps(self._steps)
        def carried_out(*args: P.args, **kwargs: P.kwargs) -> Any:
            return room._way.run(self._steps(room, *args, **kwargs))

        return self._steps if room is None else carried_out


class listing(Generic[P, T]):  # noqa: N801 a decorator
    """Of a method that knows the pages of a list: for callers a method that gives item after item."""

    def __init__(self, pages: Callable[Concatenate[Any, P], PageOf[T]]) -> None:
        self._pages = pages

    @overload
    def __get__(self, room: Room[Blocking], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, room: Room[Awaiting], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, room: Any, owner: type) -> Any:
        @wraps(self._pages)
        def carried_out(*args: P.args, **kwargs: P.kwargs) -> Any:
            return room._way.each(self._pages(room, *args, **kwargs))

        return self._pages if room is None else carried_out

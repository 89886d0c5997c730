"""Both Python clients behind one interface: the blocking client, in a thread, and the asyncio client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from toolscout_client import AsyncToolscout, Toolscout

Kind = Literal["blocking", "asyncio"]
Operation = Callable[[Any], Any]


class AnyClient:
    """Runs an operation on either client: `await any_client(lambda client: client.discover("…"))`."""

    def __init__(self, client: Toolscout | AsyncToolscout) -> None:
        self.client = client

    async def __call__(self, operation: Operation) -> Any:
        if isinstance(self.client, Toolscout):
            return await asyncio.to_thread(operation, self.client)  # the application answers in this thread
        return await operation(self.client)

    async def all(self, operation: Operation) -> list[Any]:
        if isinstance(self.client, Toolscout):
            return await asyncio.to_thread(lambda: list(operation(self.client)))
        return [item async for item in operation(self.client)]

    def for_user(self, user_id: str) -> "AnyClient":
        return AnyClient(self.client.for_user(user_id))


@asynccontextmanager
async def open_client(kind: Kind, url: str, key: str, **options: Any) -> AsyncIterator[AnyClient]:
    options = {"verify": False, **options}  # no TLS here, and loading all certificates takes longer than a test
    if kind == "blocking":
        with Toolscout(url, key, **options) as blocking:
            yield AnyClient(blocking)
    else:
        async with AsyncToolscout(url, key, **options) as toolscout:
            yield AnyClient(toolscout)


async def expect_error(operation: Awaitable[Any], error_type: type[Exception]) -> Any:
    with pytest.raises(error_type) as caught:
        await operation
    assert type(caught.value) is error_type
    return caught.value

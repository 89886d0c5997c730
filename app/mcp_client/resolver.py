"""Looks up host names: shared between users, so that names which never resolve do not use up the threads.

The system's resolver blocks a thread for as long as a name server does not answer, and cannot be cancelled. So the
look-ups in progress are limited, in all and for each user, and count until their thread ends, however long ago their
callers gave up. Look-ups of the same name are joined, and a failure is remembered for a few seconds.
"""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cachetools import TTLCache

from app.errors import ServerUnreachable

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

LOOKUP_TIMEOUT_S = 5.0
MAX_LOOKUPS = 32
MAX_LOOKUPS_PER_USER = 4

_FAILURE_TTL_S = 3.0
_MAX_FAILURES = 10_000


@dataclass(frozen=True)
class _LookUp:
    task: asyncio.Task[Sequence[str]]
    deadline: float


class Resolver:
    def __init__(self, look_up: Resolve | None = None) -> None:
        """`look_up` asks the system unless a test passes another function."""
        self._look_up = look_up or look_up_with_system
        self._running: dict[str, _LookUp] = {}
        self._by_user: Counter[str] = Counter()
        self._failures: TTLCache[str, None] = TTLCache(_MAX_FAILURES, _FAILURE_TTL_S)
        self._ended = asyncio.Condition()

    async def resolve(self, user_id: str, host: str, port: int) -> Sequence[str]:
        """Return the host's addresses. Raise `ServerUnreachable` if there are none, or not in time."""
        if host in self._failures:
            raise _not_resolved(host)
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                look_up = await self._join(user_id, host, port)
        except TimeoutError as error:
            message = "too many host names are being resolved that do not answer; try again shortly"
            raise ServerUnreachable("dns", message) from error
        try:
            # joining a look-up that is overdue fails at once
            async with asyncio.timeout_at(look_up.deadline):
                addresses = await asyncio.shield(look_up.task)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise _not_resolved(host) from error
        if not addresses:
            raise ServerUnreachable("dns", f"the host name {host} has no address")
        return addresses

    def close(self) -> None:
        for look_up in self._running.values():
            look_up.task.cancel()

    async def _join(self, user_id: str, host: str, port: int) -> _LookUp:
        """Return the look-up of the host that is in progress, or start one as soon as there is room for it."""
        async with self._ended:
            await self._ended.wait_for(lambda: host in self._running or self._has_room(user_id))
        if host not in self._running:
            task = asyncio.create_task(self._run(user_id, host, port))
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._by_user[user_id] += 1
            self._running[host] = _LookUp(task, asyncio.get_running_loop().time() + LOOKUP_TIMEOUT_S)
        return self._running[host]

    def _has_room(self, user_id: str) -> bool:
        return len(self._running) < MAX_LOOKUPS and self._by_user[user_id] < MAX_LOOKUPS_PER_USER

    async def _run(self, user_id: str, host: str, port: int) -> Sequence[str]:
        try:
            return await self._look_up(host, port)
        except (OSError, UnicodeError):
            self._failures[host] = None
            raise
        finally:
            del self._running[host]
            self._by_user[user_id] -= 1
            if not self._by_user[user_id]:
                del self._by_user[user_id]
            async with self._ended:
                self._ended.notify_all()


async def look_up_with_system(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver, as `/etc/nsswitch.conf` says, in a thread of its own.

    A daemon thread: a process that stops does not wait for it, as it would for the threads of an executor.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def finish(addresses: Sequence[str], error: Exception | None) -> None:
        if not found.done():
            found.set_result(addresses) if error is None else found.set_exception(error)

    def run() -> None:
        addresses: Sequence[str] = ()
        error: Exception | None = None
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in entries))
        except Exception as failure:  # noqa: BLE001 boundary: the error belongs to the caller
            error = failure
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, addresses, error)

    threading.Thread(target=run, name=f"resolve {host}", daemon=True).start()
    return await found


def _not_resolved(host: str) -> ServerUnreachable:
    return ServerUnreachable("dns", f"the host name {host} cannot be resolved")

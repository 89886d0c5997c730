"""Look-ups of host names are shared between users, joined, and limited while they hang."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from app.errors import ServerUnreachable
from app.mcp_client import resolver as resolver_module
from app.mcp_client.resolver import MAX_LOOKUPS, MAX_LOOKUPS_PER_USER, Resolver, look_up_with_system


class FakeDns:
    """Never answers for names that begin with `hang`, until `release` is called."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._released = asyncio.Event()

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        if host.startswith("hang"):
            await self._released.wait()
        if "unknown" in host:
            raise socket.gaierror("unknown")
        return ["8.8.8.8"]

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def dns() -> FakeDns:
    return FakeDns()


@pytest.fixture
async def resolver(dns: FakeDns, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Resolver]:
    monkeypatch.setattr(resolver_module, "LOOKUP_TIMEOUT_S", 0.05)
    created = Resolver(dns)
    yield created
    created.close()


async def fail(resolver: Resolver, user_id: str, host: str) -> str:
    with pytest.raises(ServerUnreachable) as failure:
        await resolver.resolve(user_id, host, 443)
    assert failure.value.cause == "dns"
    return failure.value.message


async def test_names_of_one_user_that_never_resolve_leave_room_for_others(resolver: Resolver, dns: FakeDns) -> None:
    hosts = [f"hang-{number}.example" for number in range(24)]
    messages = await asyncio.gather(*(fail(resolver, "eve", host) for host in hosts))
    assert len(dns.asked) == MAX_LOOKUPS_PER_USER
    assert sum("too many host names" in message for message in messages) == len(hosts) - MAX_LOOKUPS_PER_USER
    assert await resolver.resolve("ann", "fine.example", 443) == ["8.8.8.8"]


async def test_look_ups_count_until_they_end_although_their_callers_gave_up(resolver: Resolver, dns: FakeDns) -> None:
    await asyncio.gather(*(fail(resolver, "eve", f"hang-{number}.example") for number in range(MAX_LOOKUPS_PER_USER)))
    assert "too many" in await fail(resolver, "eve", "fine.example")
    dns.release()
    assert await resolver.resolve("eve", "fine.example", 443) == ["8.8.8.8"]


async def test_all_users_together_have_a_limit(resolver: Resolver, dns: FakeDns) -> None:
    await asyncio.gather(*(fail(resolver, f"user-{number}", f"hang-{number}.example") for number in range(40)))
    assert len(dns.asked) == MAX_LOOKUPS
    assert "too many" in await fail(resolver, "ann", "fine.example")
    dns.release()
    assert await resolver.resolve("ann", "fine.example", 443) == ["8.8.8.8"]


async def test_look_ups_of_the_same_name_are_joined(resolver: Resolver, dns: FakeDns) -> None:
    waiting = [asyncio.create_task(resolver.resolve(f"user-{number}", "hang.example", 443)) for number in range(9)]
    await asyncio.sleep(0)
    dns.release()
    assert await asyncio.gather(*waiting) == [["8.8.8.8"]] * 9
    assert dns.asked == ["hang.example"]
    await resolver.resolve("ann", "hang.example", 443)
    assert len(dns.asked) == 2, "an answer is not cached: an address may change"


async def test_joining_a_look_up_that_is_overdue_fails_at_once(
    resolver: Resolver, dns: FakeDns, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail(resolver, "ann", "hang.example")
    monkeypatch.setattr(resolver_module, "LOOKUP_TIMEOUT_S", 60.0)
    assert "cannot be resolved" in await fail(resolver, "bob", "hang.example")
    assert dns.asked == ["hang.example"]


async def test_a_caller_that_gives_up_does_not_end_the_look_up_of_others(resolver: Resolver, dns: FakeDns) -> None:
    first, second = (asyncio.create_task(resolver.resolve(user, "hang.example", 443)) for user in ("ann", "bob"))
    await asyncio.sleep(0)
    first.cancel()
    dns.release()
    assert await second == ["8.8.8.8"]


async def test_a_failure_is_remembered_for_a_moment(
    dns: FakeDns, monkeypatch: pytest.MonkeyPatch, resolver: Resolver
) -> None:
    for _ in range(3):
        assert "cannot be resolved" in await fail(resolver, "ann", "unknown.example")
    assert dns.asked == ["unknown.example"]
    monkeypatch.setattr(resolver_module, "_FAILURE_TTL_S", 0.0)
    forgetful = Resolver(dns)
    for _ in range(2):
        await fail(forgetful, "ann", "unknown.example")
    assert len(dns.asked) == 3


async def test_the_system_is_asked_in_a_daemon_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stops does not wait for a name server."""
    threads: list[threading.Thread] = []

    def getaddrinfo(host: str, port: int, **_options: Any) -> list[Any]:
        threads.append(threading.current_thread())
        if host == "unknown.example":
            raise socket.gaierror("unknown")
        return [(None, None, None, "", ("8.8.8.8", port)), (None, None, None, "", ("8.8.8.8", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert await look_up_with_system("fine.example", 443) == ["8.8.8.8"]
    with pytest.raises(OSError, match="unknown"):
        await look_up_with_system("unknown.example", 443)
    assert all(thread.daemon for thread in threads)

"""How connections are shared: a part for each user, in turn, and authentication first."""

import asyncio
import random
from collections import Counter

import pytest

from app.db.fair_shares import FairShares, Lane, Owner


def take(shares: FairShares, owner: Owner, wanted: int = 100) -> int:
    """Take connections for the owner as long as there are some at once, and return their number."""
    return sum(shares.try_acquire(owner) for _ in range(wanted))


async def wait_in_line(shares: FairShares, owner: Owner) -> "asyncio.Task[None]":
    task = asyncio.create_task(shares.acquire(owner))
    await asyncio.sleep(0)
    return task


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_user_who_is_alone_leaves_room_for_the_next() -> None:
    shares = FairShares(10)
    assert take(shares, "attacker") == 5
    assert take(shares, "victim") == 3
    assert take(shares, "another") == 1
    assert take(shares, "late") == 0
    assert take(shares, Lane.AUTHENTICATION) == 1


@pytest.mark.parametrize("size", range(1, 30))
def test_everybody_gets_at_least_one_connection(size: int) -> None:
    shares = FairShares(size)
    assert take(shares, "one") >= 1
    if size > 2:
        assert take(shares, "two") >= 1
    if size > 1:
        assert take(shares, Lane.AUTHENTICATION) >= 1
    assert shares.in_use <= size


def test_system_work_has_a_share_like_a_user() -> None:
    shares = FairShares(10)
    assert take(shares, Lane.SYSTEM) == 5
    assert take(shares, "user") == 3
    shares = FairShares(10)
    assert take(shares, "user") == 5
    assert take(shares, Lane.SYSTEM) == 3


def test_strangers_who_authenticate_cannot_take_all_connections() -> None:
    shares = FairShares(10)
    assert take(shares, Lane.AUTHENTICATION) == 5
    assert take(shares, "user") == 5


def test_a_single_connection_serves_one_after_the_other() -> None:
    shares = FairShares(1)
    assert take(shares, "user") == 1
    assert take(shares, Lane.AUTHENTICATION) == 0
    shares.release("user")
    assert take(shares, Lane.AUTHENTICATION) == 1


async def test_those_who_wait_are_served_in_turn() -> None:
    shares = FairShares(2)
    await shares.acquire("busy")
    served: list[Owner] = []

    async def use(owner: Owner) -> None:
        await shares.acquire(owner)
        served.append(owner)
        await asyncio.sleep(0)
        shares.release(owner)

    tasks = [asyncio.create_task(use(owner)) for owner in ["a"] * 4 + ["b", "b", "c"]]
    await settle()
    assert served == []
    shares.release("busy")
    await asyncio.gather(*tasks)
    assert served == ["a", "b", "c", "a", "b", "a", "a"]
    assert (shares.in_use, shares.waiting) == (0, 0)


async def test_authentication_is_served_before_those_who_waited_longer() -> None:
    shares = FairShares(1)
    await shares.acquire("busy")
    user = await wait_in_line(shares, "user")
    authentication = await wait_in_line(shares, Lane.AUTHENTICATION)
    shares.release("busy")
    await settle()
    assert (authentication.done(), user.done()) == (True, False)
    shares.release(Lane.AUTHENTICATION)
    await user


async def test_an_owner_who_waits_does_not_overtake_itself() -> None:
    shares = FairShares(2)
    await shares.acquire("user")
    first = await wait_in_line(shares, "user")
    assert not shares.try_acquire("user")
    shares.release("user")
    await first


async def test_a_cancelled_request_gives_its_turn_to_the_next() -> None:
    shares = FairShares(2)
    await shares.acquire("busy")
    cancelled, next_one = await wait_in_line(shares, "a"), await wait_in_line(shares, "b")
    cancelled.cancel()
    shares.release("busy")  # in the same moment
    await asyncio.gather(cancelled, return_exceptions=True)
    await next_one
    assert (shares.count_held("a"), shares.count_held("b"), shares.waiting) == (0, 1, 0)


async def test_a_request_that_is_cancelled_at_its_turn_gives_the_connection_back() -> None:
    shares = FairShares(2)
    await shares.acquire("busy")
    served = await wait_in_line(shares, "a")
    shares.release("busy")
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)
    assert (shares.in_use, shares.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_any_order_of_requests_and_cancellations_loses_no_connection(seed: int) -> None:
    chance, size = random.Random(seed), 1 + seed % 7
    shares, held = FairShares(size), Counter[Owner]()
    owners: list[Owner] = ["a", "b", "c", Lane.SYSTEM, Lane.AUTHENTICATION]

    async def use(owner: Owner) -> None:
        await shares.acquire(owner)
        held[owner] += 1
        assert held.total() <= size
        try:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        finally:
            held[owner] -= 1
            shares.release(owner)

    tasks = [asyncio.create_task(use(chance.choice(owners))) for _ in range(200)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in ended)
    assert (shares.in_use, shares.waiting) == (0, 0)
    assert take(shares, "a") >= 1

"""Authentication asks the database once with every request, and remembers nothing but which user a key belongs to."""

import asyncio
import secrets
import uuid
from dataclasses import dataclass

import pytest

from app.auth.authentication import Authenticator
from app.auth.keys import NewKey
from app.auth.permissions import Caller
from app.container import Container
from app.errors import DatabaseDown, Forbidden, InvalidInput, Unauthenticated
from app.management.keys import create_key
from tests.support.clients import TestUser
from tests.support.factories import ADMIN_KEY
from tests.support.round_trips import counted_round_trips
from tests.support.sql_statements import recorded_statements
from tests.support.worker_steps import rows


@dataclass
class Door:
    """An authenticator of its own, as in a replica that has just started, and a service key."""

    container: Container
    authenticator: Authenticator
    service_key: str
    service_key_id: str

    async def enter(self, key: str, user_id: str | None = None) -> tuple[Caller, int]:
        """Return the caller and the number of round trips."""
        with counted_round_trips() as trips:
            caller = await self.authenticator.authenticate(key, user_id)
        return caller, trips.count

    async def read_last_use(self, key_id: str) -> object:
        [(at,)] = await rows(self.container, "SELECT last_used_at FROM api_keys WHERE id = %(id)s", id=key_id)
        return at


@pytest.fixture
async def door(container: Container) -> Door:
    key, secret = await create_key(container.database, NewKey("service"), container.quotas, actor="test")
    return Door(container, Authenticator(container.database, ADMIN_KEY), secret, key.id)


async def test_a_user_key_takes_one_round_trip_once_its_user_is_known(door: Door, user: TestUser) -> None:
    trips = []
    for _ in range(4):
        caller, count = await door.enter(user.key)
        assert caller.require_user().id == user.id
        trips.append(count)
    assert trips == [2, 1, 1, 1]


async def test_a_key_that_names_its_user_takes_one_round_trip(door: Door, user: TestUser) -> None:
    for key in (user.key, door.service_key, ADMIN_KEY):
        caller, count = await door.enter(key, user.id)
        assert (caller.require_user().id, count) == (user.id, 1)


async def test_a_key_without_a_user_takes_one_round_trip_and_the_bootstrap_key_none(door: Door) -> None:
    for key, expected in ((door.service_key, 1), (ADMIN_KEY, 0)):
        caller, count = await door.enter(key)
        assert (caller.user, count) == (None, expected)


async def test_the_users_catalogue_version_is_current_with_every_request(door: Door, user: TestUser) -> None:
    versions = []
    for name in ("one", "two"):
        await user.add_tools(server=name)
        caller, _ = await door.enter(user.key)
        versions.append(caller.require_user().catalog_version)
    await user.http.put("/rules", json={"rules": [{"pattern": ["a"], "enabled": False}]})
    caller, count = await door.enter(user.key)
    versions.append(caller.require_user().catalog_version)
    assert versions == sorted(set(versions))
    assert count == 1


async def test_an_invented_key_costs_one_round_trip_and_is_not_remembered(door: Door, user: TestUser) -> None:
    await door.enter(user.key)
    for user_id in (None, user.id, "nobody-" + uuid.uuid4().hex):
        for _ in range(20):
            with counted_round_trips() as trips, pytest.raises(Unauthenticated):
                await door.authenticator.authenticate(f"ts_user_{secrets.token_urlsafe(32)}", user_id)
            assert trips.count == 1
    assert len(door.authenticator._user_ids) == 1
    assert door.authenticator.key_uses.pending == 1
    assert await rows(door.container, "SELECT id FROM users WHERE id LIKE 'nobody-%%'") == []


async def test_a_key_of_one_user_cannot_name_another_even_if_both_are_known(
    door: Door, user: TestUser, other_user: TestUser
) -> None:
    for _ in range(2):
        with pytest.raises(Forbidden):
            await door.enter(user.key, other_user.id)
        caller, _ = await door.enter(user.key, user.id)
        assert caller.require_user().id == user.id


async def test_a_wrong_guess_of_the_user_is_corrected(door: Door, user: TestUser, other_user: TestUser) -> None:
    """It cannot happen, since a key's user never changes; if it did, nobody would act for another user."""
    await door.enter(user.key)
    [digest] = door.authenticator._user_ids
    door.authenticator._user_ids[digest] = other_user.id
    caller, count = await door.enter(user.key)
    assert (caller.require_user().id, count) == (user.id, 2)
    assert (await door.enter(user.key))[1] == 1


async def test_authentication_writes_nothing_but_the_first_request_for_a_user(door: Door, user: TestUser) -> None:
    with recorded_statements() as statements:
        for _ in range(3):
            await door.enter(door.service_key, user.id)
            await door.enter(user.key)
    assert {statement.split()[0] for statement in statements} == {"SELECT"}


async def test_concurrent_first_requests_create_a_user_once(door: Door) -> None:
    user_id = f"new-{uuid.uuid4().hex}"
    callers = await asyncio.gather(*(door.authenticator.authenticate(door.service_key, user_id) for _ in range(8)))
    assert {caller.require_user().id for caller in callers} == {user_id}
    created = await rows(
        door.container, "SELECT actor FROM audit_events WHERE target = %(id)s AND action = 'user.create'", id=user_id
    )
    assert created == [(f"service:{door.service_key_id}",)]
    assert (await door.enter(door.service_key, user_id))[1] == 1


async def test_an_invalid_user_id_is_rejected_for_a_valid_key_alone(door: Door) -> None:
    for key in (door.service_key, ADMIN_KEY):
        with pytest.raises(InvalidInput):
            await door.enter(key, "a b")
    with pytest.raises(Unauthenticated):
        await door.enter("ts_service_invented", "a b")


async def test_uses_of_keys_are_written_together_and_to_the_minute(door: Door, user: TestUser) -> None:
    uses = door.authenticator.key_uses
    for _ in range(3):
        caller, _ = await door.enter(user.key)
        await door.enter(door.service_key)
    assert (uses.pending, await door.read_last_use(door.service_key_id)) == (2, None)
    await uses.flush()
    first = await door.read_last_use(door.service_key_id)
    assert first is not None
    assert await door.read_last_use(caller.key_id) is not None
    await door.enter(door.service_key)
    assert uses.pending == 0, "a second use within the minute is not written"
    await rows(
        door.container,
        "UPDATE api_keys SET last_used_at = now() - interval '61 seconds' WHERE id = %(id)s",
        id=door.service_key_id,
    )
    await door.enter(door.service_key)
    await uses.flush()
    assert str(await door.read_last_use(door.service_key_id)) > str(first)


async def test_uses_stay_pending_while_the_database_is_down(
    door: Door, user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await door.enter(user.key)
    with monkeypatch.context() as patch:

        def fail() -> None:
            raise DatabaseDown("down")

        patch.setattr(door.authenticator.key_uses._database, "system_transaction", fail)
        await door.authenticator.key_uses.flush()
    assert door.authenticator.key_uses.pending == 1
    await door.authenticator.key_uses.flush()
    assert door.authenticator.key_uses.pending == 0

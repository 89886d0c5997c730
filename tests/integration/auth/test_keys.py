"""Keys: shown once, stored as a hash, ended by time or by an administrator."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.auth.authentication import Authenticator
from app.container import Container
from app.errors import Unauthenticated
from tests.conftest import TestUser, new_user
from tests.support.checks import assert_problem, everything

KINDS = ("user", "service", "admin")
ENDS_WITHIN_S = 3.0
"""Promised is one second, and half of one is what it takes; a busy machine takes its time."""


@pytest.fixture(scope="module")
async def user(container: Container) -> AsyncIterator[TestUser]:
    """One for all tests here: each makes keys of its own."""
    async with new_user(container) as made:
        yield made


async def make_key(admin: httpx.AsyncClient, kind: str, user: TestUser, **fields: Any) -> dict[str, Any]:
    owner = {"user_id": user.id} if kind == "user" else {}
    answer = await admin.post("/keys", json={"kind": kind, **owner, **fields})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def opens(client: httpx.AsyncClient, key: dict[str, Any], user: TestUser) -> bool:
    """Whether the key is good for a request that every kind of key may make for this user."""
    headers = {"Authorization": f"Bearer {key['key']}", "X-User-Id": user.id}
    answer = await client.get("/servers", headers=headers)
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


async def seconds_until_refused(is_accepted: Callable[[], Awaitable[bool]]) -> float:
    """When it was last asked for and still accepted: how long the asking takes says nothing."""
    started, accepted_at = time.monotonic(), 0.0
    while True:
        asked_at = time.monotonic() - started
        if not await is_accepted():
            return accepted_at
        accepted_at = asked_at
        assert accepted_at < 5, "the key is still accepted"
        await asyncio.sleep(0.02)


async def set_expiry(container: Container, key_id: str, moment: datetime) -> None:
    async with container.database.system_transaction() as session:
        statement = "UPDATE api_keys SET expires_at = %(moment)s WHERE id = %(id)s"
        await session.rows(statement, {"moment": moment, "id": key_id})


@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_key_opens_the_door_and_says_what_it_is(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, user: TestUser, kind: str
) -> None:
    made = await make_key(admin, kind, user, name="for the tests")
    assert await opens(client, made, user)
    assert made["key"].startswith(f"ts_{kind}_")
    assert made["key"].startswith(made["prefix"])
    assert len(made["prefix"]) <= 17
    assert (made["kind"], made["name"]) == (kind, "for the tests")
    assert made["user_id"] == (user.id if kind == "user" else None)
    assert made["expires_at"] is made["revoked_at"] is made["last_used_at"] is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_is_shown_once_and_stored_only_as_its_hash(
    admin: httpx.AsyncClient, container: Container, user: TestUser, kind: str
) -> None:
    made = await make_key(admin, kind, user)
    secret = made.pop("key")
    digest = hashlib.sha256(secret.encode())

    listed = await everything(admin, "/keys")
    assert [key for key in listed if key["id"] == made["id"]] == [made]
    assert secret not in str(listed)
    assert digest.hexdigest() not in str(listed)

    async with container.database.system_transaction() as session:
        rows = await session.rows("SELECT key_hash, k::text FROM api_keys k WHERE id = %(id)s", {"id": made["id"]})
    [(stored, whole_row)] = rows
    assert bytes(stored) == digest.digest()
    assert secret not in whole_row


async def test_keys_of_one_kind_are_never_alike(admin: httpx.AsyncClient, user: TestUser) -> None:
    made = [await make_key(admin, "service", user) for _ in range(3)]
    assert len({key["key"] for key in made}) == len({key["id"] for key in made}) == 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "user"}, 422),
        ({"kind": "user", "user_id": "no/user"}, 422),
        ({"kind": "user", "user_id": "nobody-has-this-id"}, 404),
        ({"kind": "service", "user_id": "USER"}, 422),
        ({"kind": "admin", "user_id": "USER"}, 422),
        ({"kind": "root"}, 422),
        ({}, 422),
        ({"kind": "service", "name": ""}, 422),
        ({"kind": "service", "project_id": "some-project"}, 422),
        ({"kind": "admin", "project_id": "some-project"}, 422),
        ({"kind": "user", "user_id": "USER", "project_id": "no-such-project"}, 404),
        ({"kind": "user", "user_id": "USER", "project_id": ""}, 422),
        ({"kind": "service", "key": "of-my-own-choice"}, 422),
    ],
)
async def test_a_key_that_makes_no_sense_is_not_made(
    admin: httpx.AsyncClient, user: TestUser, body: dict[str, Any], status: int
) -> None:
    named = {"user_id": user.id} if body.get("user_id") == "USER" else {}
    assert_problem(await admin.post("/keys", json={**body, **named}), status)


async def test_a_key_that_is_bound_to_a_project_says_so_and_the_others_are_bound_to_none(
    admin: httpx.AsyncClient, user: TestUser
) -> None:
    project = (await user.http.post("/projects", json={"name": "support", "server_ids": None})).json()
    bound, free = await make_key(admin, "user", user, project_id=project["id"]), await make_key(admin, "user", user)
    listed = {key["id"]: key["project_id"] for key in await everything(admin, "/keys")}
    assert listed[bound["id"]] == bound["project_id"] == project["id"]
    assert listed[free["id"]] is free["project_id"] is None
    assert (await admin.delete(f"/keys/{bound['id']}")).status_code == 204


async def test_a_key_works_until_it_expires(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, container: Container, user: TestUser
) -> None:
    key = await make_key(admin, "user", user, expires_at=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    assert await opens(client, key, user)
    await set_expiry(container, key["id"], datetime.now(UTC) - timedelta(seconds=1))
    assert await seconds_until_refused(lambda: opens(client, key, user)) < ENDS_WITHIN_S
    await set_expiry(container, key["id"], datetime.now(UTC) + timedelta(hours=1))
    assert await opens(client, key, user)


@pytest.mark.parametrize(
    "expires_at",
    [
        "2001-01-01T00:00:00Z",
        "2001-01-01T00:00:00",
        "tomorrow",
        "",
        "9999-12-31T23:59:59-12:00",
        "99999-01-01T00:00:00Z",
        True,
        1e300,
        [],
    ],
)
async def test_an_expiry_that_is_past_or_no_moment_at_all_is_refused(
    admin: httpx.AsyncClient, expires_at: object
) -> None:
    assert_problem(await admin.post("/keys", json={"kind": "service", "expires_at": expires_at}), 422)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2999-01-01T00:00:00Z", datetime(2999, 1, 1, tzinfo=UTC)),
        ("2999-01-01T00:00:00", datetime(2999, 1, 1, tzinfo=UTC)),
        ("2999-01-01T02:00:00+02:00", datetime(2999, 1, 1, tzinfo=UTC)),
    ],
)
async def test_an_expiry_without_a_zone_is_in_utc(admin: httpx.AsyncClient, given: str, shown: datetime) -> None:
    made = await admin.post("/keys", json={"kind": "service", "expires_at": given})
    assert made.status_code == 201
    assert datetime.fromisoformat(made.json()["expires_at"]) == shown


@pytest.mark.parametrize("kind", KINDS)
async def test_a_revoked_key_ends_at_once_and_stays_in_the_list(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, user: TestUser, kind: str
) -> None:
    key = await make_key(admin, kind, user)
    assert await opens(client, key, user)
    assert (await admin.delete(f"/keys/{key['id']}")).status_code == 204
    assert await seconds_until_refused(lambda: opens(client, key, user)) < ENDS_WITHIN_S
    [listed] = [shown for shown in await everything(admin, "/keys") if shown["id"] == key["id"]]
    assert listed["revoked_at"] is not None


async def test_revoking_again_keeps_the_first_moment(admin: httpx.AsyncClient, user: TestUser) -> None:
    key = await make_key(admin, "service", user)
    moments = set()
    for _ in range(2):
        assert (await admin.delete(f"/keys/{key['id']}")).status_code == 204
        moments |= {shown["revoked_at"] for shown in await everything(admin, "/keys") if shown["id"] == key["id"]}
    assert len(moments) == 1


async def test_another_replica_refuses_a_revoked_key_within_a_second(
    admin: httpx.AsyncClient, container: Container, user: TestUser
) -> None:
    replica = Authenticator(container.database, None)
    key = await make_key(admin, "user", user)

    async def opens_there() -> bool:
        try:
            caller = await replica.authenticate(key["key"], None)
        except Unauthenticated:
            return False
        return caller.require_user().id == user.id

    assert await opens_there()
    await admin.delete(f"/keys/{key['id']}")
    assert await seconds_until_refused(opens_there) < ENDS_WITHIN_S


async def test_a_key_that_does_not_exist_cannot_be_revoked(admin: httpx.AsyncClient, user: TestUser) -> None:
    assert_problem(await admin.delete(f"/keys/{uuid.uuid4()}"), 404)
    key = await make_key(admin, "user", user)
    assert (await admin.delete(f"/keys/{key['id']}")).status_code == 204


async def test_an_admin_key_can_revoke_another_but_not_itself(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, user: TestUser
) -> None:
    key, another = [await make_key(admin, "admin", user) for _ in range(2)]
    as_key = {"X-API-Key": key["key"]}
    assert_problem(await client.delete(f"/keys/{key['id']}", headers=as_key), 422)
    assert (await client.delete(f"/keys/{another['id']}", headers=as_key)).status_code == 204
    assert await opens(client, key, user)
    assert not await opens(client, another, user)


async def test_the_list_tells_when_a_key_was_last_used(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, user: TestUser
) -> None:
    key = await make_key(admin, "user", user)
    started = datetime.now(UTC) - timedelta(seconds=5)
    assert await opens(client, key, user)
    [listed] = [shown for shown in await everything(admin, "/keys") if shown["id"] == key["id"]]
    assert datetime.fromisoformat(listed["last_used_at"]) > started

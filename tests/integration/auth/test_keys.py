"""API keys: shown once, stored as a hash, ended by expiry or by revocation."""

import hashlib
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.auth.authentication import Authenticator
from app.container import Container
from app.errors import Unauthenticated
from tests.support.checks import assert_problem, everything
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService
from tests.support.seed_vectors import owner_connection

KINDS = ("user", "service", "admin")


@pytest.fixture(scope="module")
async def user(container: Container) -> AsyncIterator[TestUser]:
    """One for all tests of this module: each creates its own keys."""
    async with new_user(container) as made:
        yield made


async def make_key(admin: httpx.AsyncClient, kind: str, user: TestUser, **fields: Any) -> dict[str, Any]:
    owner = {"user_id": user.id} if kind == "user" else {}
    answer = await admin.post("/keys", json={"kind": kind, **owner, **fields})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def is_accepted_for(client: httpx.AsyncClient, key: dict[str, Any], user: TestUser) -> bool:
    """Whether the key is accepted for a request that every kind of key may send for this user."""
    headers = {"Authorization": f"Bearer {key['key']}", "X-User-Id": user.id}
    answer = await client.get("/servers", headers=headers)
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


async def set_expiry(container: Container, key_id: str, moment: datetime) -> None:
    async with container.database.system_transaction() as session:
        statement = "UPDATE api_keys SET expires_at = %(moment)s WHERE id = %(id)s"
        await session.rows(statement, {"moment": moment, "id": key_id})


@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_key_is_accepted_and_described(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, user: TestUser, kind: str
) -> None:
    made = await make_key(admin, kind, user, name="for the tests")
    assert await is_accepted_for(client, made, user)
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


async def test_no_two_keys_are_the_same(admin: httpx.AsyncClient, user: TestUser) -> None:
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
async def test_an_inconsistent_key_is_not_created(
    admin: httpx.AsyncClient, user: TestUser, body: dict[str, Any], status: int
) -> None:
    named = {"user_id": user.id} if body.get("user_id") == "USER" else {}
    assert_problem(await admin.post("/keys", json={**body, **named}), status)


async def test_a_key_names_the_project_that_it_is_bound_to(admin: httpx.AsyncClient, user: TestUser) -> None:
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
    assert await is_accepted_for(client, key, user)
    await set_expiry(container, key["id"], datetime.now(UTC) - timedelta(seconds=1))
    assert not await is_accepted_for(client, key, user)
    await set_expiry(container, key["id"], datetime.now(UTC) + timedelta(hours=1))
    assert await is_accepted_for(client, key, user)


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
async def test_an_expiry_in_the_past_or_an_invalid_one_is_rejected(
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
async def test_a_revoked_key_is_rejected_at_once_and_stays_in_the_list(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, user: TestUser, kind: str
) -> None:
    key = await make_key(admin, kind, user)
    assert await is_accepted_for(client, key, user)
    assert (await admin.delete(f"/keys/{key['id']}")).status_code == 204
    assert not await is_accepted_for(client, key, user)
    [listed] = [shown for shown in await everything(admin, "/keys") if shown["id"] == key["id"]]
    assert listed["revoked_at"] is not None


async def test_revoking_a_key_again_keeps_the_first_time(admin: httpx.AsyncClient, user: TestUser) -> None:
    key = await make_key(admin, "service", user)
    moments = set()
    for _ in range(2):
        assert (await admin.delete(f"/keys/{key['id']}")).status_code == 204
        moments |= {shown["revoked_at"] for shown in await everything(admin, "/keys") if shown["id"] == key["id"]}
    assert len(moments) == 1


async def test_another_replica_rejects_a_revoked_key_at_once(
    admin: httpx.AsyncClient, container: Container, user: TestUser
) -> None:
    replica = Authenticator(container.database, None)
    key = await make_key(admin, "user", user)

    async def is_accepted_there() -> bool:
        try:
            caller = await replica.authenticate(key["key"], None)
        except Unauthenticated:
            return False
        return caller.require_user().id == user.id

    assert await is_accepted_there()
    await admin.delete(f"/keys/{key['id']}")
    assert not await is_accepted_there()


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
    assert await is_accepted_for(client, key, user)
    assert not await is_accepted_for(client, another, user)


async def test_the_list_shows_when_a_key_was_last_used(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, user: TestUser, container: Container
) -> None:
    key = await make_key(admin, "user", user)
    started = datetime.now(UTC) - timedelta(seconds=5)
    assert await is_accepted_for(client, key, user)
    await container.authenticator.key_uses.flush()
    [listed] = [shown for shown in await everything(admin, "/keys") if shown["id"] == key["id"]]
    assert datetime.fromisoformat(listed["last_used_at"]) > started


@pytest.fixture
async def without_foreign_keys(open_service: OpenService) -> AsyncIterator[Container]:
    """A service on a database whose keys have no foreign keys, as in one that Citus distributes."""
    async with open_service() as service:
        with owner_connection(service) as connection:
            for constraint in ("api_keys_user_id_fkey", "api_keys_user_id_project_id_fkey"):
                connection.execute(f"ALTER TABLE api_keys DROP CONSTRAINT {constraint}".encode())
        yield service


async def get_status(client: httpx.AsyncClient, key: dict[str, Any]) -> int:
    return (await client.get("/tools", headers={"Authorization": f"Bearer {key['key']}"})).status_code


async def test_keys_of_a_deleted_user_or_project_do_not_come_back_to_life(without_foreign_keys: Container) -> None:
    service = without_foreign_keys
    async with (
        new_user(service) as user,
        open_client(service) as client,
        open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin,
    ):
        project = (await user.http.post("/projects", json={"name": "p"})).json()
        bound = await make_key(admin, "user", user, project_id=project["id"])
        key = await make_key(admin, "user", user)
        assert await get_status(client, bound) == 200
        assert (await user.http.delete(f"/projects/{project['id']}")).status_code == 204
        assert await get_status(client, bound) == 401
        assert await get_status(client, key) == 200
        assert (await admin.delete(f"/users/{user.id}")).status_code == 204
        assert await get_status(client, key) == 401
        assert (await admin.post("/users", json={"id": user.id})).status_code == 201
        assert await get_status(client, key) == 401
        assert await get_status(client, await make_key(admin, "user", user)) == 200
        statement = "SELECT count(*) FROM api_keys WHERE id = ANY(%(ids)s)"
        async with service.database.system_transaction() as session:
            assert await session.rows(statement, {"ids": [bound["id"], key["id"]]}) == [(0,)]


async def test_a_key_that_is_older_than_its_user_is_rejected(container: Container, admin: httpx.AsyncClient) -> None:
    """It is of a deleted user of the same id: with the rows on two nodes, one can outlive the other."""
    async with new_user(container) as user:
        key = await make_key(admin, "user", user)
        async with open_client(container) as client:
            assert await is_accepted_for(client, key, user)
            async with container.database.system_transaction() as session:
                statement = "UPDATE users SET created_at = created_at + interval '1 hour' WHERE id = %(id)s"
                await session.rows(statement, {"id": user.id})
            assert not await is_accepted_for(client, key, user)

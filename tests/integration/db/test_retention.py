"""Old audit events and cached vectors are deleted, in batches, and nothing else."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import timedelta

import pytest
from sqlalchemy import delete, func

from app.audit import events
from app.container import Container
from app.db.engine import Database
from app.db.retention import Deletion, delete_in_batches
from app.db.tables import embedding_cache
from app.errors import QueryFailed
from app.indexing import cache_retention
from tests.support.clients import TestUser
from tests.support.factories import OpenService
from tests.support.worker_steps import rows

_ADD_EVENTS = """
    INSERT INTO audit_events (user_id, id, at, actor, action, outcome)
    SELECT %(user)s, gen_random_uuid()::text, now() - make_interval(days => n), 'a', 'aged', 'o'
    FROM generate_series(%(first)s::int, %(last)s::int) n
"""
_ADD_VECTORS = """
    INSERT INTO embedding_cache (model, text_hash, embedding, created_at)
    SELECT 'aged', int4send(n), '[1,2]', now() - make_interval(days => n) FROM generate_series(1, %(count)s::int) n
"""


async def count_events(user: TestUser) -> int:
    return len((await user.http.get("/audit", params={"action": "aged", "limit": 200})).json()["items"])


async def read_ages(container: Container) -> list[int]:
    statement = "SELECT extract(day FROM now() - created_at)::int FROM embedding_cache WHERE model = 'aged' ORDER BY 1"
    return [age for (age,) in await rows(container, statement)]


async def test_old_audit_events_are_deleted_in_batches_and_young_ones_stay(
    container: Container, user: TestUser
) -> None:
    await rows(container, "UPDATE users SET created_at = now() - interval '9 years' WHERE id = %(u)s", u=user.id)
    await rows(container, _ADD_EVENTS, user=user.id, first=361, last=370)
    assert await count_events(user) == 10
    [deletion] = events.expired_rows(365)
    assert await delete_in_batches(container.database, deletion, rows=2) >= 6
    assert await count_events(user) == 4
    assert events.expired_rows(0) == []


async def test_the_app_cannot_delete_audit_events_of_the_last_month(container: Container, user: TestUser) -> None:
    await rows(container, _ADD_EVENTS, user=user.id, first=0, last=0)
    before = await count_events(user)
    with pytest.raises(QueryFailed) as refusal:
        await rows(container, "SELECT delete_old_audit_events(29, 1000)")
    assert "at least 30 days" in str(refusal.value.__cause__)
    await rows(container, "SELECT delete_old_audit_events(30, 1000)")
    assert await count_events(user) == before == 1


async def test_cached_vectors_expire_by_age_and_by_number(open_service: OpenService) -> None:
    async with open_service() as container:
        await rows(container, _ADD_VECTORS, count=20)
        for deletion in cache_retention.expired_rows(15, 0):
            assert await delete_in_batches(container.database, deletion, rows=2) == 6
        assert (await read_ages(container))[-1] == 14
        for deletion in cache_retention.expired_rows(0, 10):
            await delete_in_batches(container.database, deletion, rows=3)
        assert await read_ages(container) == list(range(1, 11))
        assert cache_retention.expired_rows(0, 0) == []
        for deletion in cache_retention.expired_rows(365, 10):
            assert await delete_in_batches(container.database, deletion) == 0


async def test_every_deletion_of_the_service_can_run(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service itself waits for a minute before the first one."""
    started: list[Sequence[Deletion]] = []

    def remember(_database: Database, deletions: Sequence[Deletion]) -> Coroutine[None, None, None]:
        started.append(deletions)
        return asyncio.sleep(0)

    monkeypatch.setattr("app.container.run_retention", remember)
    async with open_service() as container:
        [deletions] = started
        assert len(deletions) > 12
        assert [await delete_in_batches(container.database, deletion) for deletion in deletions] == [0] * len(deletions)


async def test_a_batch_ends_with_the_last_row(open_service: OpenService) -> None:
    async with open_service() as container:
        await rows(container, _ADD_VECTORS, count=4)
        old = delete(embedding_cache).where(embedding_cache.c.created_at < func.now() - timedelta(hours=1))
        assert await delete_in_batches(container.database, old, rows=2) == 4
        assert await delete_in_batches(container.database, old, rows=2) == 0

"""Which vectors and examples expire, and how many a user can have."""

import numpy as np
import pytest
from pgvector import HalfVector

from app.container import Container
from app.usage import discovery_vectors, examples
from app.usage.examples import learn_example
from tests.support.seed_vectors import KnownUser, add_user, owner_connection

VECTORS = np.eye(384, dtype=np.float32)


def read_ids(container: Container, table: str, user: KnownUser) -> list[object]:
    with owner_connection(container) as connection:
        rows = connection.execute(f"SELECT id FROM {table} WHERE user_id = %s ORDER BY id".encode(), (user.id,))
        return [name for (name,) in rows.fetchall()]


async def test_vectors_expire_after_a_week_and_learned_examples_after_a_year_without_use(container: Container) -> None:
    user = add_user(container, ["one"], VECTORS[:1])
    with owner_connection(container) as connection:
        for days in (6, 8):
            connection.execute(
                "INSERT INTO discovery_vectors (user_id, id, at, model, vector, tools)"
                " VALUES (%s, %s, now() - make_interval(days => %s), 'm', %s, '{}')",
                (user.id, f"{days} days", days, HalfVector(VECTORS[0])),
            )
        for source, days in (("use", 360), ("use", 370), ("person", 370)):
            connection.execute(
                "INSERT INTO tool_examples (user_id, model, tool_id, id, vector, weight, source, used_on)"
                " SELECT user_id, 'm', id, %s, %s, 1, %s, CURRENT_DATE - %s FROM mcp_tools WHERE user_id = %s",
                (f"{source} {days}", HalfVector(VECTORS[0]), source, days, user.id),
            )
    async with container.database.system_transaction() as session:
        for statement in (*discovery_vectors.expired_rows(), *examples.expired_rows()):
            await session.execute(statement)
    assert read_ids(container, "discovery_vectors", user) == ["6 days"]
    assert read_ids(container, "tool_examples", user) == ["person 370", "use 360"]


async def test_the_weakest_examples_of_a_user_give_way(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MAX_LEARNED_PER_USER", 4)
    user = add_user(container, ["one", "two"], VECTORS[:2])
    with owner_connection(container) as connection:
        keys = [
            str(key)
            for (key,) in connection.execute(
                "SELECT id FROM mcp_tools WHERE user_id = %s ORDER BY name", (user.id,)
            ).fetchall()
        ]
    for number in (0, 1, 2, 3, 0, 1, 2, 4):  # 3 is never strengthened
        model, vector = container.model.id, HalfVector(VECTORS[number])
        async with container.database.transaction(user.id) as session:  # each is as old as its transaction
            await learn_example(session, user.id, model, keys[number % 2], vector, is_relevant=True)
    with owner_connection(container) as connection:
        rows = connection.execute("SELECT weight, vector FROM tool_examples WHERE user_id = %s", (user.id,)).fetchall()
    kept = {int(np.argmax(vector.to_numpy())): weight for weight, vector in rows}  # type: ignore[attr-defined]
    assert kept == {0: 2.0, 1: 2.0, 2: 2.0, 4: 1.0}

"""Take one of the two barriers between users away, to see whether the other one suffices.

The barriers are the predicate `user_id = …` of every statement and row-level security in Postgres.
"""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import event

from app.container import Container
from app.db import engine as engine_module
from app.db.engine import Session
from app.db.pipeline import DriverConnection, Rows, Statement
from app.db.pool import PooledConnection
from app.db.scope import APP_ROLE, Scope

_PREDICATE = re.compile(r"(?:\w+\.)?user_id = %\(user_id\w*\)s(?:::\w+)?")
_PREDICATE_OF_USERS = re.compile(r"(?<=WHERE )users\.id = %\(\w+\)s(?:::\w+)?")


@dataclass
class PredicateRemover:
    """Removes the predicate from statements, so that they select the rows of all users."""

    from_sqlalchemy: int = 0
    from_driver: int = 0
    rewritten: set[str] = field(default_factory=set)
    """The statements that it has changed, as they were sent."""

    def before_cursor_execute(self, _c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        statement, count = self._remove_predicate(statement)
        self.from_sqlalchemy += count
        return statement, parameters

    def rewrite(self, statement: str) -> str:
        statement, count = self._remove_predicate(statement)
        self.from_driver += count
        return statement

    @property
    def count(self) -> int:
        return self.from_sqlalchemy + self.from_driver

    def _remove_predicate(self, statement: str) -> tuple[str, int]:
        statement, count = _PREDICATE.subn("TRUE", statement)
        if statement.startswith("UPDATE users"):
            statement, more = _PREDICATE_OF_USERS.subn("TRUE", statement)
            count += more
        if count:
            self.rewritten.add(statement)
        return statement, count


@contextmanager
def predicates_removed(container: Container, remover: PredicateRemover) -> Iterator[None]:
    engine = container.database.engine.sync_engine
    original_rows, original_stream, original_run = Session.rows, Session.stream, vars(engine_module)["run_pipeline"]

    async def rows(session: Session, statement: str, parameters: Any = None) -> Rows:
        return await original_rows(session, remover.rewrite(statement), parameters)

    def stream(session: Session, statement: str, parameters: Any) -> AsyncIterator[tuple[Any, ...]]:
        return original_stream(session, remover.rewrite(statement), parameters)

    event.listen(engine, "before_cursor_execute", remover.before_cursor_execute, retval=True)

    async def rewrite_and_run(
        connection: DriverConnection, statements: Sequence[Statement], **options: Any
    ) -> list[Rows]:
        rewritten = [(remover.rewrite(text), values) for text, values in statements]
        found: list[Rows] = await original_run(connection, rewritten, **options)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "rows", rows)
        patched.setattr(Session, "stream", stream)
        patched.setattr(engine_module, "run_pipeline", rewrite_and_run)
        yield
    event.remove(engine, "before_cursor_execute", remover.before_cursor_execute)


def _stay_superuser(text: str) -> str:
    return text.replace(f"set_config('role', '{APP_ROLE}', true)", "set_config('role', 'none', true)")


@asynccontextmanager
async def row_level_security_removed(container: Container) -> AsyncIterator[None]:
    """Work as the owner of the test database, a superuser, to whom no policy applies. Other services work as before."""
    name, begin, run = container.database.engine.url.database, engine_module._begin, vars(engine_module)["run_pipeline"]

    async def begin_as_superuser(connection: PooledConnection, scope: Scope, *, snapshot: bool) -> None:
        await begin(connection, scope, snapshot=snapshot)
        if connection.driver.info.dbname == name:
            await connection.driver.execute("SET LOCAL ROLE NONE")

    async def run_as_superuser(
        connection: DriverConnection, statements: Sequence[Statement], **options: Any
    ) -> list[Rows]:
        if connection.info.dbname == name:
            statements = [(_stay_superuser(text), values) for text, values in statements]
        rows: list[Rows] = await run(connection, statements, **options)
        return rows

    async def read_role() -> list[str]:
        async with container.database.transaction("nobody") as session:
            in_transaction = await session.rows("SELECT current_user")
        [in_fetch] = await container.database.fetch("nobody", [("SELECT current_user", None)])
        return [role for (role,) in in_transaction + in_fetch]

    assert await read_role() == [APP_ROLE, APP_ROLE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_begin", begin_as_superuser)
        patch.setattr(engine_module, "run_pipeline", run_as_superuser)
        assert await read_role() == ["postgres", "postgres"]
        yield

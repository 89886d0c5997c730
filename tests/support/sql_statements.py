"""Records the SQL statements that a piece of a test sends to Postgres."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import psycopg
import pytest

from app.db.pipeline import Statement, run_pipeline

_recording: ContextVar[list[str] | None] = ContextVar("recording", default=None)


@contextmanager
def recorded_statements() -> Iterator[list[str]]:
    """Collect every statement of the block, and of the tasks that it starts, in order.

    The hooks are in the driver, so that no way around them exists: not SQLAlchemy, not plain SQL. Background tasks of
    the service, which were started before, are not recorded.
    """
    statements: list[str] = []
    execute, executemany = psycopg.AsyncCursor.execute, psycopg.AsyncCursor.executemany
    stream, commit = psycopg.AsyncCursor.stream, psycopg.AsyncConnection.commit

    def record(statement: Any) -> None:
        if (recording := _recording.get()) is not None:
            text = statement.decode() if isinstance(statement, bytes) else str(statement)
            recording.append(" ".join(text.split()))

    async def execute_recorded(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        record(query)
        return await execute(self, query, *arguments, **options)

    async def executemany_recorded(self: Any, query: Any, rows: Any, **options: Any) -> Any:
        record(query)
        return await executemany(self, query, rows, **options)

    def stream_recorded(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        record(query)
        return stream(self, query, *arguments, **options)

    async def commit_recorded(self: Any) -> None:
        record("COMMIT")
        await commit(self)

    async def run_pipeline_recorded(connection: Any, pipelined: Sequence[Statement], **options: Any) -> Any:
        for statement, _ in pipelined:
            record(statement)
        return await run_pipeline(connection, pipelined, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.db.engine.run_pipeline", run_pipeline_recorded)
        patch.setattr(psycopg.AsyncCursor, "execute", execute_recorded)
        patch.setattr(psycopg.AsyncCursor, "executemany", executemany_recorded)
        patch.setattr(psycopg.AsyncCursor, "stream", stream_recorded)
        patch.setattr(psycopg.AsyncConnection, "commit", commit_recorded)
        token = _recording.set(statements)
        yield statements
        _recording.reset(token)

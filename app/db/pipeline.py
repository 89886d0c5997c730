"""Send several statements in one round trip.

Without a BEGIN, the statements up to the next Sync are one implicit transaction: either all or none take effect, and
settings that are local to the transaction apply to the statements that follow.

psycopg's own pipeline waits once for each statement and needs four times the processor time. This one sends all
statements and then reads all results. It uses psycopg's internals for the conversion of parameters and for the list of
prepared statements, so that both ways to send a statement on a connection share the list.
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg._preparing import Prepare, PrepareManager
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer
from psycopg.generators import execute, fetch_many, send

Statement = tuple[str, Mapping[str, Any] | None]
"""Plain SQL with named parameters, as in `SELECT %(name)s`."""
Rows = list[tuple[Any, ...]]
DriverConnection = psycopg.AsyncConnection[tuple[Any, ...]]


async def run_pipeline(
    connection: DriverConnection, statements: Sequence[Statement], *, opening: Sequence[str] = (), commit: bool = False
) -> list[Rows]:
    """Return the rows of each statement. Raise the first error; the statements after it were not run.

    `opening` is sent before them and is not prepared. `commit` ends a transaction that the opening begins.
    """
    sent = [
        *(_SentStatement(connection, text, None, prepare=False) for text in opening),
        *(_SentStatement(connection, *statement) for statement in statements),
        *(_SentStatement(connection, "COMMIT", None, prepare=False) for _ in range(commit)),
    ]
    async with connection.lock:
        await connection.wait(_communicate(connection, sent))
    return [statement.rows for statement in sent[len(opening) : len(sent) - commit]]


def name_statements_uniquely(connection: DriverConnection) -> None:
    """Let no other connection prepare statements of the same names.

    psycopg numbers them from 0. If an unexpected pooler hands a connection of the server from one client to the other,
    a name that both use could be the other one's statement, such as the one that sets the scope. A name that is
    unique does not exist there, which is an error.
    """
    connection._prepared._prepared_idx = secrets.randbits(62)


async def roll_back(connection: DriverConnection) -> None:
    """End the transaction. psycopg's `rollback` would forget all prepared statements as well."""
    async with connection.lock:
        await connection.wait(_roll_back(connection))


def _roll_back(connection: DriverConnection) -> Generator[Any, Any, None]:
    connection.pgconn.send_query(b"ROLLBACK")
    yield from execute(connection.pgconn)


def _communicate(connection: DriverConnection, sent: Sequence["_SentStatement"]) -> Generator[Any, Any, None]:
    wire = connection.pgconn
    wire.enter_pipeline_mode()
    for statement in sent:
        statement.send(wire)
    wire.pipeline_sync()
    yield from send(wire)
    error: psycopg.Error | None = None
    for statement in sent:
        # read all results, even after an error: the connection is usable again only after the last one
        try:
            yield from statement.receive(wire)
        except psycopg.DatabaseError as problem:
            if wire.status != pq.ConnStatus.OK:
                raise
            error = error or problem
    yield from fetch_many(wire)  # the answer to the Sync
    try:
        wire.exit_pipeline_mode()
    except psycopg.OperationalError as problem:  # no answer: the server has said why, and closed the connection
        wire.finish()
        raise (error or problem) from None
    yield from connection._prepared.maintain_gen(connection)
    if error is not None:
        raise error


class _SentStatement:
    """A statement is prepared when it is sent for the first time: in a pipeline that takes no round trip."""

    def __init__(
        self, connection: DriverConnection, text: str, parameters: Mapping[str, Any] | None, *, prepare: bool = True
    ) -> None:
        self._prepare = prepare
        self._prepared: PrepareManager = connection._prepared
        self._transformer = Transformer(connection)
        self._query = PostgresQuery(self._transformer)
        self._query.convert(text, parameters)
        self._encoding = connection.info.encoding
        self._state, self._name = Prepare.NO, b""
        self.rows: Rows = []

    def send(self, wire: pq.abc.PGconn) -> None:
        query = self._query
        self._state, self._name = self._prepared.get(query, prepare=self._prepare)
        if self._state is Prepare.NO:
            wire.send_query_params(query.query, query.params, param_types=query.types, param_formats=query.formats)
            return
        if self._state is Prepare.SHOULD:
            wire.send_prepare(self._name, query.query, param_types=query.types)
        wire.send_query_prepared(self._name, query.params, param_formats=query.formats)

    def receive(self, wire: pq.abc.PGconn) -> Generator[Any, Any, None]:
        results = yield from fetch_many(wire)
        if self._state is Prepare.SHOULD:
            was_prepared = results[0].status == pq.ExecStatus.COMMAND_OK
            if was_prepared:
                self._prepared.maybe_add_to_cache(self._query, self._state, self._name)
                self._prepared._rotate()
            result, results = results[0], (yield from fetch_many(wire))
            if not was_prepared:
                self._raise_error(result)
        [result] = results
        if result.status == pq.ExecStatus.TUPLES_OK:
            self._transformer.set_pgresult(result)
            self.rows = self._transformer.load_rows(0, result.ntuples, tuple)
        elif result.status != pq.ExecStatus.COMMAND_OK:
            self._raise_error(result)

    def _raise_error(self, result: pq.abc.PGresult) -> None:
        if result.status == pq.ExecStatus.PIPELINE_ABORTED:
            raise errors.PipelineAborted("an earlier statement failed")
        raise errors.error_from_result(result, encoding=self._encoding)

"""Holds every statement that the service sends in these tests to what a distributed database needs."""

from collections.abc import Iterator

import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.partitions import PartitionedSchema, StatementGuard
from tests.support.statement_recorder import StatementRecorder, recorded_statements_of


@pytest.fixture(scope="session", autouse=True)
def statement_guard(postgres: EmbeddedPostgres) -> Iterator[StatementGuard]:
    recorder, schema = StatementRecorder(), PartitionedSchema(postgres)
    with recorded_statements_of(recorder):
        yield StatementGuard(recorder, schema)
    schema.close()


@pytest.fixture(autouse=True)
def _statements_ask_one_node(statement_guard: StatementGuard) -> Iterator[None]:
    """Fail the test in which the service sends a statement that a distributed database would refuse or fan out."""
    yield
    problems = statement_guard.check()
    assert not problems, "\n".join(problems)

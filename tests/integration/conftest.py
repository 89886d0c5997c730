"""Holds every statement that the service sends in these tests to what a distributed database needs."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.partitions import PartitionedSchema, StatementGuard
from tests.support.statement_recorder import StatementRecorder, recorded_statements_of


@pytest.fixture(scope="session", autouse=True)
def statement_guard(postgres: EmbeddedPostgres) -> Iterator[StatementGuard]:
    recorder, schema = StatementRecorder(), PartitionedSchema(postgres)
    guard = StatementGuard(recorder, schema)
    with closing(schema):
        with recorded_statements_of(recorder):
            yield guard
        guard.raise_for_problems()  # what services have sent while they were closed


@pytest.fixture(autouse=True)
def _statements_ask_one_node(statement_guard: StatementGuard) -> Iterator[None]:
    """Fail the test in which the service sends a statement that a distributed database would refuse or fan out.

    A task in the background may have sent it, even one of a test before: what is at fault is the function that the
    failure names.
    """
    yield
    statement_guard.raise_for_problems()

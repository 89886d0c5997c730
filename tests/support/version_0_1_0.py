"""A database of version 0.1.0, and a connection that behaves like a replica of that version."""

import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

_DATA = Path(__file__).parent / "data"
_PLACEHOLDER = re.compile(r"\{uuid-\d+\}")

FACTS: dict[str, Any] = json.loads((_DATA / "version_0_1_0.json").read_text())

Transaction = list[dict[str, Any]]
TRANSACTIONS: list[Transaction] = json.loads((_DATA / "version_0_1_0_statements.json").read_text())

# the role that the migrations of 0.1.0 create, which a dump of one database does not contain
_ROLE = """
    DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'toolscout_app') THEN
            CREATE ROLE toolscout_app NOLOGIN NOSUPERUSER NOBYPASSRLS;
            GRANT toolscout_app TO CURRENT_USER;
        END IF;
    END $$
"""

# what 0.1.0 executes on every new connection
_ON_CONNECT = """
    SET ROLE toolscout_app;
    SET plan_cache_mode = force_generic_plan;
    SET jit = off;
    SET work_mem = '32MB';
    SET statement_timeout = '30s';
"""


def restore_dump(url: str) -> None:
    """Restore the database of version 0.1.0 into an empty database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_ROLE)
        connection.execute((_DATA / "version_0_1_0.sql").read_bytes())


def find_transaction(statement_part: str) -> Transaction:
    """Return the recorded transaction with a statement that contains this text."""
    return next(each for each in TRANSACTIONS if any(statement_part in entry["sql"] for entry in each))


class OldReplica:
    """Replays the transactions of version 0.1.0, again and again, on one connection of the app role."""

    def __init__(self, url: str) -> None:
        self.rounds = 0
        self.error: psycopg.Error | None = None
        self._connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)
        self._connection.execute(_ON_CONNECT)
        self._is_stopped = threading.Event()
        self._has_progress = threading.Condition()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._replay_all)
        thread.start()
        try:
            yield
        finally:
            self._is_stopped.set()
            thread.join()

    def close(self) -> None:
        self._connection.close()

    def wait_for_rounds(self, count: int, seconds: float = 120) -> None:
        """Wait until all transactions have been replayed so many times more; raise what a statement has raised."""
        with self._has_progress:
            goal = self.rounds + count
            done = self._has_progress.wait_for(lambda: self.error is not None or self.rounds >= goal, seconds)
        if self.error is not None:
            raise self.error
        assert done, "the replica of version 0.1.0 has stalled"

    def replay(self, transaction: Transaction, ids: dict[str, str]) -> None:
        """Execute a recorded transaction with these values for its placeholders."""
        begin, *statements = transaction
        try:
            self._connection.execute(begin["sql"].encode())
            for entry in statements:
                values = [_fill_placeholders(value, ids) for value in entry.get("parameters", [])]
                self._connection.execute(entry["sql"].encode(), values)
            self._connection.execute("COMMIT")
        except psycopg.errors.UniqueViolation as error:
            self._connection.execute("ROLLBACK")
            # 0.1.0 expects this when another worker claims the server's other run at the same moment
            if error.diag.constraint_name != "index_runs_one_running":
                raise

    def _replay_all(self) -> None:
        try:
            while not self._is_stopped.is_set():
                ids = make_ids()
                for transaction in TRANSACTIONS:
                    self.replay(transaction, ids)
                with self._has_progress:
                    self.rounds += 1
                    self._has_progress.notify_all()
        except psycopg.Error as error:
            with self._has_progress:
                self.error = error
                self._has_progress.notify_all()


def make_ids() -> dict[str, str]:
    """Return a new id for every placeholder."""
    text = json.dumps(TRANSACTIONS)
    return {placeholder: str(uuid.uuid4()) for placeholder in set(_PLACEHOLDER.findall(text))}


def _fill_placeholders(value: str | None, ids: dict[str, str]) -> str | None:
    return None if value is None else _PLACEHOLDER.sub(lambda match: ids[match[0]], value)

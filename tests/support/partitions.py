"""Holds the statements of the service to what a distributed database needs, without one.

The tables are hash-partitioned by user in a Postgres database without rows. Each statement that a test makes the
service send is explained there once, with its parameters:

- in a transaction of a user, a statement asks one partition, that of the user; on Citus, one node;
- a statement that asks more belongs to a function in `FAN_OUTS`, or for the sake of one user in `USER_FAN_OUTS`.

What a plan does not show, `find_refusals` reads from the text: Citus refuses some functions and locks.

Statements that tests themselves send do not count, nor those of functions that never run in a distributed database
(`NOT_DISTRIBUTED`).
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import psycopg
from pgvector.psycopg import register_vector
from sqlalchemy import Date

from app.db.distribution import KEY_COLUMNS, REFERENCE_TABLES, TENANT_COLUMNS
from app.db.tables import metadata
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import make_database
from tests.support.fake_citus import install_fake_citus
from tests.support.fan_outs import FAN_OUTS, NOT_DISTRIBUTED, USER_FAN_OUTS
from tests.support.retry import FinalFailure
from tests.support.statement_recorder import SentStatement, StatementRecorder

PARTITIONS = 32
"""So many that two users or keys hardly ever share one."""
_PARTITION = re.compile(r"^(?P<table>\w+)_part(?P<number>\d+)$")


class PartitionedSchema:
    """Explains statements on partitioned tables without rows."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        """The tables are made when the first statement is explained."""
        self._postgres = postgres

    def close(self) -> None:
        if "_connection" in vars(self):
            self._connection.close()

    @cached_property
    def _connection(self) -> psycopg.Connection[Any]:
        url = make_database(self._postgres)
        install_fake_citus(url)  # for statements that ask its catalogue
        connection = psycopg.connect(url, autocommit=True)
        register_vector(connection)
        partition_tables(connection)
        connection.execute("SET plan_cache_mode = force_custom_plan")
        return connection

    def list_partitions(self, text: str, parameters: Mapping[str, Any] | None) -> set[tuple[str, int]]:
        """Return each table and the number of each of its partitions that the statement asks."""
        statement = f"EXPLAIN (FORMAT JSON, COSTS OFF) {text}"
        row = self._connection.execute(statement.encode(), parameters, prepare=False).fetchone()
        assert row is not None
        found = (_PARTITION.match(name) for name in _list_relations(row[0]))
        return {(match["table"], int(match["number"])) for match in found if match}


def partition_tables(connection: psycopg.Connection[Any]) -> None:
    """Partition each table by the column that Citus would distribute it by."""
    [(view,)] = connection.execute("SELECT pg_get_viewdef('large_tenant_words'::regclass)").fetchall()
    for table, column in {**TENANT_COLUMNS, **KEY_COLUMNS}.items():
        connection.execute(_partition_table(table, column))
    connection.execute(f"CREATE OR REPLACE VIEW large_tenant_words AS {view}".encode())


def _partition_table(table: str, column: str) -> bytes:
    """Return the statements, which are one message and one transaction."""
    statements = [
        f"ALTER TABLE {table} RENAME TO {table}_old",
        f"CREATE TABLE {table} (LIKE {table}_old INCLUDING ALL) PARTITION BY HASH ({column})",
        *(
            f"CREATE TABLE {table}_part{number} PARTITION OF {table} "
            f"FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
            for number in range(PARTITIONS)
        ),
        f"DROP TABLE {table}_old CASCADE",
    ]
    return "; ".join(statements).encode()


def _list_relations(plan: Any) -> Iterator[str]:
    if isinstance(plan, Mapping):
        if "Relation Name" in plan:
            yield plan["Relation Name"]
        plan = list(plan.values())
    if isinstance(plan, list):
        for part in plan:
            yield from _list_relations(part)


def find_join(partitions: set[tuple[str, int]]) -> str | None:
    """Return which tables a statement with these partitions joins, or None. Citus refuses it, wherever they are."""
    keyed = {table for table, _ in partitions if table in KEY_COLUMNS}
    if keyed and len({table for table, _ in partitions}) > len(keyed):
        return f"joins {', '.join(sorted(keyed))} with tables that are distributed by user"
    return None


def find_fan_out(partitions: set[tuple[str, int]]) -> str | None:
    """Return why a statement with these partitions asks more than one node, or None."""
    if (join := find_join(partitions)) is not None:
        return join
    if len({number for _, number in partitions}) > 1:
        counts = Counter(table for table, _ in partitions)
        tables = sorted(table for table, count in counts.items() if count > 1)
        return f"asks several partitions of {', '.join(tables)}" if tables else "names more than one user"
    return None


_VOLATILE = r"(nextval|clock_timestamp|random|gen_random_uuid|statement_timestamp|timeofday|set_config|pg_notify)\s*\("
_STABLE = r"\b(now\s*\(|current_timestamp\b|current_date\b|clock_timestamp\s*\()"
_SET = r"\bUPDATE \w+( \w+)?\s+SET\b((?!\bWHERE\b|\bFROM\b).)*"
_DATES = {
    column.name for table in metadata.tables.values() for column in table.columns if isinstance(column.type, Date)
}
_REFUSALS = {
    "a volatile function in UPDATE": re.compile(rf"\bUPDATE \w+[^;]*?\bSET\b[^;]*{_VOLATILE}", re.I | re.S),
    "a volatile function in RETURNING": re.compile(rf"\bRETURNING\b[^;]*{_VOLATILE}", re.I | re.S),
    "a function that is not immutable in DO UPDATE": re.compile(rf"\bDO UPDATE\b[^;]*{_STABLE}", re.I | re.S),
    "a function that is not immutable in RETURNING": re.compile(rf"\bRETURNING\b[^;]*{_STABLE}", re.I | re.S),
    "a function that is not immutable in a CASE or COALESCE of an update": re.compile(
        rf"{_SET}\b(CASE\b((?!\bEND\b).)*|coalesce\s*\([^()]*){_STABLE}", re.I | re.S
    ),
    "a function of columns that is not immutable in an update": re.compile(
        rf"{_SET}\b(jsonb?_build_(object|array)|to_jsonb?)\s*\(", re.I | re.S
    ),
    "a parameter without a type in a CASE of an update": re.compile(
        rf"{_SET}\bCASE\b((?!\bEND\b).)*\b(THEN|ELSE)\s+%\(\w+\)s(?!::)", re.I | re.S
    ),
    "a time that depends on the time zone, of a column, in an update": re.compile(
        rf"\b(UPDATE|DELETE FROM)\b[^;]*(\b\w+\s*[-+]\s*(interval\b|make_interval\b)"
        rf"|\b({'|'.join(_DATES)})\s*[<>=]+\s*now\(\))",
        re.I | re.S,
    ),
    "a row that is IN a sub-select in DELETE": re.compile(r"\bDELETE FROM\b[^;]*\)\s+IN\s+\(\s*SELECT\b", re.I | re.S),
    # such rows may pass the coordinator, which copies them then, and COPY is refused under row-level security
    "INSERT of a SELECT without ON CONFLICT or RETURNING": re.compile(
        r"\bINSERT INTO \w+( AS \w+)?\s*\([^()]*\)\s*SELECT\b(?!.*\b(ON CONFLICT|RETURNING)\b)", re.I | re.S
    ),
    "ctid, by which each node names rows of its own": re.compile(r"\bctid\b", re.I),
    "SELECT without columns": re.compile(r"\bSELECT\s+FROM\b", re.I),
}
SEVERAL_STATEMENTS = "several statements in one message"
_REFUSED_WITHOUT_TABLES = {
    SEVERAL_STATEMENTS: re.compile(r";\s*\S"),
    "set_config, which does not reach the other nodes": re.compile(r"\bset_config\s*\(", re.I),
}
_SHARED_TABLES = frozenset((*TENANT_COLUMNS, *KEY_COLUMNS, *REFERENCE_TABLES))
_LOCK = re.compile(r"\bFOR (NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)\b", re.I)


def find_refusals(text: str) -> list[str]:
    """Return what Citus refuses in a statement, as far as its text shows it."""
    plain = _remove_literals(text)
    rules = _REFUSED_WITHOUT_TABLES | (_REFUSALS if _SHARED_TABLES & set(re.findall(r"\w+", plain)) else {})
    return [reason for reason, pattern in rules.items() if pattern.search(plain)]


def has_sub_select_beside_aggregate(text: str) -> bool:
    """Return whether the statement returns both, which Citus refuses if the statement asks several nodes."""
    reduced, text = _remove_literals(text), ""
    while reduced != text:
        reduced, text = _PARENTHESES.sub(_reduce_parentheses, reduced), reduced
    columns = re.search(r"\bSELECT\b(.*?)\bFROM\b", reduced, re.I | re.S)
    return columns is not None and {"<query>", "<aggregate>"} <= set(columns[1].split())


_PARENTHESES = re.compile(r"(\w*)\s*\(([^()]*)\)")
_AGGREGATE = re.compile(r"count|sum|min|max|avg|bool_and|bool_or|\w+_agg", re.I)


def _reduce_parentheses(match: re.Match[str]) -> str:
    name, inside = match.groups()
    if re.match(r"\s*SELECT\b", inside, re.I):
        return f"{name} <query> "
    if _AGGREGATE.fullmatch(name):
        return " <aggregate> "
    return f"{name} {inside} ".replace(" FROM ", " ")  # as in `extract(epoch FROM …)`


def takes_locks(text: str) -> bool:
    return _LOCK.search(_remove_literals(text)) is not None


def _remove_literals(text: str) -> str:
    """Leave out comments, too."""
    return re.sub(r"'(?:[^']|'')*'", "''", re.sub(r"--[^\n]*", "", text))


class StatementGuard:
    """Checks the statements that were recorded since the last check."""

    def __init__(self, recorder: StatementRecorder, schema: PartitionedSchema) -> None:
        self._recorder = recorder
        self._schema = schema

    def forget(self, texts: Collection[str]) -> None:
        """Leave out statements with these texts, which a test has changed, since the last check."""
        self._recorder.forget(texts)

    def raise_for_problems(self) -> None:
        if problems := self.check():
            raise FinalFailure("\n".join(problems))

    def check(self) -> list[str]:
        """Return a line for each statement that a distributed database would not run on one node, or not at all."""
        return [problem for sent in self._recorder.take() for problem in self._find_problems(sent)]

    def _find_problems(self, sent: SentStatement) -> Iterator[str]:
        if sent.function.startswith(NOT_DISTRIBUTED):
            return
        where = f"{sent.function} ({'system' if sent.is_system else 'user'}): "
        text = " ".join(sent.text.split())
        refusals = find_refusals(sent.text)
        for refusal in refusals:
            yield f"{where}{refusal}: {text}"
        if SEVERAL_STATEMENTS in refusals:
            return  # one of them would not be explained, but run
        try:
            partitions = self._schema.list_partitions(sent.text, sent.parameters)
        except psycopg.errors.SyntaxError:
            return  # SET, SHOW, CALL: no plan
        fan_out = find_fan_out(partitions)
        if fan_out is None:
            return
        if takes_locks(sent.text):
            yield f"{where}takes locks and {fan_out}: {text}"
        elif has_sub_select_beside_aggregate(sent.text):
            yield f"{where}has a sub-select beside an aggregate and {fan_out}: {text}"
        elif find_join(partitions) or sent.function not in (FAN_OUTS if sent.is_system else USER_FAN_OUTS):
            yield f"{where}{fan_out}: {text}"

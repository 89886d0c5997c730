"""The guard that holds the statements of all integration tests to what a distributed database needs."""

import importlib.util
import inspect
from collections.abc import Iterator

import pytest
from alembic import command
from sqlalchemy import create_engine
from sqlalchemy.exc import ProgrammingError

from app.container import Container
from app.db.engine import driver_url
from app.db.migrate import alembic_config
from app.indexing.queue import claim_run
from app.local_postgres.postgres import EmbeddedPostgres
from migrations.statements import split_statements
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.fan_outs import FAN_OUTS
from tests.support.partitions import PartitionedSchema, StatementGuard, find_fan_out, find_refusals
from tests.support.statement_recorder import SentStatement, StatementRecorder, recorded_statements_of

USER = {"user_id": "ada"}


@pytest.fixture(scope="module")
def schema(postgres: EmbeddedPostgres) -> Iterator[PartitionedSchema]:
    schema = PartitionedSchema(postgres)
    yield schema
    schema.close()


# each statement as it was, and as it is
SAME_ROWS = (
    (
        "SELECT EXISTS (SELECT 1 FROM mcp_tools o WHERE o.user_id = t.user_id AND o.name = t.name) FROM mcp_tools t "
        "WHERE t.user_id = %(user_id)s",
        "SELECT EXISTS (SELECT 1 FROM mcp_tools o WHERE o.user_id = %(user_id)s AND o.name = t.name) FROM mcp_tools t "
        "WHERE t.user_id = %(user_id)s",
    ),
    (
        "SELECT ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = s.user_id) FROM selections s "
        "WHERE s.user_id = %(user_id)s",
        "SELECT ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = %(user_id)s) FROM selections s "
        "WHERE s.user_id = %(user_id)s",
    ),
    (
        "SELECT t.name FROM (SELECT * FROM mcp_tool_embeddings WHERE user_id = %(user_id)s LIMIT 5) v "
        "JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id",
        "SELECT t.name FROM (SELECT * FROM mcp_tool_embeddings WHERE user_id = %(user_id)s LIMIT 5) v "
        "JOIN mcp_tools t ON t.user_id = %(user_id)s AND t.id = v.tool_id",
    ),
    (
        "SELECT k.id FROM api_keys k WHERE k.id = %(user_id)s",
        "SELECT k.id FROM api_keys k WHERE k.key_hash = convert_to(%(user_id)s, 'UTF8')",
    ),
)


@pytest.mark.parametrize(("before", "after"), SAME_ROWS)
def test_a_statement_asks_one_node_if_it_names_the_user_for_every_table(
    schema: PartitionedSchema, before: str, after: str
) -> None:
    assert find_fan_out(schema.list_partitions(before, USER)) is not None
    assert find_fan_out(schema.list_partitions(after, USER)) is None


def test_a_statement_about_two_users_is_a_fan_out(schema: PartitionedSchema) -> None:
    names = [f"user-{n}" for n in range(20)]
    statement = "SELECT 1 FROM users a, users b WHERE a.id = %(one)s AND b.id = %(two)s"
    found = {find_fan_out(schema.list_partitions(statement, {"one": "user-0", "two": name})) for name in names}
    assert found == {None, "asks several partitions of users"}


def test_a_join_of_keys_and_users_is_a_fan_out(schema: PartitionedSchema) -> None:
    statement = "SELECT 1 FROM api_keys k, users u WHERE k.key_hash = %(digest)s AND u.id = %(user_id)s"
    joined = schema.list_partitions(statement, {**USER, "digest": b"1"})
    assert find_fan_out(joined) == "joins api_keys with tables that are distributed by user"


REFUSED = (
    ("UPDATE users SET catalog_version = nextval('catalog_versions')", "UPDATE users SET catalog_version = 7"),
    (
        "UPDATE index_runs SET done = 1 RETURNING clock_timestamp() - started_at",
        "UPDATE index_runs SET done = 1 RETURNING started_at",
    ),
    ("INSERT INTO index_runs VALUES (1) RETURNING pg_notify('c', '')", "SELECT pg_notify('c', '')"),
    (
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET updated_at = now()",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET updated_at = excluded.updated_at",
    ),
    (
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1 WHERE t.at <= now() - interval '1 day'",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1 WHERE excluded.at - t.at >= interval '1 day'",
    ),
    (
        "DELETE FROM t WHERE user_id = 'a' RETURNING expires_at < now() AS is_expired",
        "DELETE FROM t WHERE user_id = 'a' RETURNING expires_at",
    ),
    (
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = 'a'",
        "UPDATE api_keys SET revoked_at = now() WHERE id = 'a' AND revoked_at IS NULL",
    ),
    (
        "UPDATE e SET weight = CASE WHEN x THEN CURRENT_DATE - used_on ELSE 1 END WHERE id = 1",
        "UPDATE e SET weight = CASE WHEN x THEN 2 ELSE 1 END, used_on = CURRENT_DATE WHERE id = 1",
    ),
    (
        "UPDATE c SET calls = calls || jsonb_build_object('key', turn) WHERE id = 1",
        "UPDATE c SET calls = jsonb_set(calls, ARRAY['key'], turn::text::jsonb) WHERE spans @> jsonb_build_array(1)",
    ),
    (
        "DELETE FROM t WHERE user_id = 'a' AND (b, c) IN (SELECT b, c FROM t OFFSET 9)",
        "DELETE FROM t USING (SELECT b, c FROM t OFFSET 9) old WHERE t.user_id = 'a' AND t.b = old.b AND t.c = old.c",
    ),
    (
        "UPDATE t SET a = CASE WHEN b THEN %(new)s ELSE a END WHERE user_id = 'a'",
        "UPDATE t SET a = CASE WHEN b THEN %(new)s::text ELSE a END WHERE user_id = 'a'",
    ),
    (
        "UPDATE t SET expires_at = expires_at - interval '1 hour' WHERE user_id = 'a'",
        "UPDATE t SET expires_at = now() - interval '1 hour' WHERE user_id = 'a'",
    ),
    (
        "DELETE FROM tool_examples WHERE used_on < now() - %(age)s",
        "DELETE FROM tool_examples WHERE used_on < CURRENT_DATE - %(days)s",
    ),
    (
        "INSERT INTO t (user_id, id) SELECT user_id, gen_random_uuid() FROM s WHERE user_id = 'a'",
        "INSERT INTO t (user_id, id) SELECT user_id, id FROM s WHERE user_id = 'a' ON CONFLICT DO NOTHING",
    ),
    ("SELECT EXISTS (SELECT FROM users)", "SELECT EXISTS (SELECT 1 FROM users)"),
    ("BEGIN; SELECT set_config('app.user_id', 'a', true)", "SELECT 'BEGIN; SELECT'"),
)


@pytest.mark.parametrize(("refused", "accepted"), REFUSED)
def test_what_citus_refuses_is_seen_in_the_text(refused: str, accepted: str) -> None:
    assert find_refusals(refused)
    assert find_refusals(accepted) == []


@pytest.mark.parametrize(
    ("function", "is_listed"), [("app.auth.keys.list_keys", True), ("app.auth.keys.insert", False)]
)
def test_only_listed_functions_may_fan_out(schema: PartitionedSchema, function: str, is_listed: bool) -> None:
    sent = SentStatement("SELECT id FROM api_keys", None, is_system=True, function=function)
    guard = StatementGuard(StatementRecorder(new=[sent]), schema)
    problems = guard.check()
    assert problems == (
        [] if is_listed else [f"{function} (system): asks several partitions of api_keys: SELECT id FROM api_keys"]
    )


def test_no_function_may_lock_rows_on_several_nodes(schema: PartitionedSchema) -> None:
    statement = "SELECT id FROM api_keys FOR UPDATE"
    sent = SentStatement(statement, None, is_system=True, function="app.auth.keys.list_keys")
    [problem] = StatementGuard(StatementRecorder(new=[sent]), schema).check()
    assert "takes locks and asks several partitions of api_keys" in problem


async def test_the_search_for_runs_of_some_users_asks_their_nodes_alone(
    container: Container, schema: PartitionedSchema
) -> None:
    """It is listed, since it may ask all nodes while all of them answer; but not while one is away."""
    recorder = StatementRecorder()
    with recorded_statements_of(recorder):
        async with container.database.system_transaction() as session:
            for user_ids in (["ada"], None):
                assert await claim_run(session, 60, "no such run", user_ids=user_ids) is None
    asked = {
        "user_ids" in sent.text: schema.list_partitions(sent.text, sent.parameters)
        for sent in recorder.take()
        if sent.function == "app.indexing.queue.claim_run"  # workers of other services send statements, too
    }
    assert find_fan_out(asked[True]) is None
    assert {table for table, _ in asked[True]} == {"index_runs", "mcp_servers"}
    assert find_fan_out(asked[False]) is not None


def test_the_listed_functions_exist() -> None:
    for name in FAN_OUTS:
        parts = name.split(".")
        split = next(n for n in range(len(parts), 0, -1) if _is_module(".".join(parts[:n])))
        found = importlib.import_module(".".join(parts[:split]))
        for part in parts[split:]:
            found = getattr(found, part)
        assert inspect.isfunction(found), name


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


async def test_every_way_to_the_database_is_recorded(user: TestUser) -> None:
    recorder = StatementRecorder()
    with recorded_statements_of(recorder):
        server = await user.add_server("s")
        await user.push(server, [tool("read_file", "Reads a file.")])
        await user.discover("read a file")
    sent = {(each.function, each.is_system) for each in recorder.take()}
    assert sent >= {
        ("app.auth.authentication.Authenticator._find_key", True),  # fetch
        ("app.catalog.servers.insert_server", False),  # SQLAlchemy
        ("app.auth.users.raise_version", False),  # plain SQL, and a pipeline
        ("app.catalog.definitions.read_definitions", False),  # a batch
    }
    assert not any(each.function.startswith("tests.") for each in recorder.new)
    with recorded_statements_of(recorder):
        await user.discover("read a file")
    again = {(each.function, each.is_system) for each in recorder.take()}
    assert ("app.auth.authentication.Authenticator._find_key", True) not in again, "a statement is checked once"


def test_a_script_is_split_into_statements() -> None:
    script = (
        "CREATE TABLE a (\n    b int  -- 1; 2\n);\nCREATE FUNCTION f() AS $$\nBEGIN\n  x;\nEND\n$$;\n-- the end\nDROP a"
    )
    first, second, third = split_statements(script)
    assert (first[:12], first[-1]) == ("CREATE TABLE", ")")
    assert second.endswith("$$")
    assert third == "-- the end\nDROP a"


def test_each_migration_sends_one_statement_at_a_time(empty_database: str) -> None:
    """Postgres prepares only single statements, as Citus takes only single ones."""
    engine = create_engine(driver_url(empty_database), connect_args={"prepare_threshold": 0})
    with engine.connect() as connection, pytest.raises(ProgrammingError, match="cannot insert multiple commands"):
        connection.exec_driver_sql("SELECT 1; SELECT 2")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector")
        connection.commit()
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        command.downgrade(config, "base")
    engine.dispose()

"""The guard that holds the statements of all integration tests to what a distributed database needs."""

import importlib.util
import inspect
from collections.abc import Iterator

import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine, delete
from sqlalchemy.exc import ProgrammingError

from app.container import Container
from app.db import tables
from app.db.engine import driver_url
from app.db.migrate import alembic_config
from app.db.retention import delete_in_batches
from app.db.scope import Scope
from app.embeddings.repository import read_active_model
from app.indexing.large_tenants import run_pass
from app.indexing.queue import claim_run
from app.local_postgres.postgres import EmbeddedPostgres
from migrations.statements import split_statements
from tests.support.clients import TestUser
from tests.support.factories import OpenService, tool
from tests.support.fan_outs import FAN_OUTS, NOT_DISTRIBUTED, USER_FAN_OUTS
from tests.support.partitions import PartitionedSchema, StatementGuard, find_fan_out, find_refusals
from tests.support.retry import FinalFailure
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


def test_a_listed_function_may_not_join_keys_and_users(schema: PartitionedSchema) -> None:
    statement = "SELECT 1 FROM api_keys k, users u WHERE k.user_id = u.id"
    sent = SentStatement(statement, None, is_system=True, function="app.auth.keys.list_keys")
    [problem] = StatementGuard(StatementRecorder(new=[sent]), schema).check()
    assert "joins api_keys" in problem


REFUSED = (
    ("UPDATE users SET catalog_version = nextval('catalog_versions')", "UPDATE users SET catalog_version = 7"),
    (
        "UPDATE index_runs SET done = 1 RETURNING clock_timestamp() - started_at",
        "UPDATE index_runs SET done = 1 RETURNING started_at",
    ),
    ("INSERT INTO index_runs VALUES (1) RETURNING pg_notify('c', '')", "SELECT pg_notify('c', '')"),
    (
        "INSERT INTO users VALUES (1) ON CONFLICT (a) DO UPDATE SET updated_at = now()",
        "INSERT INTO users VALUES (1) ON CONFLICT (a) DO UPDATE SET updated_at = excluded.updated_at",
    ),
    (
        "INSERT INTO users AS u VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1 WHERE u.at <= now() - interval '1 day'",
        "INSERT INTO users AS u VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1 WHERE excluded.at - u.at >= '1 day'",
    ),
    (
        "DELETE FROM users WHERE user_id = 'a' RETURNING expires_at < now() AS is_expired",
        "DELETE FROM users WHERE user_id = 'a' RETURNING expires_at",
    ),
    (
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = 'a'",
        "UPDATE api_keys SET revoked_at = now() WHERE id = 'a' AND revoked_at IS NULL",
    ),
    (
        "UPDATE tool_examples SET weight = CASE WHEN x THEN CURRENT_DATE - used_on ELSE 1 END WHERE id = 1",
        "UPDATE tool_examples SET weight = CASE WHEN x THEN 2 ELSE 1 END, used_on = CURRENT_DATE WHERE id = 1",
    ),
    (
        "UPDATE users SET calls = calls || jsonb_build_object('key', turn) WHERE id = 1",
        "UPDATE users SET calls = jsonb_set(calls, ARRAY['key'], turn::text::jsonb) WHERE a @> jsonb_build_array(1)",
    ),
    (
        "DELETE FROM users WHERE user_id = 'a' AND (b, c) IN (SELECT b, c FROM users OFFSET 9)",
        "DELETE FROM users USING (SELECT b, c FROM users OFFSET 9) old WHERE user_id = 'a' AND b = old.b AND c = old.c",
    ),
    (
        "UPDATE users SET a = CASE WHEN b THEN %(new)s ELSE a END WHERE user_id = 'a'",
        "UPDATE users SET a = CASE WHEN b THEN %(new)s::text ELSE a END WHERE user_id = 'a'",
    ),
    (
        "UPDATE users SET expires_at = expires_at - interval '1 hour' WHERE user_id = 'a'",
        "UPDATE users SET expires_at = now() - interval '1 hour' WHERE user_id = 'a'",
    ),
    (
        "DELETE FROM tool_examples WHERE used_on < now() - %(age)s",
        "DELETE FROM tool_examples WHERE used_on < CURRENT_DATE - %(days)s",
    ),
    (
        "INSERT INTO users (user_id, id) SELECT user_id, gen_random_uuid() FROM s WHERE user_id = 'a'",
        "INSERT INTO users (user_id, id) SELECT user_id, id FROM s WHERE user_id = 'a' ON CONFLICT DO NOTHING",
    ),
    ("DELETE FROM users WHERE ctid = '(0,1)'", "DELETE FROM users WHERE id = '(0,1)'"),
    ("SELECT EXISTS (SELECT FROM users)", "SELECT EXISTS (SELECT 1 FROM users)"),
    ("UPDATE policy SET hold_new = random() < 0.5", "UPDATE policy SET hold_new = true"),
    ("INSERT INTO users VALUES ('a') RETURNING now()", "INSERT INTO task_leases VALUES ('a') RETURNING now()"),
    ("SELECT set_config('enable_nestloop', 'off', true)", "SET LOCAL enable_nestloop = off"),
    ("BEGIN; SET LOCAL enable_nestloop = off", "SELECT 'BEGIN; SELECT'"),
)


@pytest.mark.parametrize(("refused", "accepted"), REFUSED)
def test_what_citus_refuses_is_seen_in_the_text(refused: str, accepted: str) -> None:
    assert find_refusals(refused)
    assert find_refusals(accepted) == []


REFUSED_WITHOUT_PARTITIONS = (
    (
        "INSERT INTO users (id, created_at) VALUES (%(user_id)s, now()) "
        "ON CONFLICT (id) DO UPDATE SET created_at = now()",
        "INSERT INTO users (id, created_at) VALUES (%(user_id)s, now()) "
        "ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at",
    ),
    (
        "INSERT INTO public_listings (key, lease_until) VALUES (%(user_id)s, now()) RETURNING now()",
        "INSERT INTO public_listings (key, lease_until) VALUES (%(user_id)s, now()) RETURNING lease_until",
    ),
    ("UPDATE policy SET hold_new = random() < 0.5", "UPDATE policy SET hold_new = true"),
    ("SELECT set_config('enable_nestloop', 'off', true)", "SET LOCAL enable_nestloop = off"),
    ("SELECT 1; SELECT id FROM users", "SELECT 1"),
)


@pytest.mark.parametrize(("refused", "accepted"), REFUSED_WITHOUT_PARTITIONS)
def test_a_refusal_counts_where_the_plan_names_no_partition(
    schema: PartitionedSchema, refused: str, accepted: str
) -> None:
    sent = [SentStatement(text, USER, is_system=False, function="app.auth.users.f") for text in (refused, accepted)]
    [problem] = StatementGuard(StatementRecorder(new=sent), schema).check()
    assert problem.endswith(refused)


@pytest.mark.parametrize(("function", "is_checked"), [("app.search.hnsw.f", False), ("app.search.postgres.f", True)])
def test_what_no_distributed_database_runs_is_not_checked(
    schema: PartitionedSchema, function: str, is_checked: bool
) -> None:
    sent = SentStatement("SELECT count(*) FROM users", None, is_system=True, function=function)
    assert len(StatementGuard(StatementRecorder(new=[sent]), schema).check()) == is_checked


NAMES = [f"user-{n}" for n in range(3)]
OF_USERS = "SELECT 1 FROM users WHERE id = ANY(%(ids)s)"


@pytest.mark.parametrize(
    ("later", "is_checked"),
    [({"ids": NAMES[1:2]}, False), ({"ids": NAMES[:2]}, True), ({"ids": []}, True), ({"ids": None}, True)],
)
def test_a_statement_is_checked_again_with_parameters_of_another_shape(
    schema: PartitionedSchema, later: dict[str, list[str] | None], is_checked: bool
) -> None:
    recorder = StatementRecorder()
    guard = StatementGuard(recorder, schema)
    recorder.record_in(Scope(), OF_USERS, {"ids": NAMES[:1]}, "app.auth.users.f")
    assert guard.check() == []
    recorder.record_in(Scope(), OF_USERS, later, "app.auth.users.f")
    assert len(recorder.new) == is_checked
    assert len(guard.check()) == (later["ids"] == NAMES[:2])


def test_what_a_test_has_changed_is_forgotten_and_nothing_else(schema: PartitionedSchema) -> None:
    recorder = StatementRecorder()
    guard = StatementGuard(recorder, schema)
    changed, sent_meanwhile = "SELECT id FROM users WHERE TRUE", "SELECT id FROM users"
    for text in (changed, sent_meanwhile):
        recorder.record_in(Scope("ada"), text, None, "app.auth.users.f")
    guard.forget({changed})
    with pytest.raises(FinalFailure) as failure:
        guard.raise_for_problems()
    assert str(failure.value) == "app.auth.users.f (user): asks several partitions of users: SELECT id FROM users"
    guard.raise_for_problems()


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


def test_a_function_that_is_listed_for_the_system_may_not_fan_out_for_a_user(schema: PartitionedSchema) -> None:
    def check(function: str) -> list[str]:
        sent = SentStatement("SELECT id FROM api_keys", None, is_system=False, function=function)
        return StatementGuard(StatementRecorder(new=[sent]), schema).check()

    assert len(check("app.auth.keys.list_keys")) == 1
    assert check("app.auth.keys.delete_keys") == []


@pytest.mark.parametrize(
    ("columns", "is_refused"),
    [
        ("coalesce(sum(done), 0), (SELECT count(*) FROM mcp_servers)", True),
        ("extract(epoch FROM min(created_at)), coalesce((SELECT 1 FROM mcp_servers LIMIT 1), 0)", True),
        ("coalesce(sum(done), 0)", False),
        ("max((SELECT count(*) FROM mcp_servers s WHERE s.user_id = r.user_id))", False),
        ("done, (SELECT count(*) FROM mcp_servers)", False),
    ],
)
def test_a_fan_out_may_not_return_a_sub_select_beside_an_aggregate(
    schema: PartitionedSchema, columns: str, is_refused: bool
) -> None:
    statement = f"SELECT {columns} FROM index_runs r"
    sent = SentStatement(statement, None, is_system=True, function="app.indexing.queue_metrics.update_queue_metrics")
    problems = StatementGuard(StatementRecorder(new=[sent]), schema).check()
    assert any("sub-select beside an aggregate" in problem for problem in problems) == is_refused


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
    assert all(_is_module(name.removesuffix(".")) for name in NOT_DISTRIBUTED)
    for name in (*FAN_OUTS, *USER_FAN_OUTS):
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


async def test_statements_of_the_owner_and_of_retention_are_recorded(
    open_service: OpenService, migrated_database: str
) -> None:
    recorder = StatementRecorder()
    with recorded_statements_of(recorder):
        async with open_service() as service:
            deletion = delete(tables.embedding_cache).where(tables.embedding_cache.c.model == "none")
            await delete_in_batches(service.database, deletion)
        assert read_active_model(migrated_database) is None
        await run_pass(migrated_database)
    sent = {each.function for each in recorder.take() if each.is_system}
    assert sent >= {
        "app.db.retention.delete_in_batches",
        "app.embeddings.repository.list_models",  # psycopg's synchronous connection
        "app.indexing.large_tenants.update_large_tenants",  # an asynchronous one, without a session
    }


def test_no_function_in_the_database_contains_what_citus_refuses(migrated_database: str) -> None:
    """The service does not send their statements. Triggers do not count: tables are distributed without them."""
    functions = """
        SELECT proname, prosrc FROM pg_proc p
        WHERE pronamespace = 'public'::regnamespace AND prorettype <> 'trigger'::regtype
        AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
    """
    with psycopg.connect(migrated_database) as connection:
        bodies: dict[str, str] = dict(connection.execute(functions).fetchall())
    assert "delete_old_audit_events" in bodies
    statements = [(name, statement) for name, body in bodies.items() for statement in body.split(";")]
    assert [(name, refusal) for name, statement in statements for refusal in find_refusals(statement)] == []


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

"""`toolscout migrate --distributed`, and a service on a database that says that it is distributed."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text

from app.catalog import visibility
from app.container import Container, open_container
from app.db.distribute import count_other_sessions
from app.db.distribution import KEY_COLUMNS, REFERENCE_TABLES, TENANT_COLUMNS
from app.db.engine import Database, driver_url
from app.db.migrate import migrate, migrate_and_distribute
from app.db.nodes import Nodes
from app.db.scope import APP_ROLE
from app.doctor import check_installation
from app.errors import ConfigurationError, NodeDown
from app.indexing import queue
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, new_user, open_client
from tests.support.database_owners import create_owned_database, owner_name
from tests.support.factories import (
    OpenService,
    make_database,
    make_empty_database,
    make_settings,
    resolve_nothing,
    tool,
)
from tests.support.fake_citus import OTHER, change_fake_citus, install_fake_citus, lose_node, lose_node_at_commit

BOUND = ", ".join(
    f"CAST(:{name} AS text)"
    for name in ("run_id", "pushes", "listings", "full_push_users", "full_listing_users", "full_hosts")
)
"""The parameters of the statement that looks for runs."""
ALL_TABLES = {*TENANT_COLUMNS, *KEY_COLUMNS, *REFERENCE_TABLES}


@pytest.fixture
def cluster_database(own_postgres: EmbeddedPostgres) -> str:
    """An empty database of a Postgres of its own: the app role is changed, which all databases of a server share."""
    url = make_empty_database(own_postgres)
    install_fake_citus(url)
    return url


def list_distributed(url: str) -> list[tuple[str, str]]:
    rows = change_fake_citus(url, "SELECT logicalrelid::text, kind FROM pg_catalog.pg_dist_partition ORDER BY place")
    return [(table, kind) for table, kind in rows]


def test_a_database_without_citus_is_not_distributed(fresh_database: str) -> None:
    with pytest.raises(ConfigurationError, match="this database has no Citus: on each node, set `shared_preload"):
        migrate_and_distribute(fresh_database, print)


def test_every_table_is_distributed_users_first(cluster_database: str) -> None:
    progress: list[str] = []
    migrate_and_distribute(cluster_database, progress.append)
    placed = list_distributed(cluster_database)
    assert {table for table, _ in placed} == ALL_TABLES
    assert placed[0] == ("users", "id with none")
    assert set(placed) >= {
        ("mcp_tools", "user_id with users"),
        ("api_keys", "key_hash with none"),
        ("policy", "reference"),
    }
    assert progress[0] == f"distributing users (1 of {len(ALL_TABLES)})"


def test_what_citus_does_not_distribute_is_removed(cluster_database: str) -> None:
    migrate_and_distribute(cluster_database, print)
    with psycopg.connect(cluster_database) as connection:
        triggers = (
            "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = 'mcp_tool_embeddings'::regclass"
        )
        assert connection.execute(triggers).fetchone() == (0,)
        keys = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid = 'api_keys'::regclass"
        assert connection.execute(keys).fetchone() == (0,)
        [(may_log_in, settings)] = connection.execute(
            "SELECT rolcanlogin, rolconfig FROM pg_roles WHERE rolname = %s", [APP_ROLE]
        ).fetchall()
    assert may_log_in
    assert "statement_timeout=30s" in settings
    assert not any(setting.startswith("plan_cache_mode") for setting in settings)


def test_a_distribution_that_is_repeated_changes_nothing(cluster_database: str) -> None:
    migrate_and_distribute(cluster_database, print)
    before, progress = list_distributed(cluster_database), list[str]()
    migrate_and_distribute(cluster_database, progress.append)
    assert list_distributed(cluster_database) == before
    assert progress == ["removing the copied rows from the coordinator"]


def test_an_interrupted_distribution_is_continued(cluster_database: str) -> None:
    change_fake_citus(cluster_database, "INSERT INTO citus_refuses VALUES ('mcp_tools', 'a disk is full')")
    with pytest.raises(ConfigurationError, match="Citus does not distribute the table mcp_tools: a disk is full"):
        migrate_and_distribute(cluster_database, print)
    done = list_distributed(cluster_database)
    assert 0 < len(done) < len(ALL_TABLES)
    change_fake_citus(cluster_database, "DELETE FROM citus_refuses")
    progress: list[str] = []
    migrate_and_distribute(cluster_database, progress.append)
    assert list_distributed(cluster_database)[: len(done)] == done
    assert {table for table, _ in list_distributed(cluster_database)} == ALL_TABLES
    assert progress[0].startswith("distributing mcp_tools (1 of ")


def test_a_service_does_not_start_on_a_half_distributed_database(cluster_database: str) -> None:
    migrate(cluster_database)
    change_fake_citus(cluster_database, "SELECT create_distributed_table('users', 'id', 'none')")
    with pytest.raises(ConfigurationError, match=r"interrupted; \d+ tables remain \(policy with rows\): run"):
        migrate(cluster_database)


def test_a_start_on_a_distributed_database_reads_no_rows_of_users(cluster_database: str) -> None:
    """A process that starts while a node is away could not."""
    migrate_and_distribute(cluster_database, print)
    sent: list[str] = []

    def record(*details: Any) -> None:
        sent.append(details[2])

    event.listen(Engine, "before_cursor_execute", record)
    try:
        migrate(cluster_database)
    finally:
        event.remove(Engine, "before_cursor_execute", record)
    assert sent
    reads_users = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:{'|'.join(TENANT_COLUMNS)})\b")
    assert [statement for statement in sent if reads_users.search(statement)] == []


def test_a_new_table_of_a_migration_is_distributed(cluster_database: str) -> None:
    migrate_and_distribute(cluster_database, print)
    change_fake_citus(
        cluster_database, "DELETE FROM pg_catalog.pg_dist_partition WHERE logicalrelid::text = 'decisions'"
    )
    migrate(cluster_database)
    assert {table for table, _ in list_distributed(cluster_database)} == ALL_TABLES


def test_a_new_table_is_distributed_while_the_old_version_runs(cluster_database: str) -> None:
    """A rolling update repeats the command, as a start of docker compose does."""
    migrate_and_distribute(cluster_database, print)
    change_fake_citus(
        cluster_database, "DELETE FROM pg_catalog.pg_dist_partition WHERE logicalrelid::text = 'decisions'"
    )
    with psycopg.connect(cluster_database):
        migrate_and_distribute(cluster_database, print)
    assert {table for table, _ in list_distributed(cluster_database)} == ALL_TABLES


def test_a_database_in_use_is_not_distributed(cluster_database: str) -> None:
    with psycopg.connect(cluster_database), pytest.raises(ConfigurationError, match=r"1 other session\(s\) use this"):
        migrate_and_distribute(cluster_database, print)
    assert list_distributed(cluster_database) == []
    migrate_and_distribute(cluster_database, print)


def test_the_sessions_of_all_roles_are_counted(own_postgres: EmbeddedPostgres) -> None:
    """An ordinary owner does not see what kind of session another role has."""
    url = create_owned_database(own_postgres)
    engine = create_engine(driver_url(url))
    with engine.connect() as connection:
        assert count_other_sessions(connection) == 0
        connection.rollback()  # a transaction sees one state of the sessions
        with psycopg.connect(url), psycopg.connect(url.replace(f"{owner_name(url)}@", "postgres@")):
            assert count_other_sessions(connection) == 2
    engine.dispose()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE pg_extension SET extversion = '12.1-1' WHERE extname = 'citus'", "Citus 12.1-1 is too old"),
        ("UPDATE pg_catalog.pg_dist_node SET shouldhaveshards = false", "the cluster has no worker that takes rows"),
        ("UPDATE pg_catalog.pg_dist_node SET pgvector = '0.7.0'", "the node node-one:5432 has pgvector 0.7.0"),
        ("UPDATE pg_catalog.pg_dist_node SET pgvector = NULL", "the node node-one:5432 has no pgvector"),
        ("UPDATE pg_catalog.pg_dist_node SET answers = false", "the node node-two:5432 does not answer"),
    ],
)
def test_an_unsuitable_cluster_is_refused_with_the_reason(cluster_database: str, change: str, reason: str) -> None:
    change_fake_citus(cluster_database, change)
    with pytest.raises(ConfigurationError, match=reason):
        migrate_and_distribute(cluster_database, print)
    assert list_distributed(cluster_database) == []
    made = change_fake_citus(cluster_database, "SELECT to_regclass('users'), to_regclass('alembic_version')")
    assert made == [(None, None)], "nothing was changed before it was refused"


def test_unfinished_runs_are_known_from_the_beginning(cluster_database: str) -> None:
    migrate(cluster_database)
    with psycopg.connect(cluster_database, autocommit=True) as connection:
        connection.execute("INSERT INTO users (id) VALUES ('ada'), ('bob')")
        connection.execute(
            "INSERT INTO mcp_servers (user_id, id, name, transport) "
            "VALUES ('ada', '1', 's', 'push'), ('bob', '2', 's', 'push')"
        )
        connection.execute(
            "INSERT INTO index_runs (user_id, id, server_id, state) VALUES ('ada', '1', '1', 'queued'), "
            "('bob', '2', '2', 'succeeded')"
        )
    migrate_and_distribute(cluster_database, print)
    assert change_fake_citus(cluster_database, "SELECT user_id FROM waiting_users") == [("ada",)]


@pytest.fixture
async def distributed(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[tuple[Container, str]]:
    """A service on a database that says that it is distributed, and the URL of its owner."""
    url = make_database(postgres)
    install_fake_citus(url)
    for table in ALL_TABLES:
        change_fake_citus(url, f"INSERT INTO pg_catalog.pg_dist_partition VALUES ('{table}'::regclass, '')")
    settings = make_settings(tmp_path, index_concurrency=0, search_ann_above=2)
    async with open_container(settings, url, resolve_nothing) as service:
        yield service, url


async def test_a_service_finds_out_that_its_database_is_distributed(distributed: tuple[Container, str]) -> None:
    service, _ = distributed
    assert service.database.is_distributed
    async with service.database.transaction("ada") as session:
        assert session.is_distributed
        assert await session.rows("SELECT current_user, current_setting('app.user_id')") == [(APP_ROLE, "ada")]
        assert await session.rows("SHOW citus.propagate_set_commands") == [("local",)]
        assert await session.rows("SHOW plan_cache_mode") == [("auto",)]
        # of the session: the service logs in as the owner, whose role has no settings
        assert await session.rows("SHOW statement_timeout") == [("30s",)]
        assert await session.rows("SHOW jit") == [("off",)]
    [scope] = await service.database.fetch("ada", [("SELECT current_user, current_setting('app.user_id')", None)])
    assert scope == [(APP_ROLE, "ada")]


async def test_settings_of_a_distributed_transaction_end_with_it(distributed: tuple[Container, str]) -> None:
    service, url = distributed
    database = Database(url, pool_size=1)
    async with database.transaction("ada"):
        pass
    await database.fetch("bob", [("SELECT 1", None)])
    async with database.engine.connect() as connection:
        assert not await connection.scalar(text("SELECT current_setting('app.user_id', true)"))
    async with database.transaction("bob") as session:
        assert await session.rows("SELECT current_setting('app.user_id')") == [("bob",)]
    await database.close()
    assert service.database.is_distributed


async def test_two_users_of_a_distributed_database_are_apart(distributed: tuple[Container, str]) -> None:
    service, _ = distributed
    async with new_user(service) as ada, new_user(service) as bob:
        for user, name in ((ada, "read_file"), (bob, "send_mail")):
            server = await user.add_server("s")
            await service.worker.run_now(await push(user, server, name))
        assert set(await ada.tools()) == {"read_file"}
        found = await bob.discover("send a mail")
        assert [each["tool"]["name"] for each in found["tools"]] == ["send_mail"]


async def push(user: TestUser, server: str, *names: str) -> str:
    """Return the id of the run, which nobody processes yet."""
    tools = [tool(name, f"To {name.replace('_', ' ')}.") for name in names]
    answer = await user.http.put(f"/servers/{server}/tools", json={"tools": tools})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def test_no_user_gets_indexes_of_their_own(distributed: tuple[Container, str]) -> None:
    service, url = distributed
    async with new_user(service) as user:
        server = await user.add_server("s")
        await service.worker.run_now(await push(user, server, "read_file", "send_mail", "find_word"))
        assert change_fake_citus(url, "SELECT tool_count, ann FROM users WHERE id LIKE 'user%'") == [(3, False)]


async def test_readiness_names_the_node_that_is_away(distributed: tuple[Container, str]) -> None:
    service, url = distributed
    async with open_client(service) as http:
        assert (await http.get("/readyz")).json()["warnings"] == []
        lose_node(url)
        service.nodes.forget()
        ready = await http.get("/readyz")
        assert ready.status_code == 200, "users whose rows are on other nodes are served"
        assert ready.json()["warnings"] == [f"the node {OTHER} of the database does not answer"]
        lose_node(url, answers=True)
        service.nodes.forget()
        assert (await http.get("/readyz")).json()["warnings"] == []


async def test_doctor_names_the_node_that_is_away(distributed: tuple[Container, str]) -> None:
    service, url = distributed
    settings = service.settings.model_copy(
        update={"database_url": make_settings(Path(), database_url=url).database_url}
    )
    results = {result.subject: result for result in await check_installation(settings)}
    assert results["nodes"].message == "all 2 nodes answer"
    lose_node(url)
    results = {result.subject: result for result in await check_installation(settings)}
    assert not results["nodes"].ok
    assert results["nodes"].message == f"the node {OTHER} does not answer: connection refused"


async def test_an_error_of_another_node_keeps_the_connection(distributed: tuple[Container, str]) -> None:
    service, _ = distributed
    async with service.database.transaction("ada") as session:
        [(before,)] = await session.rows("SELECT pg_backend_pid()")
    with pytest.raises(NodeDown):
        await service.database.fetch("ada", [("SELECT fail_to_reach_node()", None)])
    async with service.database.transaction("ada") as session:
        assert await session.rows("SELECT pg_backend_pid()") == [(before,)]


async def test_a_node_that_is_lost_at_the_commit_is_said_to_be_away(
    distributed: tuple[Container, str], open_service: OpenService
) -> None:
    service, url = distributed
    async with new_user(service) as user:
        assert (await user.http.post("/projects", json={"name": "before"})).status_code == 201
        lose_node_at_commit(url)
        answer = await user.http.post("/projects", json={"name": "after"})
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
    async with open_service() as plain, new_user(plain) as user:
        lose_node_at_commit(plain.database.engine.url.set(drivername="postgresql").render_as_string(False))
        answer = await user.http.post("/projects", json={"name": "after"})
        assert answer.json()["code"] == "query_failed", "one Postgres means what it says"


async def test_runs_of_reachable_users_are_claimed_while_a_node_is_away(
    distributed: tuple[Container, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, url = distributed
    async with new_user(service) as user, new_user(service, "other") as other:
        for each in (other, user):
            await push(each, await each.add_server("s"), "read_file")
        monkeypatch.setattr(queue, "_CANDIDATES_OF_ALL", text(f"SELECT fail_to_reach_node(), {BOUND}"))
        lose_node(url)
        service.nodes.forget()
        claimed = await service.worker._claim()
        assert claimed is not None
        assert claimed.user_id == user.id
        assert await service.worker._claim() is None, "the other run is on the node that is away"
        lose_node(url, answers=True)
        service.nodes.forget()
        claimed = await service.worker._claim()
        assert claimed is not None
        assert claimed.user_id == other.id


async def test_users_without_runs_are_forgotten_while_a_node_is_away(
    distributed: tuple[Container, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are looked at together do not hide the one who waits."""
    service, url = distributed
    monkeypatch.setattr(queue, "_MAX_WAITING", 2)
    add = "INSERT INTO waiting_users (user_id, since) SELECT 'user-' || n, now() - interval '{age}' FROM {users} n"
    change_fake_citus(url, add.format(age="1 hour", users="generate_series(1, 5)"))
    change_fake_citus(url, add.format(age="1 minute", users="generate_series(6, 7)"))
    async with new_user(service) as user:
        run = await push(user, await user.add_server("s"), "read_file")
        async with service.database.system_transaction() as session:
            claimed = await queue.claim_reachable_run(session, [OTHER], lease_s=60)
            assert claimed is not None
            assert claimed.id == run
    left = "SELECT user_id FROM waiting_users WHERE user_id LIKE 'user-_' ORDER BY id"
    assert change_fake_citus(url, left) == [("user-6",), ("user-7",)], "a run may become visible after its row"


async def test_two_transactions_that_queue_runs_of_a_user_do_not_wait_for_each_other(
    distributed: tuple[Container, str],
) -> None:
    service, _ = distributed
    async with new_user(service) as user:
        first, second = await user.add_server("first"), await user.add_server("second")
        async with asyncio.timeout(20):
            async with service.database.transaction(user.id) as session:
                await queue.enqueue(session, user.id, first)
                async with service.database.transaction(user.id) as other:
                    await queue.enqueue(other, user.id, second)
                await queue.enqueue(session, user.id, second)


async def test_a_service_starts_while_a_node_is_away(
    distributed: tuple[Container, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, url = distributed
    monkeypatch.setattr(visibility, "_STALE_SERVERS", "SELECT 'ada', '1', fail_to_reach_node()")
    monkeypatch.setattr(visibility, "_STORE_POLICY", "SELECT fail_to_reach_node()")
    settings = make_settings(tmp_path / "other")
    async with open_container(settings, url, resolve_nothing) as starting, open_client(starting) as http:
        assert (await http.get("/readyz")).status_code == 200
    assert "the visibility of tools is recomputed later" in caplog.messages


async def test_a_policy_that_cannot_be_stored_stops_the_start(
    distributed: tuple[Container, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise tools that the operator wants to hold would be found."""
    _, url = distributed
    monkeypatch.setattr(visibility, "_STORE_POLICY", "SELECT fail_to_reach_node()")
    settings = make_settings(tmp_path / "other", hold_changed_tools=True)
    with pytest.raises(NodeDown):
        async with open_container(settings, url, resolve_nothing):
            pass


async def test_a_node_that_hangs_delays_one_request_for_readiness_only(
    distributed: tuple[Container, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = distributed
    monkeypatch.setattr("app.db.nodes._TIMEOUT_S", 0.2)
    monkeypatch.setattr("app.db.nodes._ASK_NODES", "SELECT 'one', true, '' FROM pg_sleep(20)")
    nodes = Nodes(service.database)
    assert await nodes.find_lost() == ()
    monkeypatch.setattr("app.db.nodes._ASK_NODES", "SELECT 'not asked', false, ''")
    assert await nodes.find_lost() == ()
    nodes.forget()
    assert await nodes.find_lost() == ["not asked"]

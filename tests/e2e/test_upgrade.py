"""Upgrading from version 0.1.0: its database while it still serves, its data folder, its locks and entry points."""

import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from app.db.migrate import head_revision, migrate
from app.embeddings.repository import lock_models_exclusive
from app.errors import ConfigurationError
from app.local_postgres.database import owner_connection
from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, running_service
from tests.support.factories import SLOW_MACHINE_ENV, make_empty_database, outbound_allow
from tests.support.mcp_server import FakeMcpServer, running_mcp_server
from tests.support.paths import ROOT
from tests.support.version_0_1_0 import FACTS, OldReplica, find_transaction, make_ids, restore_dump

SETTINGS = {"TOOLSCOUT_REINDEX_EVERY": "0", **SLOW_MACHINE_ENV}
SERVERS: dict[str, str] = FACTS["servers"]
TOOLS: dict[str, str] = FACTS["tools"]
TICKET_TOOLS = ("create_ticket", "close_ticket")

Json = dict[str, Any]


def client_with_key(service: Service, name: str, **headers: str) -> httpx.Client:
    """Return a client with one of the keys that 0.1.0 has issued."""
    bearer = {"Authorization": f"Bearer {FACTS['keys'][name]}", **headers}
    return httpx.Client(base_url=service.url, headers=bearer, timeout=120)


def get_items(client: httpx.Client, path: str) -> list[Json]:
    items: list[Json] = client.get(path, params={"limit": 200}).raise_for_status().json()["items"]
    return items


def wait_until(is_true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def test_a_database_of_0_1_0_is_upgraded_while_a_replica_of_0_1_0_serves(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    url = make_empty_database(postgres)
    restore_dump(url)
    replica = OldReplica(url)
    with running_mcp_server() as mcp, replica.running():
        move_tracker_to(url, mcp)
        replica.wait_for_rounds(2)
        settings = {
            "DATABASE_URL": url,
            "TOOLSCOUT_SECRET_KEY": FACTS["secret_key"],
            "TOOLSCOUT_OUTBOUND_ALLOW": outbound_allow(mcp),
            **SETTINGS,
        }
        with running_service(tmp_path, settings) as service:
            replica.wait_for_rounds(2)
            check_keys(service)
            check_discoveries(service)
            check_audit_history(service)
            check_rules_and_projects(service)
            check_unchanged_texts_are_not_embedded_again(service, mcp)
            replica.wait_for_rounds(2)
    check_runs_of_both_versions(url, replica, tmp_path)
    replica.close()
    with psycopg.connect(url) as owner:
        assert owner.execute("SELECT version_num FROM alembic_version").fetchall() == [(head_revision(),)]


def move_tracker_to(url: str, mcp: FakeMcpServer) -> None:
    """Let the server with the sealed header be the fake one, which shows what it receives."""
    with psycopg.connect(url) as owner:
        owner.execute("UPDATE mcp_servers SET url = %s WHERE id = %s", [mcp.url, SERVERS["tracker"]])
        columns = "name, title, description, input_schema, annotations"
        statement = f"SELECT {columns} FROM mcp_tools WHERE server_id = %s"
        rows = owner.execute(statement.encode(), [SERVERS["tracker"]]).fetchall()
    names = "name", "title", "description", "inputSchema", "annotations"
    mcp.tools = [{key: value for key, value in zip(names, row, strict=True) if value is not None} for row in rows]
    assert len(mcp.tools) == len(TICKET_TOOLS)


def check_keys(service: Service) -> None:
    with client_with_key(service, "alice") as alice:
        assert {tool["name"]: tool["id"] for tool in get_items(alice, "/tools")} == TOOLS
        assert {server["id"] for server in get_items(alice, "/servers")} == {SERVERS["mail"], SERVERS["tracker"]}
    with client_with_key(service, "bob") as bob:
        assert [server["id"] for server in get_items(bob, "/servers")] == [SERVERS["notes"]]
    with client_with_key(service, "service", **{"X-User-Id": "alice"}) as backend:
        assert backend.post("/discover", json={"query": "send an e-mail"}).status_code == 200
    with client_with_key(service, "project") as support:
        found = support.post("/discover", json={"query": "a ticket", "include_core_tools": False}).json()["tools"]
        assert [each["tool"]["name"] for each in found] == ["create_ticket"]
    with client_with_key(service, "admin") as admin:
        assert {user["id"] for user in get_items(admin, "/users")} == {"alice", "bob"}
    with client_with_key(service, "revoked") as revoked:
        assert revoked.get("/tools").status_code == 401


def check_discoveries(service: Service) -> None:
    """The vectors of 0.1.0 give the similarities of 0.1.0, and the best tool stays the best."""
    with client_with_key(service, "alice") as alice:
        for query, expected in FACTS["discoveries"].items():
            answer = alice.post("/discover", json={"query": query, "similarity_threshold": 0}).json()
            assert answer["degraded"] is False, answer
            assert answer["tools"][0]["tool_key"] == expected[0]["tool_key"]
            found = {each["tool_key"]: each["similarity"] for each in answer["tools"]}
            known = {each["tool_key"]: each["similarity"] for each in expected if each["tool_key"] in found}
            assert len(known) >= len(expected) - 1
            assert {key: found[key] for key in known} == pytest.approx(known, abs=0.002)


def check_audit_history(service: Service) -> None:
    with client_with_key(service, "alice") as alice:
        assert {event["id"] for event in get_items(alice, "/audit")} >= set(FACTS["audit_events"])


def check_rules_and_projects(service: Service) -> None:
    with client_with_key(service, "alice") as alice:
        assert [rule["pattern"] for rule in alice.get("/rules").json()["rules"]] == [["*delete*"], ["*_ticket"]]
        assert [(project["id"], project["name"]) for project in get_items(alice, "/projects")] == [
            (FACTS["project"], "support")
        ]
        tools = {tool["name"]: tool for tool in get_items(alice, "/tools")}
    assert tools["delete_mail"]["enabled"] is False
    assert (tools["list_folders"]["pinned"], tools["list_folders"]["own_tags"]) == (True, ["overview"])


def check_unchanged_texts_are_not_embedded_again(service: Service, mcp: FakeMcpServer) -> None:
    """Tools without tags have the content hashes of 0.1.0. Tags were not searched then: tools that have some are
    embedded once. The sealed header of 0.1.0 is sent to the server."""
    with client_with_key(service, "alice") as alice:
        for name, tools in (("mail", len(TOOLS) - len(TICKET_TOOLS)), ("tracker", len(TICKET_TOOLS))):
            tagged = [
                tool
                for tool in alice.get("/tools", params={"server_id": SERVERS[name]}).json()["items"]
                if tool["tags"]
            ]
            for embedded in (len(tagged), 0):
                run = alice.post(f"/servers/{SERVERS[name]}/reindex", params={"wait": True}).json()
                assert run["state"] == "succeeded", run
                assert (run["counts"]["unchanged"], run["counts"]["embedded"]) == (tools, embedded), run
    listings = [request for request in mcp.requests if request.rpc_method == "tools/list"]
    assert {request.headers["authorization"] for request in listings} == {"Bearer sealed-by-0.1.0"}


def check_runs_of_both_versions(url: str, replica: OldReplica, folder: Path) -> None:
    """A run that a replica of 0.1.0 queues is processed by the new version."""
    assert replica.error is None
    ids = make_ids()
    replica.replay(find_transaction("INSERT INTO index_runs"), ids)
    settings = {"DATABASE_URL": url, "TOOLSCOUT_SECRET_KEY": FACTS["secret_key"], **SETTINGS}

    def has_succeeded() -> bool:
        with psycopg.connect(url) as owner:
            statement = "SELECT id FROM index_runs WHERE state = 'succeeded'"
            return (ids["{uuid-1}"],) in owner.execute(statement).fetchall()

    assert not has_succeeded()
    with running_service(folder, settings):
        wait_until(has_succeeded)


def test_a_data_folder_of_0_1_0_starts_with_the_new_version(tmp_path: Path) -> None:
    data = make_data_folder(tmp_path)
    with running_service(tmp_path, SETTINGS) as service:
        check_keys(service)
        check_discoveries(service)
        check_audit_history(service)
        environment = {"TOOLSCOUT_DATA_DIR": str(data), "PATH": ""}
        command = [sys.executable, "-m", "app", "doctor"]
        doctor = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        assert "FAIL" not in doctor.stdout
    assert (data / "secret_key").read_text() == FACTS["secret_key"]


def make_data_folder(folder: Path) -> Path:
    """Make a data folder as 0.1.0 left it: these file names, permissions and the pid of an ended process."""
    data = folder / "data"
    postgres = EmbeddedPostgres(data)
    postgres.start()
    restore_dump(postgres.url)
    postgres.stop()
    (data / "secret_key").write_text(FACTS["secret_key"])
    (data / "secret_key").chmod(0o600)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    (data / "postgres.lock").write_text(str(ended.pid))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()}
    assert modes == {"postgres": 0o700, "postgres.lock": 0o644, "postgres.log": 0o600, "secret_key": 0o600}
    assert stat.S_IMODE(data.stat().st_mode) in (0o700, 0o701)
    return data


def test_the_migration_of_0_1_0_and_of_the_new_version_exclude_each_other(empty_database: str) -> None:
    restore_dump(empty_database)
    with psycopg.connect(empty_database, autocommit=True) as old:
        old.execute("SELECT pg_advisory_lock(7300418256)")
        with psycopg.connect(empty_database, autocommit=True) as owner:
            name = owner.info.dbname
            owner.execute(f"ALTER DATABASE {name} SET lock_timeout = '100ms'".encode())
        with pytest.raises(ConfigurationError, match="lock timeout"):
            migrate(empty_database)
        old.execute("SELECT pg_advisory_unlock(7300418256)")
    assert migrate(empty_database) == head_revision()


def test_an_index_run_of_0_1_0_and_a_model_switch_of_the_new_version_exclude_each_other(empty_database: str) -> None:
    restore_dump(empty_database)
    [lock] = [entry for entry in find_transaction("advisory") if "advisory" in entry["sql"]]
    with psycopg.connect(empty_database, cursor_factory=psycopg.RawCursor) as old:
        old.execute(lock["sql"].encode(), lock["parameters"])
        with owner_connection(empty_database) as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
            with pytest.raises(OperationalError, match="lock timeout"):
                lock_models_exclusive(connection)
            connection.rollback()
        old.rollback()
        with owner_connection(empty_database) as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
            lock_models_exclusive(connection)


def test_the_entry_points_of_0_1_0_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["toolscout"].partition(":")
    assert callable(getattr(import_module(module), function))
    command = [sys.executable, "-m", "app", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("toolscout ")

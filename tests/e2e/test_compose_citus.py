"""deploy/citus, as far as it can be checked without Docker: what compose makes of the two files, images, secrets."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.main import build_cli
from tests.support.documents import list_code_blocks
from tests.support.paths import ROOT

FOLDER = ROOT / "deploy/citus"
README = (FOLDER / "README.md").read_text()
MAIN: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
CITUS: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())
WORKERS = ["worker-1", "worker-2"]
NODES = ["postgres", *WORKERS]


def merge_service(base: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Merge as compose does: mappings by key, volumes by target, a list of networks as a set; anything else is new."""
    merged = base | added
    for name in ("environment", "depends_on"):
        merged[name] = base.get(name, {}) | added.get(name, {})
    targets = {volume.split(":")[1]: volume for volume in [*base.get("volumes", []), *added.get("volumes", [])]}
    merged["volumes"] = list(targets.values())
    if "networks" in merged:
        merged["networks"] = sorted({*base.get("networks", []), *added.get("networks", [])})
    return merged


SERVICES: dict[str, dict[str, Any]] = {
    name: merge_service(MAIN["services"].get(name, {}), CITUS["services"].get(name, {}))
    for name in MAIN["services"] | CITUS["services"]
}
VOLUMES, NETWORKS = MAIN["volumes"] | CITUS["volumes"], MAIN["networks"] | CITUS["networks"]


def test_the_schema_is_distributed_when_the_nodes_are_joined() -> None:
    depends_on = SERVICES["migrate"]["depends_on"]
    assert depends_on["join-nodes"] == {"condition": "service_completed_successfully"}
    assert depends_on["postgres"] == {"condition": "service_healthy"}, "of the main file"
    program, *arguments = SERVICES["migrate"]["command"]
    assert program == "toolscout"
    cli = build_cli()
    name, command, options = cli.resolve_command(cli.make_context(program, list(arguments)), arguments)
    assert (name, options) == ("migrate", ["--distributed"])
    assert command is not None
    command.make_context(name, options)


def test_all_nodes_are_joined_when_they_are_healthy() -> None:
    join = SERVICES["join-nodes"]
    shell, script, *names = join["command"]
    assert (shell, names) == ("sh", NODES)
    assert f"./deploy/citus{script}:{script}:ro" in join["volumes"]
    for name in NODES:
        assert join["depends_on"][name] == {"condition": "service_healthy"}
        assert SERVICES[name]["healthcheck"]["start_period"]
    assert join["restart"] == "no"
    assert join["healthcheck"] == {"disable": True}


@pytest.mark.parametrize("name", NODES)
def test_every_node_is_alike(name: str) -> None:
    node, first = SERVICES[name], SERVICES["worker-1"]
    assert (node["image"], node["pull_policy"]) == ("toolscout-citus", "never")
    assert node["command"] == first["command"]
    assert "--max_prepared_transactions=200" in node["command"]
    assert node["environment"] == first["environment"]
    assert "./deploy/citus/init.sh:/docker-entrypoint-initdb.d/init.sh:ro" in node["volumes"]
    assert node["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert node["security_opt"] == ["no-new-privileges:true"]
    assert node["stop_grace_period"] == "1m"


def test_nodes_keep_their_data_apart_from_one_another_and_from_a_single_postgres() -> None:
    data = {name: volume for name in NODES for volume in SERVICES[name]["volumes"] if ":/var/lib/postgresql" in volume}
    assert len(data) == len(set(data.values())) == len(NODES)
    assert "postgres:/var/lib/postgresql" not in data.values()
    assert Path(SERVICES["postgres"]["environment"]["PGPASSFILE"]).parent == Path("/var/lib/postgresql")


def test_workers_talk_to_nodes_alone() -> None:
    for name in (*WORKERS, "join-nodes"):
        assert SERVICES[name]["networks"] == ["cluster"]
        assert "ports" not in SERVICES[name]
    assert NETWORKS["cluster"]["internal"] is True
    assert SERVICES["postgres"]["networks"] == ["cluster", "inside"]
    assert [name for name, service in SERVICES.items() if "cluster" in service.get("networks", [])] == [
        *("postgres", *WORKERS, "join-nodes")
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_every_file_volume_and_network_exists(name: str) -> None:
    for source, *_ in (volume.split(":") for volume in SERVICES[name]["volumes"]):
        assert (ROOT / source).exists() if source.startswith("./") else source in VOLUMES
    assert set(SERVICES[name].get("networks", [])) <= NETWORKS.keys()


def test_one_service_builds_the_image_of_the_nodes_with_pinned_versions() -> None:
    assert [name for name in NODES if "build" in SERVICES[name]] == ["postgres"]
    assert (ROOT / SERVICES["postgres"]["build"] / "Dockerfile").is_file()
    images = re.findall(r"^FROM (\S+)", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 2
    assert images[0] == MAIN["services"]["postgres"]["image"], "the pgvector of a single Postgres"
    assert re.fullmatch(r"citusdata/citus:\d+\.\d+\.\d+", images[1])


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    folder = tmp_path / "volumes"
    for volume in SERVICES["secrets"]["volumes"]:
        target = volume.split(":")[1]
        if target.startswith("/volumes/"):
            (folder / Path(target).name).mkdir(parents=True)
    (tmp_path / "given").mkdir()
    subprocess.run(["sh", ROOT / "deploy/make-secrets", tmp_path / "given", folder], check=True, capture_output=True)
    return folder


def test_the_nodes_get_the_secrets_that_their_scripts_name(volumes: Path) -> None:
    scripts = (FOLDER / "init.sh").read_text() + (FOLDER / "join-nodes").read_text()
    named = set(re.findall(r"\b(?:secret|entry \w+) (\w+)", scripts))
    named |= set(re.findall(r"/run/secrets/(\w+)", str(SERVICES["postgres"]["environment"])))
    assert {path.name for path in (volumes / "citus").iterdir()} == named
    for name in (*NODES, "join-nodes"):
        assert "secrets-citus:/run/secrets:ro" in SERVICES[name]["volumes"]
    password = (volumes / "citus/database_password").read_text().strip()
    assert (volumes / "app/database_url").read_text().strip() == (
        f"postgresql://toolscout:{password}@postgres:5432/toolscout"
    )


def test_the_password_of_the_app_role_is_known_to_the_nodes_alone(volumes: Path) -> None:
    """Who can log in with it can read the rows of every user."""
    having = [path.parent.name for path in volumes.rglob("app_role_password")]
    assert sorted(having) == ["all", "citus"]


FAKE_PSQL = """#!/bin/sh
echo "$PGHOST:$PGPORT $*" >>"$CALLS"
cat >>"$CALLS"
"""


def run_script(name: str, folder: Path, *arguments: str) -> str:
    """Run a script of the nodes with these secrets and a psql that only records, and return what it was told."""
    script = folder / name
    script.write_text((FOLDER / name).read_text().replace("/run/secrets", str(folder / "secrets")))
    psql = folder / "psql"
    psql.write_text(FAKE_PSQL)
    psql.chmod(0o755)
    calls = folder / "calls"
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(calls), "PGPASSFILE": str(folder / "pgpass")}
    subprocess.run(
        ["sh", script, *arguments], env=environment, check=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    return calls.read_text()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    for name in ("postgres_password", "database_password", "app_role_password"):
        (tmp_path / "secrets" / name).write_text(f"{name}: a\\b\n")
    return tmp_path


def test_a_node_knows_the_passwords_of_all_roles_that_nodes_log_in_with(node: Path) -> None:
    assert "CREATE EXTENSION IF NOT EXISTS citus" in run_script("init.sh", node)
    assert (node / "pgpass").read_text().splitlines() == [
        r"*:*:*:postgres:postgres_password\: a\\b",
        r"*:*:*:toolscout:database_password\: a\\b",
        r"*:*:*:toolscout_app:app_role_password\: a\\b",
    ]
    assert (node / "pgpass").stat().st_mode & 0o777 == 0o600, "libpq ignores a file that others can read"


PASSWORDS = {
    "postgres": ("init.sh", "password", "postgres_password"),
    "toolscout": ("join-nodes", "owner", "database_password"),
    "toolscout_app": ("join-nodes", "app", "app_role_password"),
}
"""For each role, the script that sets its password, the variable in it, and the secret."""


@pytest.mark.parametrize("role", PASSWORDS)
def test_a_changed_password_reaches_the_role_as_well_as_the_nodes_that_log_in_with_it(node: Path, role: str) -> None:
    script, variable, secret = PASSWORDS[role]
    (node / "secrets" / secret).write_text("changed\n")
    run_script("init.sh", node)
    assert f"*:*:*:{role}:changed" in (node / "pgpass").read_text().splitlines()
    told = run_script(script, node, *(["main", "worker-1"] if script == "join-nodes" else []))
    assert f"ALTER ROLE {role} PASSWORD :'{variable}';" in told
    assert f"--set {variable}=changed" in told


def test_each_node_sets_the_password_of_the_superuser_for_itself_alone(node: Path) -> None:
    """Citus would repeat it on the other nodes, to which this one cannot log in before they have set theirs."""
    told = run_script("init.sh", node)
    assert "PGHOST" not in (FOLDER / "init.sh").read_text(), "over the socket, which asks for no password"
    assert told.index("SET citus.enable_ddl_propagation TO off;") < told.index("ALTER ROLE postgres")
    assert told.count("ALTER ROLE") == 1


def test_the_passwords_are_changed_in_an_order_in_which_each_step_can_log_in() -> None:
    """The files first, then the superuser, as whom the roles are set; the services read their URL when they start."""
    [block] = [each for each in list_code_blocks(README, "sh") if "init.sh" in each]
    commands = ["run --rm secrets", "init.sh", "run --rm join-nodes", "restart app worker"]
    places = [block.index(command) for command in commands]
    assert places == sorted(places)
    assert f"for node in {' '.join(NODES)}; do" in block


def test_a_node_without_a_secret_does_not_start_half_configured(node: Path) -> None:
    (node / "secrets/app_role_password").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        run_script("init.sh", node)
    assert not (node / "pgpass").exists()


def test_workers_are_joined_with_the_coordinator_and_their_ports(node: Path) -> None:
    told = run_script("join-nodes", node, "main", "worker-1", "worker-2:5433")
    first, second = (
        f"main:5432 .* --set host={host} --set port={port}\nSELECT citus_add_node"
        for host, port in (("worker-1", 5432), ("worker-2", 5433))
    )
    assert re.search(first, told)
    assert re.search(second, told)
    assert told.index("citus_set_coordinator_host") < told.index("citus_add_node") < told.index("CREATE ROLE")

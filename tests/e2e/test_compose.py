"""What `docker compose up` would start, as far as it can be known without Docker: order, secrets, limits, files."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.main import build_cli
from app.cli.serve import _GRACE_S
from app.settings import Settings, decode_secret_key, secret_fields, variable_name
from tests.support.paths import ROOT

TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ["migrate", "app", "worker"]


def test_everything_starts_in_the_order_of_health() -> None:
    assert SERVICES["postgres"]["image"] == "pgvector/pgvector:pg18"
    assert SERVICES["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in ("app", "worker"):
        assert SERVICES[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert SERVICES["proxy"]["depends_on"]["app"]["condition"] == "service_healthy"


def test_migrations_run_once_and_by_a_command_that_exists() -> None:
    assert SERVICES["migrate"]["restart"] == "no"
    program, *arguments = SERVICES["migrate"]["command"]
    assert program == "toolscout"
    cli = build_cli()
    name, command, options = cli.resolve_command(cli.make_context(program, list(arguments)), arguments)
    assert name == "migrate"
    assert command is not None
    command.make_context(name, options)


def test_two_replicas_answer_behind_one_port_and_a_worker_works_apart() -> None:
    assert SERVICES["app"]["deploy"]["replicas"] == 2
    assert SERVICES["app"]["environment"]["TOOLSCOUT_ROLE"] == "web"
    assert SERVICES["worker"]["environment"]["TOOLSCOUT_ROLE"] == "worker"
    open_to_all = [name for name, service in SERVICES.items() for port in service.get("ports", []) if port[0] == "$"]
    assert open_to_all == ["proxy"]


@pytest.mark.parametrize("name", OURS)
def test_only_settings_that_exist_are_set_and_secrets_only_as_files(name: str) -> None:
    files = {f"{variable_name(field)}_FILE": variable_name(field) for field in secret_fields()}
    known = {variable_name(field) for field in Settings.model_fields}
    environment = SERVICES[name]["environment"]
    assert set(environment) <= known | files.keys()
    for variable in environment.keys() & files.keys():
        assert environment[variable].removeprefix("/run/secrets/") in SERVICES[name]["secrets"]
    plain = {value for variable, value in environment.items() if variable in files.values()}
    assert all(re.fullmatch(r"\$\{\w+:-\}", value) for value in plain), "nothing unless the operator says so"


@pytest.mark.parametrize("name", SERVICES)
def test_every_secret_of_a_service_is_declared_and_every_mounted_file_exists(name: str) -> None:
    assert set(SERVICES[name].get("secrets", [])) <= COMPOSE["secrets"].keys()
    for source, *_ in (volume.split(":") for volume in SERVICES[name].get("volumes", [])):
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
    assert set(SERVICES[name]["networks"]) <= COMPOSE["networks"].keys()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_and_gains_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert service["security_opt"] == ["no-new-privileges:true"]
    if name != "postgres":  # whose image begins as root and hands over
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_every_service_that_stays_is_asked_for_its_health(name: str) -> None:
    assert "healthcheck" in SERVICES[name] or "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
    assert ("healthcheck" in SERVICES[name]) == (name not in OURS)


def test_nobody_is_killed_while_requests_are_still_being_answered() -> None:
    for name in ("app", "worker"):
        drain_s = float(SERVICES[name]["environment"]["TOOLSCOUT_DRAIN_S"])
        assert drain_s + _GRACE_S < 10
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain_s + _GRACE_S + 5


def test_the_database_has_no_way_out_and_nobody_outside_a_way_in() -> None:
    assert SERVICES["postgres"]["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert "ports" not in SERVICES["postgres"]


def test_everything_that_can_be_set_is_in_the_example() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", TEXT))
    offered = set(re.findall(r"^# (\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert wanted
    assert wanted == offered


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder in which the secrets have been made."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/make-secrets", tmp_path / "deploy")
    subprocess.run([tmp_path / "deploy/make-secrets"], check=True, capture_output=True)
    return tmp_path


def test_every_secret_that_is_mounted_is_made(made: Path) -> None:
    mounted = {Path(secret["file"]) for secret in COMPOSE["secrets"].values()}
    assert mounted == {path.relative_to(made) for path in (made / "secrets").iterdir()}
    assert (made / "secrets").stat().st_mode & 0o777 == 0o700


def test_the_service_takes_the_secrets_that_are_made(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    for variable, path in SERVICES["app"]["environment"].items():
        if variable.endswith("_FILE"):
            monkeypatch.setenv(variable, str(path).replace("/run/secrets", str(made / "secrets")))
    settings = Settings()
    assert settings.secret_key is not None
    assert settings.database_url is not None
    assert decode_secret_key(settings.secret_key.get_secret_value())
    password = (made / "secrets/database_password").read_text().strip()
    assert settings.database_url.get_secret_value() == f"postgresql://toolscout:{password}@postgres:5432/toolscout"


def test_secrets_that_are_there_stay_as_they_are(made: Path) -> None:
    before = {path.name: path.read_text() for path in (made / "secrets").iterdir()}
    assert len(set(before.values())) == len(before)
    (made / "secrets/grafana_password").unlink()
    subprocess.run([made / "deploy/make-secrets"], check=True, capture_output=True)
    after = {path.name: path.read_text() for path in (made / "secrets").iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"grafana_password"}

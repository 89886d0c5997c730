"""docker-compose.yml, as far as it can be checked without Docker: start order, secrets, settings, limits, files."""

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
OUR_SERVICES = ["migrate", "app", "worker"]
ONCE = ["secrets", "migrate"]
SECRETS_DIR = "/run/secrets"
VARIABLES = {field: variable_name(field) for field in Settings.model_fields}
SECRET_VARIABLES = {VARIABLES[field] for field in secret_fields()}
FILE_VARIABLES = {f"{name}_FILE" for name in SECRET_VARIABLES}
ATTRIBUTES = set(
    "build cap_add cap_drop command depends_on deploy env_file environment healthcheck image network_mode networks "
    "ports pull_policy read_only restart security_opt shm_size stop_grace_period tmpfs user volumes".split()
)
"""Of a service, in the Compose specification: those that this file needs."""
FIXED = {
    # where the service is inside of its container, and what it is
    "TOOLSCOUT_ENVIRONMENT",
    "TOOLSCOUT_ROLE",
    "TOOLSCOUT_HOST",
    "TOOLSCOUT_PORT",
    "TOOLSCOUT_DATA_DIR",
    "DATABASE_URL",
    # the service `secrets` takes these from .env and writes the files
    "TOOLSCOUT_SECRET_KEY",
    "TOOLSCOUT_METRICS_KEY",
    "TOOLSCOUT_ADMIN_API_KEY",
}
"""Settings that `.env` does not change in the containers."""


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_only_attributes_that_compose_knows(name: str) -> None:
    """Compose refuses the whole file for a misspelt attribute."""
    assert SERVICES[name].keys() <= ATTRIBUTES


def test_services_start_when_the_services_they_need_are_healthy() -> None:
    assert SERVICES["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in ("app", "worker"):
        assert SERVICES[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert SERVICES["proxy"]["depends_on"]["app"]["condition"] == "service_healthy"


def test_one_service_builds_the_image_and_all_that_use_it_start_after_it() -> None:
    """Services that build one tag at the same time fail, and a registry may hold another image of this name."""
    assert [name for name, service in SERVICES.items() if "build" in service] == ["secrets"]
    users = [name for name, service in SERVICES.items() if service["image"] == "toolscout"]
    assert sorted(users) == sorted(["secrets", *OUR_SERVICES])
    for name in users:
        assert SERVICES[name]["pull_policy"] == "never"
        assert name == "secrets" or "secrets" in list_dependencies(name)


def list_dependencies(name: str) -> set[str]:
    direct = set(SERVICES[name].get("depends_on", ()))
    return direct.union(*(list_dependencies(each) for each in direct))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_with_secrets_starts_after_they_are_created(name: str) -> None:
    if any(volume.startswith("secrets-") for volume in SERVICES[name].get("volumes", [])) and name != "secrets":
        assert "secrets" in list_dependencies(name)
        for service in (SERVICES[each] for each in [name, *list_dependencies(name)]):
            for needed in service.get("depends_on", {}).keys() & ONCE:
                assert service["depends_on"][needed]["condition"] == "service_completed_successfully"


def test_migrations_run_once_with_an_existing_command() -> None:
    program, *arguments = SERVICES["migrate"]["command"]
    assert program == "toolscout"
    cli = build_cli()
    name, command, options = cli.resolve_command(cli.make_context(program, list(arguments)), arguments)
    assert name == "migrate"
    assert command is not None
    command.make_context(name, options)


def test_two_replicas_serve_one_port_and_a_separate_worker_indexes() -> None:
    assert SERVICES["app"]["deploy"]["replicas"] == 2
    assert SERVICES["app"]["environment"]["TOOLSCOUT_ROLE"] == "web"
    assert SERVICES["worker"]["environment"]["TOOLSCOUT_ROLE"] == "worker"
    published = [name for name, service in SERVICES.items() for port in service.get("ports", []) if port[0] == "$"]
    assert published == ["proxy"]


def resolve_environment(name: str, dot_env: dict[str, str]) -> dict[str, str]:
    """Return the variables of a container, as compose does: those of `environment` go before those of `.env`."""
    assert SERVICES[name]["env_file"] == [{"path": ".env", "required": False}]

    def interpolate(match: re.Match[str]) -> str:
        return dot_env.get(match[1]) or match[2]

    fixed = SERVICES[name].get("environment", {})
    pattern = re.compile(r"\$\{(\w+):-(.*?)\}")
    return dot_env | {variable: pattern.sub(interpolate, str(value)) for variable, value in fixed.items()}


@pytest.mark.parametrize("name", OUR_SERVICES)
def test_every_setting_of_the_env_file_reaches_the_containers(name: str) -> None:
    dot_env = {variable: f"value of {variable}" for variable in VARIABLES.values()}
    environment = resolve_environment(name, dot_env)
    changed = {variable for variable, value in dot_env.items() if environment[variable] != value}
    assert changed == FIXED - ({"TOOLSCOUT_ROLE"} if name == "migrate" else set())
    assert environment.keys() - dot_env.keys() <= FILE_VARIABLES, "only existing settings are set"


@pytest.mark.parametrize("name", OUR_SERVICES)
def test_secrets_reach_the_service_only_as_files(name: str) -> None:
    environment = resolve_environment(name, {})
    assert {variable: value for variable, value in environment.items() if variable in SECRET_VARIABLES and value} == {}
    assert {Path(environment[variable]).parent for variable in FILE_VARIABLES if environment.get(variable)} == {
        Path(SECRETS_DIR)
    }


def test_the_env_file_of_a_service_on_this_machine_does_not_break_the_containers(
    monkeypatch: pytest.MonkeyPatch, volumes: Path
) -> None:
    dot_env = {
        "TOOLSCOUT_ENVIRONMENT": "development",
        "TOOLSCOUT_HOST": "127.0.0.1",
        "TOOLSCOUT_PORT": "9000",
        "TOOLSCOUT_DATA_DIR": ".toolscout",
        "DATABASE_URL": "postgresql://localhost/other",
        "TOOLSCOUT_ADMIN_API_KEY": "an admin key of this machine",
        "TOOLSCOUT_LOG_LEVEL": "DEBUG",
    }
    monkeypatch.chdir(volumes)
    for variable, value in resolve_environment("app", dot_env).items():
        monkeypatch.setenv(variable, value.replace(SECRETS_DIR, str(volumes / "app")))
    settings = Settings()
    assert (settings.environment, settings.host, settings.port) == ("production", "0.0.0.0", 8000)  # noqa: S104 a container
    assert settings.database_url is not None
    assert "@postgres:5432/" in settings.database_url.get_secret_value()
    assert settings.log_level == "DEBUG"
    # nginx has the port that the operator chose
    assert SERVICES["proxy"]["ports"] == ["${TOOLSCOUT_PORT:-8000}:8080"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_volume_and_network_of_a_service_is_declared(name: str) -> None:
    for source, *_ in (volume.split(":") for volume in SERVICES[name].get("volumes", [])):
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
    assert set(SERVICES[name].get("networks", [])) <= COMPOSE["networks"].keys()
    assert ("networks" in SERVICES[name]) != ("network_mode" in SERVICES[name])


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_and_gains_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert service["security_opt"] == ["no-new-privileges:true"]
    if name != "postgres":  # its image starts as root and drops the privileges itself
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    if name != "secrets":  # it has no network, and ends when the secrets are written
        assert "user" not in service
        assert "cap_add" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_a_full_version(name: str) -> None:
    image = SERVICES[name]["image"]
    assert image == "toolscout" or re.search(r":v?\d+\.\d+\.\d+(-[\w.]+)?$", image), image


def test_the_images_of_the_build_have_a_full_version() -> None:
    images = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 2
    assert len(set(images)) == 1
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", images[0])


@pytest.mark.parametrize("name", sorted(set(SERVICES) - set(ONCE)))
def test_every_long_running_service_has_a_health_check_with_a_start_period(name: str) -> None:
    if name in OUR_SERVICES:
        assert "healthcheck" not in SERVICES[name], "that of the image"
        assert re.search(r"^HEALTHCHECK .*--start-period=\d+s", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    else:
        assert SERVICES[name]["healthcheck"]["start_period"]


@pytest.mark.parametrize("name", ONCE)
def test_a_service_that_ends_is_neither_restarted_nor_checked(name: str) -> None:
    assert SERVICES[name]["restart"] == "no"
    assert SERVICES[name]["healthcheck"] == {"disable": True}


def test_no_service_is_killed_while_it_drains() -> None:
    for name in ("app", "worker"):
        drain_s = float(resolve_environment(name, {})["TOOLSCOUT_DRAIN_S"])
        assert drain_s + _GRACE_S < 10
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain_s + _GRACE_S + 5


def test_the_database_is_on_an_internal_network_without_ports() -> None:
    assert SERVICES["postgres"]["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert "ports" not in SERVICES["postgres"]


def test_the_service_believes_its_proxy_and_has_no_port_of_its_own() -> None:
    """Any container on the inner network may say whom it serves; nobody else can connect."""
    assert "ports" not in SERVICES["app"]
    assert "inside" in SERVICES["proxy"]["networks"]
    proxies = Settings(trusted_proxies=resolve_environment("app", {})["TOOLSCOUT_TRUSTED_PROXIES"]).proxy_addresses
    assert "172.16.0.0/12" in proxies, "where Docker puts its networks"
    assert "*" not in proxies


def test_files_that_settings_name_can_be_mounted() -> None:
    for name in ("app", "worker"):
        assert "./deploy/files:/files:ro" in SERVICES[name]["volumes"]
    assert [path.name for path in (ROOT / "deploy/files").iterdir() if path.name == ".gitignore"] == [".gitignore"]


def test_every_variable_is_in_the_example_of_the_environment() -> None:
    used = set(re.findall(r"\$\{(\w+)", TEXT))
    documented = set(re.findall(r"^# (\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert used
    assert used - documented == set()
    assert documented - used <= set(VARIABLES.values()), "all others are settings"


def make_secrets(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", ROOT / "deploy/make-secrets", *arguments]
    environment = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """The folder `secrets` of the operator, as it is after a clone."""
    folder = tmp_path / "given"
    folder.mkdir()
    shutil.copy(ROOT / "secrets/.gitignore", folder)
    return folder


@pytest.fixture
def volumes(tmp_path: Path, given: Path) -> Path:
    """The volumes, after the service `secrets` has run for the first time."""
    folder = tmp_path / "volumes"
    for volume in SERVICES["secrets"]["volumes"]:
        target = volume.split(":")[1]
        if target.startswith("/volumes/"):
            (folder / Path(target).name).mkdir(parents=True)
    done = make_secrets(given, folder)
    assert done.returncode == 0, done.stderr
    for secret in read_secrets(folder / "all").values():
        assert secret not in done.stdout + done.stderr
    assert "docker compose exec app cat /run/secrets/admin_api_key" in done.stdout
    return folder


def read_secrets(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in folder.iterdir()}


def list_secrets_in_use(name: str) -> set[str]:
    """Return the secrets that a service's variables, or the files mounted into it, name."""
    service = SERVICES[name]
    texts = [str(service.get("environment", {}))]
    for source in (volume.split(":")[0] for volume in service["volumes"]):
        if source.startswith("./"):
            paths = [ROOT / source] if (ROOT / source).is_file() else (ROOT / source).rglob("*.yml")
            texts += [path.read_text() for path in paths]
    return set(re.findall(rf"{SECRETS_DIR}/(\w+)", " ".join(texts)))


@pytest.mark.parametrize("name", ["app", "worker", "migrate", "postgres", "prometheus", "grafana"])
def test_a_service_gets_the_secrets_that_it_names_and_no_others(name: str, volumes: Path) -> None:
    [volume] = [each for each in SERVICES[name]["volumes"] if each.split(":")[0].startswith("secrets")]
    source, target, mode = volume.split(":")
    assert (target, mode) == (SECRETS_DIR, "ro")
    folder = volumes / source.removeprefix("secrets-")
    assert set(read_secrets(folder)) == list_secrets_in_use(name)
    # each service runs as another user; nothing but its own volume protects the file
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o444}


def test_only_the_service_that_creates_the_secrets_has_all_of_them() -> None:
    assert [name for name in SERVICES if "secrets:/volumes/all" in SERVICES[name].get("volumes", [])] == ["secrets"]
    assert SERVICES["secrets"]["network_mode"] == "none"


def test_the_service_accepts_the_created_secrets(volumes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(volumes)
    for variable, value in resolve_environment("app", {}).items():
        monkeypatch.setenv(variable, value.replace(SECRETS_DIR, str(volumes / "app")))
    settings = Settings()
    assert settings.secret_key is not None
    assert settings.database_url is not None
    assert decode_secret_key(settings.secret_key.get_secret_value())
    password = read_secrets(volumes / "postgres")["database_password"]
    assert settings.database_url.get_secret_value() == f"postgresql://toolscout:{password}@postgres:5432/toolscout"


def test_a_second_start_keeps_the_secrets(volumes: Path, given: Path) -> None:
    before = {folder.name: read_secrets(folder) for folder in volumes.iterdir()}
    assert len(set(before["all"].values())) == len(before["all"]) == 8
    assert make_secrets(given, volumes).returncode == 0
    assert {folder.name: read_secrets(folder) for folder in volumes.iterdir()} == before


def test_secrets_of_the_operator_go_before_created_ones(volumes: Path, given: Path) -> None:
    created = read_secrets(volumes / "all")
    (given / "admin_api_key").write_text("an admin key in a file\n")
    (given / "database_password").write_text("of-my-own")
    variables = {"TOOLSCOUT_ADMIN_API_KEY": "ignored for the file", "TOOLSCOUT_METRICS_KEY": "a key in .env"}
    assert make_secrets(given, volumes, **variables).returncode == 0
    app = read_secrets(volumes / "app")
    assert app["admin_api_key"] == "an admin key in a file"
    assert app["metrics_key"] == read_secrets(volumes / "prometheus")["metrics_key"] == "a key in .env"
    assert app["secret_key"] == created["secret_key"]
    assert app["database_url"] == "postgresql://toolscout:of-my-own@postgres:5432/toolscout"
    (given / "database_url").write_text("postgresql://toolscout@db.example.com/toolscout\n")
    assert make_secrets(given, volumes).returncode == 0
    assert read_secrets(volumes / "worker")["database_url"] == "postgresql://toolscout@db.example.com/toolscout"


@pytest.mark.parametrize("kind", ["empty", "a blank line", "a broken link", "a folder"])
def test_a_given_secret_that_cannot_be_read_is_not_replaced_by_a_random_one(
    volumes: Path, given: Path, kind: str
) -> None:
    path, before = given / "secret_key", read_secrets(volumes / "all")
    if kind == "empty":
        path.touch()
    elif kind == "a blank line":
        path.write_text("\n")
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/nowhere/secret_key")
    done = make_secrets(given, volumes)
    assert done.returncode == 1
    assert re.search(r"secret_key is empty", done.stderr)
    assert read_secrets(volumes / "app")["secret_key"] == before["secret_key"]


def test_without_the_folder_of_given_secrets_nothing_is_created(tmp_path: Path) -> None:
    """It may exist and be unreadable: random secrets in place of given ones would lock the operator out."""
    (tmp_path / "all").mkdir()
    done = make_secrets(tmp_path / "missing", tmp_path)
    assert done.returncode == 1
    assert "cannot read the folder secrets/" in done.stderr
    assert list((tmp_path / "all").iterdir()) == []


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A folder in which the operator has created the secrets as files."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/make-secrets", tmp_path / "deploy")
    subprocess.run([tmp_path / "deploy/make-secrets"], check=True, capture_output=True)
    return tmp_path


def test_secrets_that_are_created_as_files_are_taken_into_the_volumes(deployment: Path, volumes: Path) -> None:
    files = read_secrets(deployment / "secrets")
    assert (deployment / "secrets").stat().st_mode & 0o777 == 0o700
    assert make_secrets(deployment / "secrets", volumes).returncode == 0
    assert read_secrets(volumes / "all") == files


def test_existing_files_are_not_changed(deployment: Path) -> None:
    before = read_secrets(deployment / "secrets")
    assert len(set(before.values())) == len(before)
    (deployment / "secrets/grafana_password").unlink()
    subprocess.run([deployment / "deploy/make-secrets"], check=True, capture_output=True)
    after = read_secrets(deployment / "secrets")
    assert {name for name in before if before[name] != after[name]} == {"grafana_password"}

"""The README says what is true: every setting, every route, every promise about files that can be checked."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from app.settings import Settings, secret_fields, variable_of
from app.wiring import Container
from tests.conftest import app_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting_is_in_the_table_with_its_description(field: str) -> None:
    description = Settings.model_fields[field].description
    assert description
    row = next((line for line in README.splitlines() if line.startswith(f"| `{variable_of(field)}`")), None)
    assert row is not None, f"{variable_of(field)} is missing in the README"
    assert description in row


def test_the_table_names_no_setting_that_does_not_exist() -> None:
    named = set(re.findall(r"^\| `([A-Z_]+)`", README, re.MULTILINE))
    assert named == {variable_of(field) for field in Settings.model_fields}


def test_every_secret_that_can_stand_in_a_file_is_named() -> None:
    passage = README[README.index("A secret (") : README.index("can\ninstead stand in a file")]
    assert set(re.findall(r"`([A-Z_]+)`", passage)) == {variable_of(field) for field in secret_fields()}


def test_every_route_is_in_the_readme(container: Container) -> None:
    documented = {
        (method, path)
        for methods, path in re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE)(?:/[A-Z]+)*) (/[\w/{}-]*)`", README)
        for method in methods.split("/")
    }
    paths = app_of(container).openapi()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert routes
    assert routes - documented == set()


def test_the_image_runs_as_an_ordinary_user_in_production() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER toolscout$", dockerfile, re.MULTILINE)
    assert "TOOLSCOUT_ENVIRONMENT=production" in dockerfile
    assert 'CMD ["toolscout", "serve"]' in dockerfile
    assert "HEALTHCHECK" in dockerfile


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_lock_files_carry_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / name).read_text()
    pins = re.findall(r"^[\w.-]+==\S+ \\$", text, re.MULTILINE)
    assert len(pins) > 30
    assert text.count("==") == len(pins)
    assert "://" not in text
    assert "--index" not in text


def test_the_lock_holds_every_dependency_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[\[<>=]", line)[0] for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    }
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE))
    assert wanted - locked == set()


def test_the_lock_of_third_party_servers_carries_hashes_and_no_addresses() -> None:
    text = (ROOT / "tests/third_party/package-lock.json").read_text()
    packages = [package for path, package in json.loads(text)["packages"].items() if path]
    assert len(packages) > 50
    assert all(package["integrity"].startswith("sha512-") for package in packages)
    assert "://" not in text

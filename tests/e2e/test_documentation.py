"""README and guides say what is true: every setting, every route, every error, every link, every promise about files
that can be checked."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from app import errors
from app.container import Container
from app.errors import ToolscoutError
from app.main import create_routes
from app.settings import Settings, secret_fields, variable_name
from docs.generate import PAGE, body_of, operations_of, reference
from tests.conftest import app_of
from tests.support.documents import DOCS, PAGES, anchors, links, name_of, runnable
from tests.support.documents import README as README_PAGE
from tests.support.paths import ROOT

README = README_PAGE.read_text()
API = PAGE.read_text()


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting_is_in_the_table_with_its_description(field: str) -> None:
    description = Settings.model_fields[field].description
    assert description
    row = next((line for line in README.splitlines() if line.startswith(f"| `{variable_name(field)}`")), None)
    assert row is not None, f"{variable_name(field)} is missing in the README"
    assert description in row


def test_the_table_names_no_setting_that_does_not_exist() -> None:
    named = set(re.findall(r"^\| `([A-Z_]+)`", README, re.MULTILINE))
    assert named == {variable_name(field) for field in Settings.model_fields}


def test_every_secret_that_can_stand_in_a_file_is_named() -> None:
    passage = README[README.index("A secret (") : README.index("can\ninstead stand in a file")]
    assert set(re.findall(r"`([A-Z_]+)`", passage)) == {variable_name(field) for field in secret_fields()}


def test_the_reference_is_what_would_be_written_now() -> None:
    assert reference() == API, "write it anew: make docs"


def test_every_route_is_in_the_reference(container: Container) -> None:
    paths = app_of(container).openapi()["paths"]
    routes = {f"### `{method.upper()} {path}`" for path, methods in paths.items() for method in methods}
    assert len(routes) > 40
    assert routes == {line for line in API.splitlines() if line.startswith("### `")}


def test_every_route_says_what_it_does_and_every_field_of_a_body_what_it_means() -> None:
    app = create_routes()
    described = app.openapi()
    operations = operations_of(app, described["paths"])
    assert [each.path for each in operations if not each.described.get("description")] == []
    fields = [(each.path, field) for each in operations for field in body_of(each, described["components"]["schemas"])]
    assert len(fields) > 50
    assert [(path, field.name) for path, field in fields if not field.meaning] == []


@pytest.mark.parametrize(
    ("route", "permission"),
    [("POST /execute", "`execute`"), ("PUT /rules", "`catalog:write`"), ("GET /users", "`administer`")],
)
def test_the_reference_tells_the_permission_of_a_route(route: str, permission: str) -> None:
    assert f"Needs {permission}." in API.partition(f"### `{route}`")[2].partition("\n###")[0]


def test_what_is_open_to_all_is_told_to_be(container: Container) -> None:
    open_to_all = re.findall(r"^### `GET (/\w+)`\n\n.*Needs no key\.", API, re.MULTILINE)
    assert set(open_to_all) == {"/healthz", "/readyz", "/metrics"}


def kinds_of_errors(kind: type[ToolscoutError]) -> set[type[ToolscoutError]]:
    return {kind}.union(*(kinds_of_errors(each) for each in kind.__subclasses__()))


def test_every_error_is_in_the_tree_and_every_code_in_the_reference() -> None:
    kinds = {each for each in kinds_of_errors(ToolscoutError) if each.__module__.startswith("app.")}
    ours = {each for each in kinds if each.__module__ == errors.__name__}
    assert len(ours) > 20
    drawn = re.findall(r"^[│├└─ ]*(\w+) +(\d{3}) +(\w+)", errors.__doc__ or "", re.MULTILINE)
    assert set(drawn) == {(each.__name__, str(each.status), each.code) for each in ours - {ToolscoutError}}
    listed = set(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", API.partition("\n## Errors\n")[2], re.MULTILINE))
    assert listed == {(each.code, str(each.status)) for each in ours} | {("method_not_allowed", "405")}
    unlisted = {each.code for each in kinds} - {code for code, _ in listed}
    assert unlisted == {"lease_lost"}, "which never leaves the worker"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for path, anchor in links(page.read_text()):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text()), f"{path}#{anchor}"


def test_links_and_anchors_are_found_where_they_are() -> None:
    text = "# Here & `there`\n```sh\n# not a heading\n```\n[a](b.md#c), [d](#e), [f](https://example.com/g)"
    assert anchors(text) == {"here--there"}
    assert links(text) == [("b.md", "c"), ("", "e")]


def test_every_guide_is_reached_from_the_readme() -> None:
    named = {path for path, _ in links(README)}
    assert {name_of(page) for page in DOCS.glob("*.md")} <= named


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`(TOOLSCOUT_[A-Z_]+)(?:=\S+)?`", page.read_text()))
    assert {name.removesuffix("_FILE") for name in named} <= {variable_name(field) for field in Settings.model_fields}


def test_what_a_newcomer_enters_first_is_marked_runnable() -> None:
    marked = "\n".join(runnable(page.read_text()) for page in PAGES)
    for command in ("/discover ", '"messages"', "/feedback", "/rules/preview", "/mcp", "discover ", "eval ", "doctor"):
        assert command in marked


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

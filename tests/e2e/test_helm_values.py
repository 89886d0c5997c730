"""The values of the Helm chart: each is described, checked and used, and a wrong one is refused."""

import json
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
import yaml

from app import __version__
from app.settings import Settings, secret_fields, variable_name
from bench.result_files import RESULTS
from bench.simulate.costs import read_costs
from bench.simulate.deployments import build_network
from bench.simulate.network import simulate_open
from bench.simulate.scenario import Scenario
from docs.generators.helm import CHART, SCHEMA, SET_BY_THE_CHART, Value, list_values, main, render_schema
from tests.support.documents import get_section, list_code_blocks
from tests.support.helm import (
    EVERYTHING,
    KUBERNETES_VERSIONS,
    REQUIRED,
    SWITCHES_OFF,
    HelmError,
    Values,
    get_environment,
    get_manifest,
    list_secret_files,
    merge_values,
    needs_helm,
    render,
    render_text,
    validate_manifest,
)
from tests.support.paths import ROOT

VALUES = list_values()
LEAVES = [value for value in VALUES if not value.is_group]
TEMPLATES = "\n".join(path.read_text() for path in sorted((CHART / "templates").rglob("*.*")))
SETTINGS_SCHEMA: dict[str, dict[str, Any]] = json.loads(SCHEMA.read_text())["definitions"]["settings"]["properties"]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.name)
def test_every_value_has_a_comment_and_a_schema(value: Value) -> None:
    assert len(value.comment) > 10
    assert value.comment[0].isupper()
    assert not value.comment.endswith(".")
    assert value.schema, "values.schema.json does not know it"


def test_the_schema_knows_no_other_values() -> None:
    known = {
        (name, *below)
        for name, schema in json.loads(SCHEMA.read_text())["properties"].items()
        for below in [(), *((member,) for member in schema.get("properties", ()))]
    }
    assert known - {value.path for value in VALUES} == {("global",)}, "Helm gives it to every chart"


def test_every_object_of_the_schema_refuses_unknown_members() -> None:
    def list_open(schema: Any, path: str) -> list[str]:
        if isinstance(schema, list):
            return [found for each in schema for found in list_open(each, path)]
        if not isinstance(schema, dict):
            return []
        is_open = schema.get("type") == "object" and "properties" in schema and "additionalProperties" not in schema
        return [*([path] if is_open else []), *(each for name in schema for each in list_open(schema[name], name))]

    assert list_open(json.loads(SCHEMA.read_text()), "") == ["items"], "variables are as Kubernetes writes them"


def test_the_schema_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert render_schema() == SCHEMA.read_text(), "run `make docs`"
    assert main(["--check"]) == 0


def test_the_check_finds_an_outdated_schema(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outdated = json.loads(SCHEMA.read_text())
    del outdated["definitions"]["settings"]["properties"]["TOOLSCOUT_MAX_TOOLS"]
    copy = tmp_path / "values.schema.json"
    copy.write_text(json.dumps(outdated))
    monkeypatch.setattr("docs.generators.helm.SCHEMA", copy)
    assert main(["--check"]) == 1
    assert "run `make docs`" in capsys.readouterr().err
    assert main([]) == 0
    assert copy.read_text() == SCHEMA.read_text()


def test_the_settings_of_the_chart_are_those_of_the_service() -> None:
    chosen = SETTINGS_SCHEMA.keys() | {variable_name(field) for field in SET_BY_THE_CHART}
    assert chosen | {variable_name(field) for field in secret_fields()} == {
        variable_name(field) for field in Settings.model_fields
    }
    [comment] = [value.comment for value in VALUES if value.name == "settings"]
    assert all(f"`{variable_name(field)}`" in comment for field in SET_BY_THE_CHART)


def test_templates_use_no_value_that_does_not_exist() -> None:
    used = {tuple(name.split(".")) for name in re.findall(r"\.Values\.([A-Za-z_.]+)", TEMPLATES)}
    assert len(used) > 30
    known = {value.path for value in VALUES}
    settings = {("settings", name) for name in SETTINGS_SCHEMA} | {("secrets", "items", "TOOLSCOUT_METRICS_KEY")}
    assert used - known - settings == set()


def read_value(values: Values, value: Value) -> Any:
    for name in value.path:
        values = values.get(name, {})
    return values


def replace_value(values: Values, path: Sequence[str], content: Any) -> Values:
    """Return the values with other content at a path, whatever is below it."""
    name, *below = path
    return {**values, name: replace_value(values.get(name, {}), below, content) if below else content}


def render_or_refuse(values: Values) -> str:
    try:
        return render_text(values)
    except HelmError as error:
        return str(error)


@needs_helm
@pytest.mark.parametrize("value", LEAVES, ids=lambda value: value.name)
def test_every_value_changes_what_is_created(value: Value) -> None:
    """Where everything else has its default, or where everything else has not."""
    other = read_value(EVERYTHING, value) if read_value(EVERYTHING, value) != {} else read_value(SWITCHES_OFF, value)
    assert other not in ({}, value.default), "give it another value in EVERYTHING"
    pairs = [
        (REQUIRED, replace_value(REQUIRED, value.path, other)),
        (EVERYTHING, replace_value(EVERYTHING, value.path, value.default)),
    ]
    assert any(render_or_refuse(before) != render_or_refuse(after) for before, after in pairs)


def sample(variable: str) -> Any:
    """Return a value of the type of a setting: not its default, and large where it is a number."""
    schema = SETTINGS_SCHEMA[variable]
    if schema.get("type") in ("integer", "number"):
        return schema.get("maximum", 12_345_678)
    return schema["enum"][-1] if "enum" in schema else "https://a.example.com/$HOME?{{ x }}=\"y\": 'z' # \\ ü"


@needs_helm
def test_every_setting_reaches_the_pods_exactly() -> None:
    """A number with seven digits is no float there, and a text with braces, quotes or backslashes is no template."""
    settings = {variable: sample(variable) for variable in SETTINGS_SCHEMA}
    del settings["TOOLSCOUT_SERVED_HOSTS"]  # it gets more names
    direct = {"items": {"TOOLSCOUT_LISTEN_DATABASE_URL": {"key": "direct"}}}  # which a pooler needs
    manifests = render(merge_values(REQUIRED, {"settings": settings, "secrets": direct}))
    expected = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    assert "12345678" in expected.values()
    for component in ("web", "worker"):
        environment = get_environment(get_manifest(manifests, "Deployment", component))
        assert {name: environment[name] for name in expected} == expected


@needs_helm
def test_settings_of_one_kind_of_pods_take_precedence_and_stay_there() -> None:
    values = merge_values(
        REQUIRED,
        {
            "settings": {"TOOLSCOUT_LEARN_FROM_USE": True, "TOOLSCOUT_DATABASE_POOL_SIZE": 20},
            "worker": {"settings": {"TOOLSCOUT_LEARN_FROM_USE": False, "TOOLSCOUT_REINDEX_EVERY": 0}},
        },
    )
    web, worker = (get_environment(get_manifest(render(values), "Deployment", name)) for name in ("web", "worker"))
    assert (web["TOOLSCOUT_LEARN_FROM_USE"], worker["TOOLSCOUT_LEARN_FROM_USE"]) == ("true", "false")
    assert (web["TOOLSCOUT_DATABASE_POOL_SIZE"], worker["TOOLSCOUT_DATABASE_POOL_SIZE"]) == ("20", "20")
    assert "TOOLSCOUT_REINDEX_EVERY" not in web
    assert worker["TOOLSCOUT_REINDEX_EVERY"] == "0"


REFUSED = [
    ({"web": {"replica": 3}}, "Additional property replica is not allowed"),
    ({"replicas": 3}, "Additional property replicas is not allowed"),
    ({"web": {"replicas": "3"}}, "web.replicas: Invalid type"),
    ({"web": {"replicas": -1}}, "web.replicas: Must be greater than or equal to 0"),
    ({"web": {"drainSeconds": 61}}, "web.drainSeconds: Must be less than or equal to 60"),
    ({"settings": {"TOOLSCOUT_MAX_TOOL": 5}}, "Additional property TOOLSCOUT_MAX_TOOL is not allowed"),
    ({"settings": {"TOOLSCOUT_MAX_TOOLS": 500}}, "TOOLSCOUT_MAX_TOOLS: Must be less than or equal to 128"),
    ({"settings": {"TOOLSCOUT_LOG_LEVEL": "LOUD"}}, "TOOLSCOUT_LOG_LEVEL must be one of"),
    ({"settings": {"TOOLSCOUT_SECRET_KEY": "x"}}, "Additional property TOOLSCOUT_SECRET_KEY is not allowed"),
    ({"worker": {"settings": {"TOOLSCOUT_ROLE": "all"}}}, "Additional property TOOLSCOUT_ROLE is not allowed"),
    ({"extraEnv": [{"name": "DATABASE_URL", "value": "x"}]}, "extraEnv.0.name"),
    ({"secrets": {"items": {"TOOLSCOUT_LOG_LEVEL": {"key": "x"}}}}, "Additional property TOOLSCOUT_LOG_LEVEL"),
    ({"secrets": {"items": {"DATABASE_URL": {"value": "x"}}}}, "Additional property value is not allowed"),
    ({"secrets": {"items": {"OPENAI_API_KEY": "sk-1"}}}, "OPENAI_API_KEY: Invalid type"),
    ({"secrets": {"items": {"OPENAI_API_KEY": {"name": "x"}}}}, "key is required"),
    ({"migration": {"databaseUrl": {"name": "x"}}}, "migration.databaseUrl"),
    ({"image": {"digest": "1234"}}, "image.digest: Does not match pattern"),
    ({"pods": {"tmpSize": "512MB"}}, "pods.tmpSize: Does not match pattern"),
    ({"networkPolicy": {"fromNamespaces": "monitoring"}}, "fromNamespaces: Invalid type"),
    ({"networkPolicy": {"postgresPorts": []}}, "networkPolicy.postgresPorts"),
    ({"networkPolicy": {"postgresPorts": [70000]}}, "networkPolicy.postgresPorts"),
    ({"autoscaling": {"requestsInFlight": 0}}, "autoscaling.requestsInFlight"),
    ({"disruptionBudget": {"maxUnavailable": "a few"}}, "disruptionBudget.maxUnavailable"),
]


@needs_helm
@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_value_is_refused_and_named(values: Values, message: str) -> None:
    with pytest.raises(HelmError, match=re.escape(message)):
        render_text(merge_values(REQUIRED, values))


ACCEPTED = [
    {"web": {"replicas": 0, "drainSeconds": 60}},
    {"settings": {"TOOLSCOUT_MAX_TOOLS": 128, "TOOLSCOUT_LOG_LEVEL": "DEBUG", "TOOLSCOUT_DISCOVERY": 0}},
    {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]},
    {"secrets": {"items": {"OPENAI_API_KEY": {"key": "x"}}}},
    {"migration": {"databaseUrl": {"key": "x"}}},
    {"disruptionBudget": {"maxUnavailable": "10%"}},
    {"global": {"imageRegistry": "registry.example.com"}},
    {"settings": None, "files": None, "web": {"settings": None}},  # as `settings:` with nothing behind it
]


@needs_helm
@pytest.mark.parametrize("values", ACCEPTED, ids=json.dumps)
def test_a_right_value_is_accepted(values: Values) -> None:
    assert "kind: Deployment" in render_text(merge_values(REQUIRED, values))


def read_default(name: str) -> Any:
    [default] = [value.default for value in VALUES if value.name == name]
    return default


def simulate_pod(share: float) -> tuple[float, float]:
    """Return the cores and the requests in flight of a pod at a share of the highest rate, by the model of capacity."""
    scenario = Scenario()
    [deployment] = [each for each in scenario.list_deployments() if each.name == "10 processes, Postgres apart"]
    recorded = orjson.loads((RESULTS / "simulation.json").read_bytes())["capacities"]
    [highest] = [each["rate"] for each in recorded if each["name"] == deployment.name]
    rate = highest * share
    network = build_network(deployment, read_costs(RESULTS, scenario.tools), scenario.workload, rate)
    simulated = simulate_open(network, rate, scenario.messages, scenario.seed)
    machines = [machine for machine in network.machines if machine.name.startswith("cores of process")]
    assert len(machines) == deployment.processes
    cores = sum(simulated.machine_use[machine.name] * machine.cores for machine in machines)
    return cores / deployment.processes, rate * simulated.mean_ms / 1000 / deployment.processes


def test_pods_are_added_by_their_cpu_before_they_are_slow() -> None:
    [cores] = re.findall(r"^(\d+)m$", read_default("web.resources")["requests"]["cpu"])
    limit = int(cores) / 1000 * read_default("autoscaling.cpuPercent") / 100
    assert simulate_pod(0.55)[0] < limit < simulate_pod(0.65)[0], "the guide says 60 %, and to plan with two thirds"


def test_pods_are_added_by_their_requests_before_the_highest_rate() -> None:
    """But not by those that a pod has when its CPU adds others. The autoscaler ignores a difference of a tenth."""
    limit = read_default("autoscaling.requestsInFlight")
    assert 1.5 * simulate_pod(0.65)[1] < limit < simulate_pod(1.0)[1] / 1.1


GUIDE = (ROOT / "docs/guides/scaling.md").read_text()
SECTION = get_section(GUIDE, "Kubernetes")
each_page = pytest.mark.parametrize("page", [SECTION, (CHART / "README.md").read_text()], ids=["guide", "README"])


@needs_helm
def test_the_values_of_the_guide_create_what_it_says() -> None:
    smallest, more_secrets = (yaml.safe_load(block) for block in list_code_blocks(SECTION, "yaml"))
    manifests = render(merge_values(smallest, more_secrets), "toolscout")
    for manifest in manifests:
        validate_manifest(manifest, KUBERNETES_VERSIONS[-1])
    described = " ".join(re.findall(r"^\| (.+?) \|", SECTION, re.MULTILINE))
    optional = {"HorizontalPodAutoscaler", "ConfigMap"}
    kinds = {manifest["kind"] for manifest in manifests} - {"Pod"}
    assert {kind for kind in kinds | optional if kind.removesuffix("y") not in described} == set()
    for name in re.findall(r"(?:deployment|job)/([\w-]+)", SECTION):
        assert name in {manifest["metadata"]["name"] for manifest in manifests}
    files = list_secret_files(get_manifest(manifests, "Deployment", "web"))
    assert files["DATABASE_URL"] == ("postgres-app", "uri")


def test_the_documentation_says_what_switching_the_autoscaler_on_does() -> None:
    """The chart cannot keep the number: what it reads while rendering is old after the migration, and in a rollback."""
    assert "lookup" not in TEMPLATES
    [comment] = [value.comment for value in VALUES if value.name == "autoscaling.enabled"]
    assert "in a quiet minute" in comment
    assert "Kubernetes puts one there until the autoscaler looks" in SECTION


def test_the_commands_of_the_guide_give_the_secrets_that_the_values_name() -> None:
    smallest, _ = (yaml.safe_load(block) for block in list_code_blocks(SECTION, "yaml"))
    defaults = {value.name: value.default for value in LEAVES}
    items = defaults["secrets.items"] | smallest["secrets"]["items"]
    assert set(re.findall(r"--from-literal=([\w-]+)=", SECTION)) == {item["key"] for item in items.values()}
    [name] = re.findall(r"create secret generic (\S+)", SECTION)
    assert name == smallest["secrets"]["existingSecret"]
    assert set(re.findall(r"/toolscout:([\d.]+)", SECTION)) == {__version__}


@each_page
def test_helm_waits_as_long_as_the_migration_job_may_take(page: str) -> None:
    commands = [block for block in list_code_blocks(page, "sh") if "helm upgrade" in block]
    minutes = [int(found) for block in commands for found in re.findall(r"--timeout (\d+)m", block)]
    assert len(minutes) == len(commands) == 1
    assert minutes[0] * 60 > read_default("migration.deadlineSeconds")


@needs_helm
def test_the_service_listens_on_ipv6_if_it_is_told_to() -> None:
    [host] = re.findall(r'`settings\.TOOLSCOUT_HOST: "(.+?)"`', SECTION)
    for settings, expected in (({}, "0.0.0.0"), ({"TOOLSCOUT_HOST": host}, "::")):  # noqa: S104
        manifests = render(merge_values(REQUIRED, {"settings": settings}))
        for component in ("web", "worker"):
            assert get_environment(get_manifest(manifests, "Deployment", component))["TOOLSCOUT_HOST"] == expected


@needs_helm
def test_the_guide_names_what_an_uninstallation_leaves() -> None:
    """Helm deletes hooks only as their policies say."""
    paragraphs = [" ".join(each.split()) for each in SECTION.split("\n\n")]
    [paragraph] = [each for each in paragraphs if each.startswith("`helm uninstall` leaves")]
    hooks = {
        manifest["kind"]: manifest["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        for manifest in render(REQUIRED)
        if "helm.sh/hook" in manifest["metadata"].get("annotations", {})
    }
    left = {kind for kind, policy in hooks.items() if "hook-succeeded" not in policy}
    assert left == {"Job"}
    assert "the job `…-migrate`" in paragraph
    assert hooks["NetworkPolicy"] == "before-hook-creation,hook-succeeded"
    assert "NetworkPolicy" in paragraph


@pytest.mark.parametrize("name", ["migration.enabled", "pods.startupSeconds"])
def test_both_values_of_a_migration_without_a_job_name_each_other(name: str) -> None:
    [comment] = [value.comment for value in VALUES if value.name == name]
    assert {"migration.enabled": "`pods.startupSeconds`", "pods.startupSeconds": "`migration.enabled`"}[name] in comment
    assert (
        "With `migration.enabled: false` the first new pod migrates when it starts:\n`pods.startupSeconds`" in SECTION
    )


@each_page
def test_values_that_the_documentation_names_exist(page: str) -> None:
    groups = "|".join({value.path[0] for value in VALUES if value.is_group})
    named = set(re.findall(rf"[`\s]((?:{groups})\.[A-Za-z.]+\w)(?=[`:=])", page))
    assert len(named) >= 2
    assert named <= {value.name for value in VALUES}

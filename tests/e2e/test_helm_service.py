"""The service under the environment, the files and the probes of the Helm chart, as far as that needs no cluster."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.cli.main import main
from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from app.settings import Settings, find_typos, load_settings, secret_fields, variable_name
from tests.support.clients import open_client
from tests.support.database_owners import as_superuser, create_owned_database, owner_name
from tests.support.factories import ADMIN_KEY, SECRET_KEY, resolve_nothing
from tests.support.helm import (
    NAMESPACE,
    RELEASE,
    REQUIRED,
    SECRETS_FOLDER,
    Manifest,
    get_container,
    get_environment,
    get_manifest,
    list_secret_files,
    merge_values,
    needs_helm,
    render,
)
from tests.support.paths import ROOT
from tests.support.programs import PROMTOOL

pytestmark = needs_helm

METRICS_KEY = "a-metrics-key"
ADAPTER = yaml.safe_load((ROOT / "deploy/helm/prometheus-adapter.yaml").read_text())
VALUES = merge_values(
    REQUIRED,
    {
        "secrets": {"items": {"TOOLSCOUT_METRICS_KEY": {"key": "metrics-key"}}},
        "settings": {"TOOLSCOUT_GLOSSARY_FILE": "/files/glossary.txt", "TOOLSCOUT_CATEGORIES": False},
        "files": {"glossary.txt": "standup = meeting\n"},
        "autoscaling": {"enabled": True},
    },
)


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return render(VALUES)


def prepare_database(postgres: EmbeddedPostgres) -> str:
    """Do what the administrator of an existing Postgres does, and return the owner's URL. There is no schema yet."""
    url = create_owned_database(postgres)
    role = "CREATE ROLE toolscout_app NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL"
    as_superuser(postgres, f"DO $$ BEGIN {role}; END $$", f"GRANT toolscout_app TO {owner_name(url)}")
    return url


@pytest.fixture(scope="module")
def database_url(postgres: EmbeddedPostgres) -> str:
    return prepare_database(postgres)


def enter_container(manifest: Manifest, folder: Path, database_url: str, patch: pytest.MonkeyPatch) -> None:
    """Give this process the environment of a container, and the files that Kubernetes would mount."""
    secrets = {
        "DATABASE_URL": database_url,
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_ADMIN_API_KEY": ADMIN_KEY,
        "TOOLSCOUT_METRICS_KEY": METRICS_KEY,
    }
    for name in list_secret_files(manifest):
        (folder / name).write_text(f"{secrets[name]}\n")
    (folder / "glossary.txt").write_text(VALUES["files"]["glossary.txt"])
    patch.chdir(folder)
    for name, value in get_environment(manifest).items():
        local = value.replace(SECRETS_FOLDER, str(folder)).replace("/files/", f"{folder}/")
        patch.setenv(name, local.replace("/home/toolscout", str(folder)))


@pytest.fixture(params=["web", "worker"])
async def service(
    request: pytest.FixtureRequest,
    manifests: list[Manifest],
    tmp_path: Path,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Manifest, Container]]:
    manifest = get_manifest(manifests, "Deployment", request.param)
    enter_container(manifest, tmp_path, database_url, monkeypatch)
    async with open_container(load_settings(), database_url, resolve_nothing) as opened:
        yield manifest, opened


async def test_the_probes_and_prometheus_are_answered(service: tuple[Manifest, Container]) -> None:
    manifest, container = service
    probes = {name: get_container(manifest)[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    kubelet, bearer = "10.1.2.3:8000", {"Authorization": f"Bearer {METRICS_KEY}"}
    async with open_client(container, Host=kubelet) as client:
        for probe in probes.values():
            answer = await client.get(probe["httpGet"]["path"])
            assert answer.status_code == 200, answer.text
        assert (await client.get("/no-such-path")).status_code == 404
        assert (await client.get("/metrics")).status_code == 401
        scrape = await client.get("/metrics", headers=bearer)
        container.draining.set()
        assert (await client.get(probes["readinessProbe"]["httpGet"]["path"])).status_code == 503
        assert (await client.get(probes["livenessProbe"]["httpGet"]["path"])).status_code == 200
    assert find_scaling_metric(render(VALUES)) in {
        metric.name for metric in text_string_to_metric_families(scrape.text)
    }


def find_scaling_metric(manifests: list[Manifest]) -> str:
    autoscaler = get_manifest(manifests, "HorizontalPodAutoscaler")["spec"]
    [metric] = [each["pods"]["metric"]["name"] for each in autoscaler["metrics"] if each["type"] == "Pods"]
    assert isinstance(metric, str)
    return metric


def test_the_adapter_serves_the_metric_of_the_autoscaler(manifests: list[Manifest]) -> None:
    [rule] = ADAPTER["rules"]["custom"]
    assert rule["name"]["as"] == find_scaling_metric(manifests)
    assert rule["seriesQuery"].startswith(find_scaling_metric(manifests) + "{")


@pytest.mark.needs_promtool
def test_prometheus_accepts_the_queries_of_the_adapter(tmp_path: Path) -> None:
    [rule] = ADAPTER["rules"]["custom"]
    query = rule["metricsQuery"]
    for placeholder, value in {
        "Series": rule["name"]["as"],
        "LabelMatchers": 'namespace="a"',
        "GroupBy": "pod",
    }.items():
        assert f"<<.{placeholder}>>" in query
        query = query.replace(f"<<.{placeholder}>>", value)
    rules = [{"record": f"query:{n}", "expr": each} for n, each in enumerate((query, rule["seriesQuery"]))]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "adapter", "rules": rules}]}))
    program = PROMTOOL.find()
    assert program is not None
    done = subprocess.run(
        [program, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", ["web"], indirect=True)
async def test_pages_answer_to_the_names_of_the_service_in_the_cluster(service: tuple[Manifest, Container]) -> None:
    _, container = service
    name = f"{RELEASE}-toolscout"
    own = [name, f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc", f"{name}.{NAMESPACE}.svc.cluster.local"]
    async with open_client(container) as client:
        answers = {
            host: await client.get("/console/sign-in", headers={"Host": host}) for host in [*own, "evil.example"]
        }
    assert {host: answer.status_code for host, answer in answers.items()} == dict.fromkeys(own, 200) | {
        "evil.example": 421
    }


@pytest.mark.parametrize("component", ["web", "worker"])
def test_the_environment_is_complete_and_holds_only_settings(
    component: str, manifests: list[Manifest], tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_container(get_manifest(manifests, "Deployment", component), tmp_path, database_url, monkeypatch)
    settings = load_settings()
    assert (settings.environment, settings.role) == ("production", component)
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)  # noqa: S104 a container
    assert settings.drain_s == (10 if component == "web" else 0)
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == database_url
    assert (settings.admin_api_key is not None) == (component == "web"), "a worker serves no requests"
    assert settings.metrics_key is not None
    assert settings.categories is False
    assert find_typos() == []
    known = {variable_name(field) for field in Settings.model_fields}
    known |= {f"{variable_name(field)}_FILE" for field in secret_fields()}
    assert get_environment(get_manifest(manifests, "Deployment", component)).keys() <= known


def test_the_job_migrates_as_the_owner_without_any_other_secret(
    manifests: list[Manifest],
    tmp_path: Path,
    postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = get_manifest(manifests, "Job")
    enter_container(job, tmp_path, prepare_database(postgres), monkeypatch)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isupper()) == ["DATABASE_URL"]
    with pytest.raises(SystemExit) as stopped:
        main(get_container(job)["command"][1:])
    assert stopped.value.code == 0
    assert "the schema is at" in capsys.readouterr().out


def test_the_job_refuses_a_superuser(
    manifests: list[Manifest],
    tmp_path: Path,
    empty_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = get_manifest(manifests, "Job")
    enter_container(job, tmp_path, empty_database, monkeypatch)
    with pytest.raises(SystemExit, match="logs in as a superuser, which TOOLSCOUT_ENVIRONMENT=production refuses"):
        main(get_container(job)["command"][1:])


async def test_the_test_of_the_release_passes_and_fails_with_the_service(
    address: str, manifests: list[Manifest]
) -> None:
    """`helm test` runs this program in a pod."""
    _, option, program = get_container(get_manifest(manifests, "Pod"))["command"]

    async def run(url: str) -> int:
        local = program.replace(f"http://{RELEASE}-toolscout:80", url)
        assert local != program
        process = await asyncio.create_subprocess_exec(
            sys.executable, option, local, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{address}/readyz")).status_code == 200
    assert await run(address) == 0
    assert await run(f"{address}/missing") != 0

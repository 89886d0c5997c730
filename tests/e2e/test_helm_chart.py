"""What the Helm chart creates: objects that Kubernetes accepts, that find each other, and that hold no secret."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from app import __version__
from app.api.middleware.body_limit import MAX_PUSH_BYTES
from app.cli.main import build_cli
from app.cli.serve import _GRACE_S
from app.settings import Settings
from docs.generators.helm import CHART
from tests.support.helm import (
    EVERYTHING,
    KUBERNETES_VERSIONS,
    NAMESPACE,
    RELEASE,
    REQUIRED,
    SECRETS_FOLDER,
    SWITCHES_OFF,
    HelmError,
    Manifest,
    Values,
    get_component,
    get_container,
    get_environment,
    get_manifest,
    get_pod,
    lint,
    list_pod_manifests,
    list_secret_files,
    merge_values,
    needs_helm,
    nest,
    render,
    render_text,
    secret_variables,
    validate_manifest,
)
from tests.support.paths import ROOT

pytestmark = needs_helm

DOCKERFILE = (ROOT / "Dockerfile").read_text()
METRICS_KEY: Values = {"secrets": {"items": {"TOOLSCOUT_METRICS_KEY": {"key": "metrics-key"}}}}
ALL_SECRETS: Values = {
    "secrets": {
        "items": {name: {"name": name.lower().replace("_", "-"), "key": "value"} for name in secret_variables()}
    }
}
"""Each from a Secret of its own, such as the URLs of a pooler and of a read replica."""
PLACEMENT = ("nodeSelector", "tolerations", "affinity", "priorityClassName")
VALUE_SETS: Mapping[str, Values] = {
    "required values": REQUIRED,
    "everything": EVERYTHING,
    "everything, switches off": merge_values(EVERYTHING, SWITCHES_OFF),
    "switches off": merge_values(REQUIRED, SWITCHES_OFF),
    "every secret": merge_values(REQUIRED, ALL_SECRETS),
    "an existing account": merge_values(REQUIRED, {"serviceAccount": {"create": False, "name": "scout"}}),
    "CPU alone": merge_values(REQUIRED, {"autoscaling": {"enabled": True, "requestsInFlight": None}}),
    "requests alone": merge_values(REQUIRED, {"autoscaling": {"enabled": True, "cpuPercent": None}}),
    "metrics without a key": merge_values(
        REQUIRED, {"serviceMonitor": {"enabled": True}, "networkPolicy": {"fromNamespaces": ["monitoring"]}}
    ),
}


@pytest.mark.parametrize(
    ("name", "kubernetes"),
    [*((name, KUBERNETES_VERSIONS[-1]) for name in VALUE_SETS), ("everything", KUBERNETES_VERSIONS[0])],
)
def test_kubernetes_knows_every_field_of_every_object(name: str, kubernetes: str) -> None:
    manifests = render(VALUE_SETS[name], kubernetes=kubernetes)
    assert len(manifests) >= 4
    for manifest in manifests:
        validate_manifest(manifest, kubernetes)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", ["spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet"]),
        ("Deployment", ["spec", "template", "spec", "volumes", 1, "projected", "sources", 0, "secret", "items", 0]),
        ("Deployment", ["spec", "template", "spec", "securityContext"]),
        ("Job", ["spec"]),
        ("NetworkPolicy", ["spec", "egress", 0]),
        ("HorizontalPodAutoscaler", ["spec", "metrics", 0, "pods"]),
        ("PodDisruptionBudget", ["spec"]),
        ("Ingress", ["spec", "rules", 0, "http", "paths", 0]),
        ("ServiceMonitor", ["spec", "endpoints", 0]),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value[-1]),
)
def test_the_validation_finds_a_misspelt_field(kind: str, path: list[str | int]) -> None:
    manifest = next(each for each in render(EVERYTHING) if each["kind"] == kind)
    copy: Any = json.loads(json.dumps(manifest))
    validate_manifest(copy, KUBERNETES_VERSIONS[-1])
    place = copy
    for step in path:
        place = place[step]
    place["misspelt"] = 1
    with pytest.raises(jsonschema.ValidationError, match="'misspelt' was unexpected"):
        validate_manifest(copy, KUBERNETES_VERSIONS[-1])


@pytest.mark.parametrize("name", ["required values", "everything", "everything, switches off"])
def test_helm_finds_nothing_to_complain_about(name: str) -> None:
    assert "0 chart(s) failed" in (report := lint(VALUE_SETS[name]))
    assert "WARNING" not in report


def test_the_chart_is_for_this_version_and_for_the_kubernetes_that_is_tested() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["kubeVersion"] == f">={KUBERNETES_VERSIONS[0]}.0-0"
    assert get_container(get_manifest(render(REQUIRED), "Deployment", "web"))["image"].endswith(f":{__version__}")


@pytest.mark.parametrize("name", VALUE_SETS)
def test_no_object_holds_a_secret(name: str) -> None:
    manifests = render(VALUE_SETS[name])
    assert "Secret" not in {manifest["kind"] for manifest in manifests}
    for manifest in list_pod_manifests(manifests):
        environment = {each["name"]: each for each in get_container(manifest).get("env", [])}
        assert environment.keys() & set(secret_variables()) == set()


@pytest.mark.parametrize("component", ["web", "worker", "migration"])
def test_each_container_reads_its_secrets_as_files(component: str) -> None:
    kind = "Job" if component == "migration" else "Deployment"
    manifest = get_manifest(render(VALUE_SETS["every secret"]), kind, component)
    files = list_secret_files(manifest)
    variables = {
        "web": set(secret_variables()),
        "worker": set(secret_variables()) - {"TOOLSCOUT_ADMIN_API_KEY"},
        "migration": {"DATABASE_URL"},
    }[component]
    assert files == {name: (name.lower().replace("_", "-"), "value") for name in variables}
    paths = {name: value for name, value in get_environment(manifest).items() if name.endswith("_FILE")}
    assert paths == {f"{name}_FILE": f"{SECRETS_FOLDER}/{name}" for name in variables}
    [mount] = [mount for mount in get_container(manifest)["volumeMounts"] if mount["mountPath"] == SECRETS_FOLDER]
    assert mount["readOnly"] is True


def test_a_secret_without_a_name_comes_from_the_existing_one() -> None:
    files = list_secret_files(get_manifest(render(EVERYTHING), "Deployment", "web"))
    assert files["TOOLSCOUT_METRICS_KEY"] == ("tool-secrets", "metrics")
    assert files["TOOLSCOUT_SECRET_KEY"] == ("tool-secrets", "secret-key")
    assert files["DATABASE_URL"] == ("postgres-app", "uri")


def test_migrations_can_use_another_url_of_the_database() -> None:
    assert list_secret_files(get_manifest(render(EVERYTHING), "Job")) == {"DATABASE_URL": ("postgres-owner", "uri")}
    assert list_secret_files(get_manifest(render(REQUIRED), "Job")) == {"DATABASE_URL": ("toolscout", "database-url")}


DIRECT_URL: Values = {"secrets": {"items": {"TOOLSCOUT_LISTEN_DATABASE_URL": {"name": "direct", "key": "uri"}}}}
POOLERS = [
    {"settings": {"TOOLSCOUT_DATABASE_POOLER": "transaction"}},
    {"web": {"settings": {"TOOLSCOUT_DATABASE_POOLER": "transaction_prepared"}}},
    {"worker": {"settings": {"TOOLSCOUT_DATABASE_POOLER": "transaction"}}},
]


@pytest.mark.parametrize("pooler", POOLERS, ids=json.dumps)
def test_migrations_go_past_a_pooler(pooler: Values) -> None:
    values = merge_values(REQUIRED, DIRECT_URL, pooler)
    assert list_secret_files(get_manifest(render(values), "Job")) == {"DATABASE_URL": ("direct", "uri")}
    named = merge_values(values, {"migration": {"databaseUrl": {"key": "owner"}}})
    assert list_secret_files(get_manifest(render(named), "Job")) == {"DATABASE_URL": ("toolscout", "owner")}
    web = list_secret_files(get_manifest(render(values), "Deployment", "web"))
    assert web["DATABASE_URL"] == ("toolscout", "database-url")
    assert web["TOOLSCOUT_LISTEN_DATABASE_URL"] == ("direct", "uri")


@pytest.mark.parametrize("pooler", POOLERS, ids=json.dumps)
def test_a_pooler_needs_the_url_of_postgres_itself(pooler: Values) -> None:
    with pytest.raises(
        HelmError, match=r"secrets\.items\.TOOLSCOUT_LISTEN_DATABASE_URL is missing: .* past the pooler"
    ):
        render_text(merge_values(REQUIRED, pooler))


def test_without_a_pooler_migrations_use_the_url_of_the_pods() -> None:
    values = merge_values(REQUIRED, DIRECT_URL, {"settings": {"TOOLSCOUT_DATABASE_POOLER": "none"}})
    assert list_secret_files(get_manifest(render(values), "Job")) == {"DATABASE_URL": ("toolscout", "database-url")}


@pytest.mark.parametrize("name", VALUE_SETS)
def test_pods_meet_the_restricted_security_standard_of_kubernetes(name: str) -> None:
    manifests = list_pod_manifests(render(VALUE_SETS[name]))
    assert len(manifests) >= 3
    for manifest in manifests:
        pod, container = get_pod(manifest), get_container(manifest)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["automountServiceAccountToken"] is False
        kinds = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "emptyDir", "projected", "persistentVolumeClaim"}
        assert container["resources"]["limits"]["memory"]


def test_the_user_and_the_data_folder_are_those_of_the_image() -> None:
    [user] = re.findall(r"useradd .*--uid (\d+)", DOCKERFILE)
    [data_dir] = re.findall(r"TOOLSCOUT_DATA_DIR=(\S+)", DOCKERFILE)
    for manifest in list_pod_manifests(render(REQUIRED)):
        assert get_pod(manifest)["securityContext"]["runAsUser"] == int(user)
    for component in ("web", "worker"):
        manifest = get_manifest(render(REQUIRED), "Deployment", component)
        assert get_environment(manifest)["TOOLSCOUT_DATA_DIR"] == data_dir
        # the image holds the graph of the local model there: nothing is mounted over it
        mounts = {mount["mountPath"] for mount in get_container(manifest)["volumeMounts"]}
        assert mounts == {"/tmp", SECRETS_FOLDER}  # noqa: S108 in a container
        # the files of secrets belong to root, and are readable for this group
        [secrets] = [volume["projected"] for volume in get_pod(manifest)["volumes"] if volume["name"] == "secrets"]
        assert secrets["defaultMode"] == 0o440
        assert get_pod(manifest)["securityContext"]["fsGroup"] == get_pod(manifest)["securityContext"]["runAsGroup"]


def test_the_variables_that_kubernetes_makes_of_services_do_not_reach_the_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Service of the name `toolscout` would become a port number that is none."""
    monkeypatch.setenv("TOOLSCOUT_PORT", "tcp://10.0.0.1:80")
    with pytest.raises(ValueError, match="port"):
        Settings(_env_file=None)
    for manifest in list_pod_manifests(render(EVERYTHING)):
        assert get_pod(manifest)["enableServiceLinks"] is False


@pytest.mark.parametrize("component", ["web", "worker", "migration"])
def test_containers_run_commands_that_exist(component: str) -> None:
    kind, expected = ("Job", "migrate") if component == "migration" else ("Deployment", "serve")
    program, *arguments = get_container(get_manifest(render(REQUIRED), kind, component))["command"]
    assert program == "toolscout"
    cli = build_cli()
    name, command, options = cli.resolve_command(cli.make_context(program, list(arguments)), arguments)
    assert name == expected
    assert command is not None
    command.make_context(name, options)


def test_the_ports_agree() -> None:
    manifests = render(merge_values(EVERYTHING, {"fullnameOverride": "", "service": {"port": 8080}}))
    for component in ("web", "worker"):
        deployment = get_manifest(manifests, "Deployment", component)
        assert get_container(deployment)["ports"] == [
            {"name": "http", "containerPort": int(get_environment(deployment)["TOOLSCOUT_PORT"])}
        ]
        [port] = get_manifest(manifests, "Service", component)["spec"]["ports"]
        assert (port["name"], port["targetPort"]) == ("http", "http")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert get_container(deployment)[probe]["httpGet"]["port"] == "http"
    [ingress_rule] = list_policies(manifests)[0]["spec"]["ingress"]
    assert ingress_rule["ports"] == [{"protocol": "TCP", "port": "http"}]
    [endpoint] = get_manifest(manifests, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] == "http"
    service = get_manifest(manifests, "Service", "web")
    assert service["spec"]["ports"][0]["port"] == 8080
    for rule in get_manifest(manifests, "Ingress")["spec"]["rules"]:
        [path] = rule["http"]["paths"]
        assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    assert (
        f"http://{service['metadata']['name']}:8080/readyz"
        in get_container(get_manifest(manifests, "Pod"))["command"][2]
    )


def list_policies(manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy"]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def test_every_selector_finds_the_pods_that_it_is_for_and_no_others() -> None:
    manifests = render(EVERYTHING)
    pods = {
        str(get_component(manifest)): manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "Job")
    }
    pods["test"] = get_manifest(manifests, "Pod")["metadata"]["labels"]
    assert sorted(pods) == ["migration", "test", "web", "worker"]
    other_release = get_manifest(render(EVERYTHING, "other"), "Deployment", "web")["spec"]["template"]["metadata"]
    pods["web of another release"] = other_release["labels"]

    def select_pods(selector: Mapping[str, Any]) -> set[str]:
        return {name for name, labels in pods.items() if selects(selector, labels)}

    for component in ("web", "worker"):
        for kind in ("Deployment", "PodDisruptionBudget"):
            assert select_pods(get_manifest(manifests, kind, component)["spec"]["selector"]) == {component}
        service = get_manifest(manifests, "Service", component)
        assert select_pods({"matchLabels": service["spec"]["selector"]}) == {component}
    [spread] = get_pod(get_manifest(manifests, "Deployment", "web"))["topologySpreadConstraints"]
    assert select_pods(spread["labelSelector"]) == {"web"}
    served, migrated = (select_pods(policy["spec"]["podSelector"]) for policy in list_policies(manifests))
    assert (served, migrated) == ({"web", "worker"}, {"migration"})
    scraped = get_manifest(manifests, "ServiceMonitor")["spec"]["selector"]
    services = [
        each for each in manifests if each["kind"] == "Service" and selects(scraped, each["metadata"]["labels"])
    ]
    assert sorted(str(get_component(service)) for service in services) == ["web", "worker"]


def test_every_pod_runs_on_the_nodes_that_are_named_for_it() -> None:
    """On a cluster whose nodes are all tainted, a job that tolerates nothing keeps every upgrade waiting."""
    manifests = {str(get_component(each)): each for each in list_pod_manifests(render(EVERYTHING))}
    for component, values in {"web": "web", "worker": "worker", "migration": "migration", "test": "migration"}.items():
        expected = {name: EVERYTHING[values][name] for name in PLACEMENT}
        pod = get_pod(manifests.pop(component))
        assert {name: pod[name] for name in PLACEMENT} == expected
    assert manifests == {}
    for manifest in list_pod_manifests(render(REQUIRED)):
        assert get_pod(manifest).keys() & set(PLACEMENT) == set()


def test_an_upgrade_never_has_fewer_pods_and_each_has_the_time_to_stop() -> None:
    for values in (REQUIRED, EVERYTHING, merge_values(REQUIRED, {"web": {"drainSeconds": 60}})):
        for component in ("web", "worker"):
            manifest = get_manifest(render(values), "Deployment", component)
            assert manifest["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
            drain_s = float(get_environment(manifest)["TOOLSCOUT_DRAIN_S"])
            margin_s = get_pod(manifest)["terminationGracePeriodSeconds"] - drain_s
            assert margin_s >= 15 > _GRACE_S, "as with docker compose: see the guide to operations, Stopping"


@pytest.mark.parametrize("component", ["web", "worker"])
def test_a_pod_that_is_not_ready_gets_no_requests_and_one_that_does_not_answer_is_restarted(component: str) -> None:
    """A restart does not help while Postgres is away, and a busy moment is no reason for one."""
    container = get_container(get_manifest(render(REQUIRED), "Deployment", component))
    ready, alive = container["readinessProbe"], container["livenessProbe"]
    assert (ready["httpGet"]["path"], alive["httpGet"]["path"]) == ("/readyz", "/healthz")
    assert ready["periodSeconds"] * ready["failureThreshold"] <= 10
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 60


def test_pods_that_are_not_ready_keep_no_node_from_being_drained() -> None:
    budgets = [each["spec"] for each in render(REQUIRED) if each["kind"] == "PodDisruptionBudget"]
    assert [(each["maxUnavailable"], each["unhealthyPodEvictionPolicy"]) for each in budgets] == [
        (1, "AlwaysAllow")
    ] * 2


def test_temporary_files_take_no_memory_of_the_containers() -> None:
    for component in ("web", "worker"):
        pod = get_pod(get_manifest(render(REQUIRED), "Deployment", component))
        [volume] = [volume for volume in pod["volumes"] if volume["name"] == "tmp"]
        assert volume["emptyDir"] == {"sizeLimit": "512Mi"}, "on the disk of the node"


def test_a_pod_may_take_its_time_to_start() -> None:
    for seconds in (10, 121, 900):
        values = merge_values(REQUIRED, {"pods": {"startupSeconds": seconds}})
        probe = get_container(get_manifest(render(values), "Deployment", "web"))["startupProbe"]
        assert seconds <= probe["periodSeconds"] * probe["failureThreshold"] < seconds + 2


def test_the_autoscaler_owns_the_number_of_web_pods_alone() -> None:
    manifests = render(EVERYTHING)
    autoscaler = get_manifest(manifests, "HorizontalPodAutoscaler")["spec"]
    web = get_manifest(manifests, "Deployment", "web")
    assert autoscaler["scaleTargetRef"] == {
        "apiVersion": web["apiVersion"],
        "kind": "Deployment",
        "name": web["metadata"]["name"],
    }
    assert "replicas" not in web["spec"], "each upgrade would undo what the autoscaler has done"
    assert get_manifest(manifests, "Deployment", "worker")["spec"]["replicas"] == 4
    assert get_manifest(render(REQUIRED), "Deployment", "web")["spec"]["replicas"] == 2
    assert "HorizontalPodAutoscaler" not in {manifest["kind"] for manifest in render(REQUIRED)}


def test_the_autoscaler_counts_what_it_is_told_to() -> None:
    def list_metrics(**autoscaling: Any) -> list[str]:
        values = merge_values(REQUIRED, {"autoscaling": {"enabled": True, **autoscaling}})
        return [each["type"] for each in get_manifest(render(values), "HorizontalPodAutoscaler")["spec"]["metrics"]]

    assert list_metrics() == ["Pods", "Resource"]
    assert list_metrics(requestsInFlight=None) == ["Resource"]
    assert list_metrics(cpuPercent=None) == ["Pods"]


def test_migrations_run_before_anything_of_the_release_exists() -> None:
    manifests = render(merge_values(EVERYTHING, {"extraVolumes": [], "extraVolumeMounts": []}))
    hooks = [
        each for each in manifests if "pre-install" in each["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    ]
    assert {hook["kind"]: hook["metadata"]["annotations"]["helm.sh/hook"] for hook in hooks} == {
        "Job": "pre-install,pre-upgrade",
        "NetworkPolicy": "pre-install,pre-upgrade",
    }
    job, policy = get_manifest(hooks, "Job"), get_manifest(hooks, "NetworkPolicy")
    weights = [int(hook["metadata"]["annotations"]["helm.sh/hook-weight"]) for hook in (policy, job)]
    assert weights == sorted(set(weights)), "the policy comes first"
    policies = [hook["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for hook in (policy, job)]
    assert policies == ["before-hook-creation,hook-succeeded", "before-hook-creation"], "the log of the job stays"
    pod = get_pod(job)
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} == {"emptyDir", "projected"}
    assert "serviceAccountName" not in pod, "the account is created after the job"
    existing = get_pod(get_manifest(render(VALUE_SETS["an existing account"]), "Job"))
    assert existing["serviceAccountName"] == "scout"
    assert job["spec"]["activeDeadlineSeconds"] == 600


def test_a_migration_that_fails_is_tried_again_in_a_pod_of_its_own() -> None:
    """Postgres may be away for a moment. Pods that failed stay with their logs; a container that restarts loses it."""
    job = get_manifest(render(REQUIRED), "Job")
    assert job["spec"]["backoffLimit"] >= 1
    assert get_pod(job)["restartPolicy"] == "Never"


def test_pods_are_replaced_when_a_file_changes() -> None:
    def render_pods(files: Mapping[str, str]) -> Manifest:
        template = get_manifest(render(merge_values(REQUIRED, {"files": files})), "Deployment", "web")["spec"][
            "template"
        ]
        assert isinstance(template, dict)
        return template

    before, after = render_pods({"glossary.txt": "a = b"}), render_pods({"glossary.txt": "a = c"})
    assert before["spec"] == after["spec"]
    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
    assert before == render_pods({"glossary.txt": "a = b"})


def test_the_containers_see_the_files() -> None:
    manifests = render(EVERYTHING)
    files = get_manifest(manifests, "ConfigMap")
    assert files["data"] == EVERYTHING["files"]
    for component in ("web", "worker"):
        pod = get_pod(manifest := get_manifest(manifests, "Deployment", component))
        assert {"name": "files", "configMap": {"name": files["metadata"]["name"]}} in pod["volumes"]
        assert {"name": "files", "mountPath": "/files", "readOnly": True} in get_container(manifest)["volumeMounts"]
    assert "ConfigMap" not in {manifest["kind"] for manifest in render(REQUIRED)}


def test_pods_accept_connections_from_named_namespaces_alone() -> None:
    def list_sources(values: Values) -> list[Any]:
        served, migrated = list_policies(render(values))
        assert migrated["spec"]["policyTypes"] == served["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in migrated["spec"], "nobody connects to the job"
        [rule] = served["spec"]["ingress"]
        assert isinstance(rule["from"], list)
        return rule["from"]

    own: list[Any] = [{"podSelector": {}}]
    assert list_sources(REQUIRED) == own
    namespaces = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
        for name in ("ingress-nginx", "monitoring")
    ]
    assert list_sources(EVERYTHING) == [*own, *namespaces, {"ipBlock": {"cidr": "10.0.4.0/22"}}]
    assert list_sources(merge_values(REQUIRED, {"networkPolicy": {"fromNamespaces": [NAMESPACE]}})) == own


@pytest.mark.parametrize(
    "sources",
    [
        {"fromNamespaces": ["ingress-nginx"]},
        {"fromNamespaces": [NAMESPACE]},
        {"fromPeers": [{"ipBlock": {"cidr": "10.0.4.0/22"}}]},
        {"enabled": False},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("client", ["ingress", "serviceMonitor"])
def test_clients_may_be_anywhere_once_it_is_said_where(client: str, sources: Values) -> None:
    """Also in the namespace of the release, and on addresses that belong to no pod."""
    hosts = {"ingress": {"hosts": ["tools.example.com"]}}
    values = merge_values(REQUIRED, METRICS_KEY, hosts, nest([client, "enabled"], True))
    with pytest.raises(HelmError, match=f"are empty: name the namespace of .*, even if it is {NAMESPACE}"):
        render_text(values)
    kinds = {manifest["kind"] for manifest in render(merge_values(values, {"networkPolicy": sources}))}
    assert {"ingress": "Ingress", "serviceMonitor": "ServiceMonitor"}[client] in kinds


def test_pods_reach_name_servers_postgres_and_public_addresses() -> None:
    served, migrated = (policy["spec"]["egress"] for policy in list_policies(render(REQUIRED)))
    names, postgres, public = served
    assert {(port["protocol"], port["port"]) for port in names["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert postgres == {"ports": [{"protocol": "TCP", "port": 5432}]}
    [v4, v6] = [peer["ipBlock"] for peer in public["to"]]
    assert (v4["cidr"], v6["cidr"]) == ("0.0.0.0/0", "::/0")
    shared, local = ["100.64.0.0/10"], ["127.0.0.0/8", "169.254.0.0/16"]
    assert {*v4["except"]} == {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", *shared, *local}
    assert {*v6["except"]} == {"fc00::/7", "fe80::/10"}
    assert migrated == [names, postgres]
    served, migrated = (policy["spec"]["egress"] for policy in list_policies(render(EVERYTHING)))
    ports = [{"protocol": "TCP", "port": port} for port in (5432, 6432)]
    assert served[1:] == [
        {"ports": ports, "to": EVERYTHING["networkPolicy"]["postgresPeers"]},
        *EVERYTHING["networkPolicy"]["extraEgress"],
    ]
    assert migrated == served, "the job may need the same name servers, and the same way to Postgres"


def test_the_ingress_waits_for_slow_tools_and_takes_whole_lists() -> None:
    values = merge_values(EVERYTHING, {"ingress": {"annotations": {}}})
    ingress = get_manifest(render(values), "Ingress")
    annotations = {name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}
    assert annotations["proxy-buffering"] == "off"
    [limit] = [entry.le for entry in Settings.model_fields["max_call_timeout_s"].metadata if hasattr(entry, "le")]
    assert int(annotations["proxy-read-timeout"]) > limit
    assert annotations["proxy-body-size"] == f"{math.ceil(MAX_PUSH_BYTES / 2**20)}m"
    assert ingress["spec"]["tls"] == [{"secretName": "tools-tls", "hosts": values["ingress"]["hosts"]}]
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == values["ingress"]["hosts"]


def test_prometheus_sends_the_key_under_the_job_that_the_alerts_expect() -> None:
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    manifests = render(EVERYTHING)
    monitor = get_manifest(manifests, "ServiceMonitor")
    job = get_manifest(manifests, "Service", "web")["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert set(re.findall(r'job="(\w+)"', alerts)) == {job}
    [endpoint] = monitor["spec"]["endpoints"]
    name, key = list_secret_files(get_manifest(manifests, "Deployment", "web"))["TOOLSCOUT_METRICS_KEY"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": name, "key": key}}
    [endpoint] = get_manifest(render(VALUE_SETS["metrics without a key"]), "ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in endpoint


@pytest.mark.parametrize("release", ["toolscout", "a", "x" * 53, "2026-chat", "2toolscout"])
def test_names_fit_whatever_the_release_is_called(release: str) -> None:
    manifests = render(EVERYTHING | {"fullnameOverride": ""}, release)
    for manifest in manifests:
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())
    names = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Deployment"}
    expected = {
        "toolscout": "toolscout",
        "a": "a-toolscout",
        "x" * 53: "x" * 50,
        "2026-chat": "toolscout-2026-chat",
        "2toolscout": "toolscout-2toolscout",
    }[release]
    assert names == {f"{expected}-web", f"{expected}-worker"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"secrets": REQUIRED["secrets"]}, "image.repository is missing: build the image"),
        ({"image": REQUIRED["image"]}, r"secrets.existingSecret is missing: .* \(needed for DATABASE_URL\)"),
        *(
            (merge_values(REQUIRED, nest(["secrets", "items", name], None)), f"secrets.items.{name} is missing")
            for name in ("DATABASE_URL", "TOOLSCOUT_SECRET_KEY", "TOOLSCOUT_ADMIN_API_KEY")
        ),
        (merge_values(EVERYTHING, {"ingress": {"hosts": []}}), "ingress.hosts is empty"),
        (
            merge_values(REQUIRED, {"ingress": {"enabled": True, "hosts": ["tools.example.com"]}}),
            "through the Ingress everybody could read /metrics",
        ),
        *(
            (
                merge_values(REQUIRED, {"service": {"type": kind}}),
                f"through a Service of type {kind} everybody could read /metrics",
            )
            for kind in ("LoadBalancer", "NodePort")
        ),
        (
            merge_values(
                EVERYTHING,
                {"networkPolicy": {"fromNamespaces": [], "fromPeers": []}, "serviceMonitor": {"enabled": False}},
            ),
            "name the namespace of the ingress controller",
        ),
        (merge_values(REQUIRED, {"serviceMonitor": {"enabled": True}}), "name the namespace of Prometheus"),
        (
            merge_values(REQUIRED, {"autoscaling": {"enabled": True, "requestsInFlight": None, "cpuPercent": None}}),
            "autoscaling has no metric",
        ),
        (merge_values(EVERYTHING, {"autoscaling": {"maxReplicas": 1}}), "minReplicas is above autoscaling.maxReplicas"),
    ],
)
def test_what_is_missing_is_named(values: Values, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render_text(values)


@pytest.mark.parametrize("kind", ["ClusterIP", "LoadBalancer", "NodePort"])
def test_a_service_of_each_type_is_created_where_metrics_have_a_key(kind: str) -> None:
    manifests = render(merge_values(REQUIRED, METRICS_KEY, {"service": {"type": kind}}))
    assert get_manifest(manifests, "Service")["spec"]["type"] == kind
    if kind == "ClusterIP":
        assert get_manifest(render(REQUIRED), "Service")["spec"]["type"] == kind, "nobody outside reaches it"


def test_every_secret_in_a_secret_of_its_own_needs_no_common_one() -> None:
    values = merge_values({"image": REQUIRED["image"]}, ALL_SECRETS)
    assert "existingSecret" not in json.dumps(values)
    assert len(list_secret_files(get_manifest(render(values), "Deployment", "web"))) == len(secret_variables())


def test_the_release_and_its_namespace_are_in_the_names_that_the_service_answers_to() -> None:
    environment = get_environment(get_manifest(render(REQUIRED), "Deployment", "web"))
    name = f"{RELEASE}-toolscout.{NAMESPACE}"
    assert environment["TOOLSCOUT_SERVED_HOSTS"] == f"{name},{name}.svc"
    environment = get_environment(get_manifest(render(EVERYTHING), "Deployment", "web"))
    assert environment["TOOLSCOUT_SERVED_HOSTS"].split(",") == [
        f"finder.{NAMESPACE}",
        f"finder.{NAMESPACE}.svc",
        *EVERYTHING["ingress"]["hosts"],
        "tools.internal.example.com",
    ]

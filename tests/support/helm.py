"""The Helm chart, rendered by Helm itself, and checked against the schemas of the Kubernetes API.

The program comes with the packages of `tests/third_party/requirements.lock`, for Linux on x86-64 alone.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import orjson
import pytest
import yaml

from app.settings import secret_fields, variable_name
from docs.generators.helm import CHART

Manifest = dict[str, Any]
Values = dict[str, Any]

HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed: PyPI has it for Linux on x86-64 alone")

KUBERNETES_VERSIONS = ("1.27", "1.37")
"""The oldest that the chart allows, and the newest whose schemas the tests have."""
RELEASE, NAMESPACE = "chat", "tools"
SECRETS_FOLDER = "/etc/toolscout/secrets"
REQUIRED: Values = {
    "image": {"repository": "registry.example.com/toolscout"},
    "secrets": {"existingSecret": "toolscout"},
}
EVERYTHING: Values = {
    "fullnameOverride": "finder",
    "image": {
        "repository": "registry.example.com:5000/tools/scout",
        "tag": "1.2.3",
        "digest": f"sha256:{'0123456789abcdef' * 4}",
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "registry"}],
    },
    "secrets": {
        "existingSecret": "tool-secrets",
        "items": {
            "DATABASE_URL": {"name": "postgres-app", "key": "uri"},
            "TOOLSCOUT_METRICS_KEY": {"key": "metrics"},
            "OPENAI_API_KEY": {"name": "embedder", "key": "api-key"},
        },
    },
    "settings": {"TOOLSCOUT_EMBEDDING_CACHE_MAX_ROWS": 2_000_000, "TOOLSCOUT_TRUSTED_PROXIES": "10.0.0.0/8"},
    "files": {"glossary.txt": "standup = meeting\n", "stdio.json": '{"clock": {"argv": ["clock"]}}'},
    "extraEnv": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_on"}],
    "extraVolumes": [{"name": "model", "persistentVolumeClaim": {"claimName": "model"}}],
    "extraVolumeMounts": [{"name": "model", "mountPath": "/model", "readOnly": True}],
    "web": {
        "replicas": 3,
        "settings": {
            "TOOLSCOUT_SERVED_HOSTS": "tools.internal.example.com",
            "TOOLSCOUT_GLOSSARY_FILE": "/files/glossary.txt",
        },
        "drainSeconds": 4.5,
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "4", "memory": "3Gi"}},
        "topologySpreadConstraints": [
            {"topologyKey": "kubernetes.io/hostname", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "chat", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}]
                }
            }
        },
        "priorityClassName": "chat",
    },
    "worker": {
        "replicas": 4,
        "settings": {"TOOLSCOUT_INDEX_CONCURRENCY": 8, "TOOLSCOUT_LEARN_FROM_USE": False},
        "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
        "topologySpreadConstraints": [],
        "nodeSelector": {"pool": "batch"},
        "tolerations": [{"key": "batch", "operator": "Equal", "value": "yes"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "batch",
    },
    "migration": {
        "databaseUrl": {"name": "postgres-owner", "key": "uri"},
        "deadlineSeconds": 600,
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"pool": "jobs"},
        "tolerations": [{"key": "jobs", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "jobs",
    },
    "pods": {
        "labels": {"team": "chat"},
        "annotations": {"example.com/owner": "chat"},
        "startupSeconds": 301,
        "tmpSize": "1Gi",
        "securityContext": {"runAsUser": 20000, "supplementalGroups": [30000]},
        "containerSecurityContext": {"runAsNonRoot": True},
    },
    "serviceAccount": {"name": "scout", "annotations": {"example.com/role": "reader"}},
    "service": {"type": "NodePort", "port": 8080, "annotations": {"example.com/internal": "true"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "hosts": ["tools.example.com", "tools.example.org"],
        "tlsSecret": "tools-tls",
        "annotations": {"cert-manager.io/cluster-issuer": "internal"},
    },
    "autoscaling": {
        "enabled": True,
        "minReplicas": 3,
        "maxReplicas": 20,
        "requestsInFlight": 40,
        "cpuPercent": 60,
        "scaleDownSeconds": 600,
    },
    "disruptionBudget": {"maxUnavailable": "25%"},
    "networkPolicy": {
        "fromNamespaces": ["ingress-nginx", "monitoring"],
        "fromPeers": [{"ipBlock": {"cidr": "10.0.4.0/22"}}],
        "postgresPorts": [5432, 6432],
        "postgresPeers": [{"ipBlock": {"cidr": "10.0.8.0/24"}}],
        "toPublicAddresses": False,
        "extraEgress": [
            {
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "embedder"}}}],
                "ports": [{"protocol": "TCP", "port": 8080}],
            }
        ],
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"},
}
"""Every value but a few switches, each with another value than its default."""
SWITCHES_OFF: Values = {
    "migration": {"enabled": False},
    "serviceAccount": {"create": False},
    "disruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
}

_SERVICE_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "ServiceMonitor"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["selector", "endpoints"],
            "properties": {
                "jobLabel": {"type": "string"},
                "selector": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
                },
                "endpoints": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "port": {"type": "string"},
                            "path": {"type": "string"},
                            "interval": {"type": "string", "pattern": "^([0-9]+(ms|s|m))+$"},
                            "authorization": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {
                                    "type": {"type": "string"},
                                    "credentials": {
                                        "type": "object",
                                        "additionalProperties": False,
                                        "required": ["key"],
                                        "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The part of the Prometheus operator's own resource that the chart uses. Kubernetes does not describe it."""


class HelmError(Exception):
    """Helm refused the values, or a template."""


def merge_values(*layers: Mapping[str, Any]) -> Values:
    """Merge values as Helm does: objects member by member, everything else as a whole."""
    merged: Values = {}
    for layer in layers:
        for name, value in layer.items():
            old = merged.get(name)
            merged[name] = merge_values(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def render_text(values: Mapping[str, Any], release: str = RELEASE, *, kubernetes: str = KUBERNETES_VERSIONS[-1]) -> str:
    """Return what Helm would send to Kubernetes, hooks included."""
    return _run_helm(("template", release, str(CHART), "--namespace", NAMESPACE, "--kube-version", kubernetes), values)


def render(
    values: Mapping[str, Any], release: str = RELEASE, *, kubernetes: str = KUBERNETES_VERSIONS[-1]
) -> list[Manifest]:
    return parse_manifests(render_text(values, release, kubernetes=kubernetes))


def lint(values: Mapping[str, Any]) -> str:
    return _run_helm(("lint", "--strict", str(CHART)), values)


def parse_manifests(text: str) -> list[Manifest]:
    return [manifest for manifest in yaml.safe_load_all(text) if manifest is not None]


def validate_manifest(manifest: Manifest, kubernetes: str) -> None:
    """Raise `jsonschema.ValidationError` for an unknown field, a missing one, or one of another type."""
    if manifest["kind"] == "ServiceMonitor":
        jsonschema.validate(manifest, _SERVICE_MONITOR)
    else:
        kubernetes_validate.validate(manifest, kubernetes, strict=True)


def get_manifest(manifests: Sequence[Manifest], kind: str, component: str | None = None) -> Manifest:
    """Return the only manifest of a kind, and of a component of Toolscout if given."""
    [found] = [each for each in manifests if each["kind"] == kind and component in (None, get_component(each))]
    return found


def get_component(manifest: Manifest) -> str | None:
    component: str | None = manifest["metadata"]["labels"].get("app.kubernetes.io/component")
    return component


def get_pod(manifest: Manifest) -> dict[str, Any]:
    """Return the specification of the pods that a manifest describes."""
    specification: dict[str, Any] = manifest["spec"]
    return specification if manifest["kind"] == "Pod" else specification["template"]["spec"]


def get_container(manifest: Manifest) -> dict[str, Any]:
    [container] = get_pod(manifest)["containers"]
    assert isinstance(container, dict)
    return container


def get_environment(manifest: Manifest) -> dict[str, str]:
    variables = get_container(manifest)["env"]
    environment = {variable["name"]: variable["value"] for variable in variables}
    assert len(environment) == len(variables), "each variable is set once"
    return environment


def list_secret_files(manifest: Manifest) -> dict[str, tuple[str, str]]:
    """Return the name of the Secret and the key of each file that the container finds in the folder of the secrets."""
    [mount] = [each for each in get_container(manifest)["volumeMounts"] if each["mountPath"] == SECRETS_FOLDER]
    [volume] = [each for each in get_pod(manifest)["volumes"] if each["name"] == mount["name"]]
    sources = [source["secret"] for source in volume["projected"]["sources"]]
    return {item["path"]: (source["name"], item["key"]) for source in sources for item in source["items"]}


def list_pod_manifests(manifests: Sequence[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in ("Deployment", "Job", "Pod")]


def secret_variables() -> list[str]:
    return [variable_name(field) for field in secret_fields()]


def nest(path: Sequence[str], value: Any) -> Values:
    for name in reversed(path):
        value = {name: value}
    nested: Values = value
    return nested


def _run_helm(arguments: tuple[str, ...], values: Mapping[str, Any]) -> str:
    return _run_cached(arguments, orjson.dumps(values))


@cache
def _run_cached(arguments: tuple[str, ...], values: bytes) -> str:
    assert HELM is not None, "mark the test with needs_helm"
    done = subprocess.run([HELM, *arguments, "--values", "-"], input=values, capture_output=True, check=False)
    if done.returncode != 0:
        raise HelmError((done.stdout + done.stderr).decode())
    return done.stdout.decode()

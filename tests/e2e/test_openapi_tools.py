"""The OpenAPI document with the tools of others: a validator, and generators of clients, none of which may warn."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.main import create_routes
from tests.support.checks import Json
from tests.support.paths import NPM_PACKAGES

BIN = Path(sys.executable).parent
CALLS = """
import type { components, operations, paths } from "./api";

export const body: components["schemas"]["DiscoverBody"] = { query: "search github" };
export type Answer = operations["discover"]["responses"][200]["content"]["application/json"];
export const names = (answer: Answer): string[] => answer.tools.map((found) => found.tool_key);
export type Failure = operations["execute"]["responses"]["4XX"]["content"]["application/problem+json"];
export const code = (failure: Failure): string => failure.code;
export type Same = paths["/discover"]["post"] extends operations["discover"] ? true : never;
export const same: Same = true;
"""
USE_OF_THE_CLIENT = """
import importlib, pkgutil
import generated
from generated.api.discovery import discover
from generated.api.servers import change_server
from generated.client import AuthenticatedClient
from generated.models import DiscoverBody, Problem, ServerChanges

for module in pkgutil.walk_packages(generated.__path__, "generated."):
    importlib.import_module(module.name)
assert discover.sync and discover.asyncio and change_server.sync
assert DiscoverBody(query="search github").to_dict()["query"] == "search github"
assert ServerChanges(enabled=False).to_dict() == {"enabled": False}
assert Problem.from_dict({"title": "t", "status": 404, "detail": "d", "code": "not_found"}).code == "not_found"
AuthenticatedClient(base_url="http://127.0.0.1:8000", token="ts_example")
"""


@pytest.fixture(scope="module")
def document() -> Json:
    return create_routes().openapi()


@pytest.fixture
def path(document: Json, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document))
    return path


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with the programs of the virtual environment, such as ruff, in its PATH."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def validate(document: Json, path: Path) -> subprocess.CompletedProcess[str]:
    path.write_text(json.dumps(document))
    return run([BIN / "openapi-spec-validator", "--errors", "all", path], path.parent)


def test_the_document_is_valid(document: Json, path: Path) -> None:
    done = validate(document, path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_validator_notices_a_contradicting_default(document: Json, path: Path) -> None:
    changed = json.loads(json.dumps(document))
    changed["components"]["schemas"]["ServerChanges"]["properties"]["name"]["default"] = ""
    assert validate(changed, path).returncode != 0


def generate_python(path: Path) -> subprocess.CompletedProcess[str]:
    output = path.parent / "generated"
    program, options = BIN / "openapi-python-client", ["--meta", "none", "--fail-on-warning"]
    return run([program, "generate", "--path", path, "--output-path", output, *options], path.parent)


def test_openapi_python_client_generates_a_client_without_warnings(path: Path, tmp_path: Path) -> None:
    done = generate_python(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    used = run([sys.executable, "-W", "error", "-c", USE_OF_THE_CLIENT], tmp_path)
    assert used.returncode == 0, used.stdout + used.stderr


def test_openapi_python_client_warns_of_a_response_that_it_cannot_read(document: Json, path: Path) -> None:
    changed = json.loads(json.dumps(document))
    changed["paths"]["/stats"]["get"]["responses"]["200"]["content"] = {"image/png": {"schema": {"type": "string"}}}
    path.write_text(json.dumps(changed))
    done = generate_python(path)
    assert done.returncode != 0
    assert "GET /stats" in done.stdout + done.stderr


@pytest.mark.needs_npm
def test_openapi_typescript_generates_types_that_compile(path: Path, tmp_path: Path) -> None:
    # the option of the guide: by default the generator requires fields that have a default, also in requests
    options = ["--default-non-nullable", "false"]
    program = NPM_PACKAGES / ".bin/openapi-typescript"
    done = run([program, path, *options, "--output", tmp_path / "api.d.ts"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warn" not in (done.stdout + done.stderr).lower()
    (tmp_path / "calls.ts").write_text(CALLS)
    compiled = compile_typescript(tmp_path)
    assert compiled.returncode == 0, compiled.stdout
    (tmp_path / "calls.ts").write_text(CALLS.replace("query:", "message:"))
    assert "message" in compile_typescript(tmp_path).stdout, "a field that the API does not have"


def compile_typescript(folder: Path) -> subprocess.CompletedProcess[str]:
    return run([NPM_PACKAGES / ".bin/tsc", "--noEmit", "--strict", "api.d.ts", "calls.ts"], folder)

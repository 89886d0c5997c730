"""The TypeScript client: its tests against a real service, its package in an empty project, its README and example."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.main import create_routes
from bench.service import ADMIN_KEY, Service, running_service
from docs.generators.typescript import TYPES, render_types
from tests.support.checks import ONLY_BY_REQUEST, Json
from tests.support.documents import list_runnable_scripts
from tests.support.factories import SLOW_MACHINE_ENV
from tests.support.node import Done, run_node, run_npm, run_tsc
from tests.support.paths import NPM_PACKAGES, ROOT

pytestmark = pytest.mark.needs_npm

CLIENT = ROOT / "clients/typescript"
EXAMPLE = ROOT / "examples/nextjs-chat"
SETTINGS = {"TOOLSCOUT_DEMO": "1", "TOOLSCOUT_CONFIRM_DESTRUCTIVE": "1", **SLOW_MACHINE_ENV}
CONSUMER = """
import { Toolscout, ToolFailed, collect, type Discovery, type Server } from "@toolscout/client";
import type { AiSdkTools } from "@toolscout/client/ai";

const toolscout: Toolscout = new Toolscout({ url: "http://127.0.0.1:8000", key: "a-key" }).forUser("alice");
export async function check(signal: AbortSignal): Promise<string[]> {
  const found: Discovery<"openai"> = await toolscout.discover("hello", { format: "openai", maxTokens: 100, signal });
  const servers: Server[] = await collect(toolscout.servers.list());
  await toolscout.execute(found.keyOf("a"), { place: "Oslo" }).catch((error: unknown) => error instanceof ToolFailed);
  return [...found.definitions.map((each) => each.function.name), ...servers.map((server) => server.name)];
}
export type Tools = AiSdkTools;
"""
WITH_VENDORS = """
import Anthropic from "@anthropic-ai/sdk";
import { Toolscout } from "@toolscout/client";
import OpenAI from "openai";

declare const [url, key, model]: [string, string, string], session: { userId: string }, request: Request;
declare const messages: OpenAI.ChatCompletionMessageParam[], openai: OpenAI, anthropic: Anthropic;

export async function runSnippetOfTheGuide(): Promise<void> {
SNIPPET
}
export async function callAnthropic(user: Toolscout): Promise<void> {
  const found = await user.discover("hello", { format: "anthropic", keep: [] });
  const request = { model, max_tokens: 100, tools: found.definitions };
  const { content } = await anthropic.messages.create({ ...request, messages: [] });
  for (const toolCall of content) if (toolCall.type === "tool_use") await user.execute({ toolCall });
  if (found.changes !== null) {
    const { message, betas } = found.changes;
    await anthropic.beta.messages.create({ ...request, messages: [message], betas });
  }
}
export async function callOpenAIResponses(user: Toolscout): Promise<void> {
  const found = await user.discover("hello", { format: "openai_responses", keep: [] });
  const input = found.changes === null ? [] : [found.changes.message];
  const { output } = await openai.responses.create({ model, input, tools: found.definitions });
  for (const toolCall of output) if (toolCall.type === "function_call") await user.execute({ toolCall });
}
"""
MISTAKES = {
    "discover('hello', { maxTokns: 100 })": "maxTokns",
    "discover('hello', { format: 'opnai' })": "opnai",
    "discover('hello').then((found) => found.confidnce)": "confidnce",
    "servers.create('files', 'carrier pigeon')": "carrier pigeon",
    "execute({ toolKey: 'k', toolCall: { type: 'tool_use', name: 'n' } })": "No overload matches",
}
"""Each is an error of types that names the word."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client's folder with the packages that `make test` has installed."""
    folder = tmp_path_factory.mktemp("typescript") / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist", "build"))
    (folder / "node_modules").symlink_to(NPM_PACKAGES)
    return folder


@pytest.fixture(scope="module")
def packed(client: Path) -> Json:
    """What `npm pack` says about the package that it made."""
    done = run_npm(client, "pack", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    # npm 9 prints the output of the build before it
    [package] = json.loads(done.stdout[done.stdout.index("[\n") :])
    described: Json = package
    return described


@pytest.fixture(scope="module")
def project(client: Path, packed: Json) -> Path:
    """A project in which nothing but the package is installed, without a network."""
    folder = client.parent / "project"
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true}')
    package = str(client / packed["filename"])
    done = run_npm(folder, "install", "--offline", "--no-audit", "--no-fund", package)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def example(client: Path, project: Path) -> Path:
    """A copy of the Next.js example, with the packed client. Its packages are found in the folder above it."""
    folder = client.parent / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", ".next", "next-env.d.ts"))
    (folder / "node_modules").mkdir()
    (folder / "node_modules/@toolscout").symlink_to(project / "node_modules/@toolscout")
    (folder.parent / "node_modules").symlink_to(NPM_PACKAGES)
    return folder


def expect_success(done: Done) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expect_tests(done: Done, at_least: int) -> None:
    """Check that so many tests of Node.js have passed, and that none was skipped."""
    output = expect_success(done)
    counts = {name: int(count) for name, count in re.findall(r"^\S (\w+) (\d+)$", output, re.MULTILINE)}
    assert counts["pass"] >= at_least, output
    assert (counts["fail"], counts["skipped"]) == (0, 0), output


def test_the_types_are_those_of_the_openapi_document() -> None:
    assert render_types() == TYPES.read_text(), "run `make docs`"


def test_the_client_has_every_route_of_the_service() -> None:
    """A new route belongs into `client.ts`, into `resources.ts` or into `ONLY_BY_REQUEST`. The types check the rest."""
    paths = create_routes().openapi()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    source = "".join((CLIENT / "src" / name).read_text() for name in ("client.ts", "resources.ts"))
    implemented = set(re.findall(r'transport\.\w+\(\s*"([A-Z]+) (/[^"]*)"', source))
    assert len(implemented) > 35
    missing = {(method, re.sub(r"{\w+}", "{}", path)) for method, path in routes - implemented}
    assert missing <= ONLY_BY_REQUEST - {("GET", "/runs/{}/events")}


def test_its_own_tests_pass_against_a_real_service(client: Path, service: Service) -> None:
    done = run_npm(client, "test", TOOLSCOUT_URL=service.url, TOOLSCOUT_ADMIN_KEY=ADMIN_KEY, NODE_OPTIONS="")
    expect_tests(done, at_least=120)


def test_the_package_has_what_it_needs_and_nothing_else(packed: Json) -> None:
    names = {file["path"] for file in packed["files"]}
    assert {"LICENSE", "README.md", "package.json", "dist/cjs/package.json"} <= names
    assert {"dist/esm/index.js", "dist/esm/index.d.ts", "dist/cjs/index.js", "dist/cjs/index.d.ts"} <= names
    assert {name for name in names if not name.startswith("dist/")} == {"LICENSE", "README.md", "package.json"}
    source = "".join(path.read_text() for path in (CLIENT / "src").glob("*.ts"))
    assert re.findall(r'from "(?!\./)|require\(|import\(|\bprocess\.|\bBuffer\b', source) == []  # for browsers


@pytest.mark.parametrize("module", ["@toolscout/client", "@toolscout/client/ai"])
def test_the_package_is_imported_and_required(project: Path, module: str) -> None:
    (project / "esm.mjs").write_text(f'import * as client from "{module}"; console.log(Object.keys(client).join());')
    (project / "cjs.cjs").write_text(f'console.log(Object.keys(require("{module}")).join());')
    imported = expect_success(run_node(project, "esm.mjs")).strip().split(",")
    required = expect_success(run_node(project, "cjs.cjs")).strip().split(",")
    assert len(imported) > 0
    assert set(required) == set(imported)


@pytest.mark.parametrize(("resolution", "module"), [("node16", "node16"), ("bundler", "esnext")])
@pytest.mark.parametrize("extension", ["mts", "cts"])
def test_the_types_compile_in_a_strict_project(project: Path, resolution: str, module: str, extension: str) -> None:
    options = ["--noEmit", "--strict", "--target", "es2022", "--moduleResolution", resolution, "--module", module]
    (project / f"consumer.{extension}").write_text(CONSUMER)
    expect_success(run_tsc(project, *options, "--exactOptionalPropertyTypes", f"consumer.{extension}"))


def test_mistakes_are_found_by_the_types(project: Path) -> None:
    calls = "".join(f"toolscout.{call};\n" for call in MISTAKES)
    (project / "mistakes.mts").write_text(CONSUMER + calls)
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "node16"]
    errors = [line for line in run_tsc(project, *options, "mistakes.mts").stdout.splitlines() if "error TS" in line]
    assert len(errors) == len(MISTAKES), errors
    assert all(word in line for word, line in zip(MISTAKES.values(), errors, strict=True)), errors


def test_definitions_and_changes_fit_the_types_of_the_vendors_sdks(example: Path) -> None:
    guide = (ROOT / "docs/guides/chat-backend.md").read_text()
    [snippet] = [each for each in re.findall(r"```ts\n(.*?)```", guide, re.DOTALL) if "new Toolscout" in each]
    (example / "vendors.mts").write_text(WITH_VENDORS.replace("SNIPPET", snippet))
    options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "node16", "--types", "node"]
    done = run_tsc(example, *options, "--noUncheckedIndexedAccess", "vendors.mts")
    (example / "vendors.mts").unlink()
    expect_success(done)


def test_the_program_of_the_readme_runs(project: Path, service: Service) -> None:
    [program] = list_runnable_scripts((CLIENT / "README.md").read_text(), "ts")
    with service.admin() as admin:
        key = admin.post("/keys", json={"kind": "service"}).json()["key"]
    program = program.replace("http://127.0.0.1:8000", service.url).replace("ts_service_…", key)
    assert key in program
    (project / "readme.mts").write_text(program)
    expect_success(run_tsc(project, "--strict", "--target", "es2022", "--module", "node16", "readme.mts"))
    assert '"timezone": "Asia/Tokyo"' in expect_success(run_node(project, "readme.mjs"))


def test_the_example_compiles_and_its_route_runs_tools(example: Path, service: Service) -> None:
    expect_success(run_tsc(example, "--strict"))
    done = run_npm(example, "test", TOOLSCOUT_URL=service.url, TOOLSCOUT_ADMIN_KEY=ADMIN_KEY, NODE_OPTIONS="")
    expect_tests(done, at_least=18)
    assert service.url not in (example / "app/page.tsx").read_text()


def test_a_mistake_in_the_example_is_found(example: Path) -> None:
    route = example / "app/api/chat/route.ts"
    (example / "app/api/chat/mistake.ts").write_text(route.read_text().replace("requireApproval(found)", "found"))
    done = run_tsc(example, "--strict")
    (example / "app/api/chat/mistake.ts").unlink()
    assert "mistake.ts" in done.stdout


def test_turbopack_reads_the_folder_to_which_npm_links_the_client() -> None:
    package = json.loads((EXAMPLE / "package.json").read_text())
    linked = (EXAMPLE / package["dependencies"]["@toolscout/client"].removeprefix("file:")).resolve()
    script = "import('./next.config.ts').then(({ default: { turbopack } }) => console.log(turbopack.root))"
    root = Path(expect_success(run_node(EXAMPLE, "--eval", script)).strip())
    assert linked.is_relative_to(root)


@pytest.mark.parametrize("folder", [CLIENT, EXAMPLE])
def test_the_versions_are_those_that_the_tests_install(folder: Path) -> None:
    """Except Next.js itself, which is large: the example's route and page do not import it."""
    installed = json.loads((ROOT / "tests/third_party/package.json").read_text())["devDependencies"]
    package = json.loads((folder / "package.json").read_text())
    wanted = package["devDependencies"] | package.get("dependencies", {})
    assert wanted.items() - installed.items() <= {
        *((name, version) for name, version in wanted.items() if name in ("next", "react-dom", "@toolscout/client"))
    }
    source = "".join(path.read_text() for path in [*folder.glob("app/**/*.ts*"), *folder.glob("lib/*.ts")])
    assert "next/" not in source

"""What a newcomer does: start the service, send requests, stop it, start it again, with the real command."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from app.db.migrate import head_revision
from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, free_port, running_service
from examples.fake_model import running_fake_model
from tests.support.documents import (
    DOCS,
    PAGES,
    README,
    join_runnable_blocks,
    list_code_blocks,
    list_runnable_scripts,
    page_name,
    run_commands,
)
from tests.support.factories import SLOW_MACHINE_ENV, tool
from tests.support.paths import ROOT

DEMO = {"TOOLSCOUT_DEMO": "1", "TOOLSCOUT_ADMIN_API_KEY": "", **SLOW_MACHINE_ENV}
FOUND_FIRST = [
    ("what time is it in Tokyo?", "toolbox", "get_current_time"),
    ("calculate (17.5 + 4) * 3", "toolbox", "calculate"),
    ("how many miles are 42.195 km?", "toolbox", "convert_units"),
    ("show my notes", "toolbox", "list_notes"),
    ("do I need an umbrella in Salzburg this weekend?", "weather", "get_forecast"),
    ("How warm is it in Lisbon right now?", "weather", "get_current_weather"),
    ("The customer wants her money back for pay_7Kd92, please refund the full amount.", "payments", "refund_payment"),
    ("Payment pay_51QxT is still pending and was a mistake. Stop it.", "payments", "cancel_payment"),
    ("Show me all open issues in acme/webshop labelled urgent.", "codehub", "list_issues"),
    ("Read the article I have open in the browser and summarise it for me.", "browser", "read_page"),
]
FOUND_AMONG_SIMILAR_TOOLS = [
    ("Search my files for everything about the travel budget.", "files", "search"),
    ("Set up a meeting with lena@example.com on Thursday at 10 and invite her.", "calendar", "create_event"),
    ("Move tomorrow's appointment with the auditors to 3 pm.", "calendar", "update_event"),
    ("How many orders did we ship last month? Count the rows in the orders table.", "database", "run_query"),
]
EXPECTED_OUTPUT = {
    "README.md": r'"name":"get_current_time"[\s\S]*"structuredContent":\{"timezone":"Asia/Tokyo"',
    "docs/quickstart.md": r"  1  (?:0\.\d+|1\.0+)  toolbox\.get_current_time [\s\S]*Asia/Tokyo[\s\S]*26\.2187574565",
    "docs/guides/chat-backend.md": '"name":"search_repositories"',
    "docs/guides/evaluation.md": "hit@1",
    "docs/guides/learning.md": '"when is everybody around"',
    "docs/guides/mcp-clients.md": r'get_current_time[\s\S]*"structuredContent":\{"timezone":"Asia/Tokyo"',
    "docs/guides/operations.md": r"(?:^ok .*\n){4}",
    "docs/guides/visibility.md": '"was_visible":true',
}
"""A pattern in the output of the runnable commands of each page."""
SCRIPT_OUTPUT = {
    "README.md": r'^\{"timezone": "Asia/Tokyo"',
    "clients/python/README.md": r'^\{"timezone": "Asia/Tokyo"',
    "docs/guides/tool-changes.md": r"(?:The tool says: .*Asia/Tokyo[\s\S]*\nThe tool says: .*64\.5[\s\S]*){2}",
    "docs/guides/mcp-clients.md": r"^\['tool_discovery', 'tool_execute'\]\nget_current_time \{'timezone': 'Asia/Tokyo'",
}
"""A pattern in the output of the runnable Python programs of each page."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("demo"), {**DEMO, "TOOLSCOUT_MAX_TOLS": "5"}) as service:
        yield service


def read_output(service: Service) -> str:
    return (service.folder / "service.log").read_text()


def demo_client(service: Service) -> httpx.Client:
    found = re.search(r"ts_user_[\w-]+", read_output(service))
    assert found is not None
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {found[0]}"}, timeout=30)


def discover(demo: Service, message: str) -> list[tuple[str, str]]:
    with demo_client(demo) as client:
        answer = client.post("/discover", json={"query": message}).json()
    assert answer["total_searched"] > 55
    assert answer["tokens"]["saved_percent"] > 70
    return [(found["server_name"], found["tool"]["name"]) for found in answer["tools"]]


@pytest.mark.parametrize(("message", "server", "name"), FOUND_FIRST)
def test_the_demo_finds_the_right_tool_first(demo: Service, message: str, server: str, name: str) -> None:
    assert discover(demo, message)[0] == (server, name)


@pytest.mark.parametrize(("message", "server", "name"), FOUND_AMONG_SIMILAR_TOOLS)
def test_the_right_tool_is_in_the_answer_among_similar_ones(
    demo: Service, message: str, server: str, name: str
) -> None:
    assert (server, name) in discover(demo, message)


@pytest.mark.needs_curl
def test_the_first_start_prints_one_key_of_each_kind_and_curl_commands_that_find_and_run_a_tool(demo: Service) -> None:
    text = read_output(demo)
    assert len(re.findall(r"ts_admin_[\w-]+", text)) == 1
    discover, execute = re.findall(r"curl -s .*?'\n", text, re.DOTALL)
    found = subprocess.run(["sh", "-c", discover], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["definitions"][0]["name"] == "get_current_time"
    executed = subprocess.run(["sh", "-c", execute], capture_output=True, text=True, check=True)
    assert json.loads(executed.stdout)["result"]["structuredContent"]["timezone"] == "Asia/Tokyo"


def test_a_misspelt_setting_is_reported_at_the_start(demo: Service) -> None:
    assert re.search(r"TOOLSCOUT_MAX_TOLS\b.*\bTOOLSCOUT_MAX_TOOLS\b", read_output(demo))


def test_the_first_start_prints_the_address_of_the_console_and_the_demo_key_signs_in(demo: Service) -> None:
    text = read_output(demo)
    address, key = re.search(r"http://\S+/console", text), re.search(r"ts_user_[\w-]+", text)
    assert address is not None
    assert key is not None
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        assert "Sign in with an API key" in browser.get(address[0]).text
        page = browser.post(f"{address[0]}/sign-in", data={"key": key[0]})
    assert page.url.path == "/console/overview"
    assert "Signed in as</span> <strong>demo" in page.text


def run_toolscout(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "TOOLSCOUT_DATA_DIR": str(service.folder / "data"), **SLOW_MACHINE_ENV}
    environment["TOOLSCOUT_PORT"] = str(free_port())
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_commands_work_while_the_service_runs(demo: Service) -> None:
    made = run_toolscout(demo, "key", "create", "--user", "carol", "--days", "1")
    with httpx.Client(base_url=demo.url, headers={"X-API-Key": made.stdout.strip()}, timeout=60) as carol:
        assert carol.get("/servers").json() == {"items": [], "next_cursor": None}
    assert str(head_revision()) in run_toolscout(demo, "migrate").stdout


def run_as_reader(service: Service, folder: Path, commands: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """With the keys that the first start printed, and the service's data folder."""
    keys = {kind: key for key, kind in re.findall(r"(ts_(admin|user)_[\w-]+)", read_output(service))}
    variables |= {"KEY": keys["user"], "ADMIN_KEY": keys["admin"], "TOOLSCOUT_DATA_DIR": str(service.folder / "data")}
    variables |= SLOW_MACHINE_ENV
    return run_commands(commands, folder, service.port, variables)


@pytest.mark.needs_curl
@pytest.mark.parametrize("page", [page for page in PAGES if join_runnable_blocks(page.read_text())], ids=page_name)
def test_the_runnable_commands_of_a_page_run(demo: Service, tmp_path: Path, page: Path) -> None:
    done = run_as_reader(demo, tmp_path, join_runnable_blocks(page.read_text()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(EXPECTED_OUTPUT[page_name(page)], done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if list_runnable_scripts(page.read_text())], ids=page_name)
def test_the_runnable_python_programs_of_a_page_run(demo: Service, tmp_path: Path, page: Path) -> None:
    service_key = run_toolscout(demo, "key", "create", "--kind", "service").stdout.strip()
    commands = []
    for number, program in enumerate(list_runnable_scripts(page.read_text())):
        adapted = program.replace(":8000", f":{demo.port}").replace("ts_service_…", service_key)
        (tmp_path / f"program_{number}.py").write_text(adapted)
        commands.append(f".venv/bin/python program_{number}.py")
    with running_fake_model() as model:
        vendors = {f"{vendor}_BASE_URL": model for vendor in ("ANTHROPIC", "OPENAI")}
        keys = {f"{vendor}_API_KEY": "none" for vendor in ("ANTHROPIC", "OPENAI")}
        client = {"PYTHONPATH": str(ROOT / "clients/python")}
        done = run_as_reader(demo, tmp_path, "\n".join(commands), **vendors, **keys, **client)
    assert done.returncode == 0, done.stderr
    assert re.search(SCRIPT_OUTPUT[page_name(page)], done.stdout), done.stdout


def test_every_page_with_a_runnable_program_is_expected() -> None:
    assert {page_name(page) for page in PAGES if list_runnable_scripts(page.read_text())} == SCRIPT_OUTPUT.keys()


@pytest.mark.needs_curl
def test_the_first_call_works_when_another_server_has_a_tool_of_that_name(demo: Service, tmp_path: Path) -> None:
    texts = [README.read_text(), (DOCS / "quickstart.md").read_text(), read_output(demo)]
    commands = [re.findall(r"curl -s \S+/execute .*?'\n", text, re.DOTALL) for text in texts]
    with demo_client(demo) as client:
        server = client.post("/servers", json={"name": "clocks", "transport": "push"}).json()
        try:
            client.put(f"/servers/{server['id']}/tools?wait=true", json={"tools": [tool("get_current_time")]})
            for [command] in commands:
                done = run_as_reader(demo, tmp_path, command)
                assert '"structuredContent":{"timezone":"Asia/Tokyo"' in done.stdout, done.stdout
        finally:
            client.delete(f"/servers/{server['id']}")


@pytest.mark.needs_curl
def test_a_request_of_a_page_that_is_refused_is_noticed(demo: Service, tmp_path: Path) -> None:
    request = "curl -s http://127.0.0.1:8000/tools -H"
    assert run_as_reader(demo, tmp_path, f'{request} "Authorization: Bearer $KEY"').returncode == 0
    assert run_as_reader(demo, tmp_path, f'{request} "Authorization: Bearer nobody"').returncode != 0


@pytest.mark.needs_curl
def test_the_answers_in_the_readme_are_the_real_ones(demo: Service, tmp_path: Path) -> None:
    text = README.read_text()
    documented = re.findall(r'"(\w+)":', "".join(list_code_blocks(text, "json")))
    answered = run_as_reader(demo, tmp_path, join_runnable_blocks(text)).stdout
    assert len(documented) > 35
    assert set(documented) <= set(re.findall(r'"(\w+)":', answered))
    for figure in (
        '"total_searched": 70',
        '"selected": 378, "all": 11127, "saved_percent": 96.6',
        '"confidence": "high"',
        '"alias": "get_current_time"',
        '"isError": false',
    ):
        assert figure in text
        assert figure.replace(": ", ":").replace(", ", ",") in answered


@pytest.mark.parametrize(
    ("example", "calls"),
    [
        ("chat_backend", ['get_current_time {"timezone": "Tokyo"}', 'calculate {"expression": "(17.5 + 4) * 3"}']),
        ("anthropic_tool_search", ['get_current_time {"timezone": "Tokyo"}']),
        ("anthropic_deferred_tools", ['get_current_time {"timezone": "Tokyo"}']),
        ("openai_tool_search", ['get_current_time {"timezone": "Tokyo"}']),
    ],
)
def test_an_example_succeeds_on_a_fresh_start(demo: Service, example: str, calls: list[str]) -> None:
    """With its own messages and the fake model, as somebody without a key of a model provider runs it."""
    key = re.search(r"ts_user_[\w-]+", read_output(demo))
    assert key is not None
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "clients/python")}
    environment |= {"TOOLSCOUT_URL": demo.url, "TOOLSCOUT_KEY": key[0]}
    command = [sys.executable, "-m", f"examples.{example}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = [(line[:11].strip(), line[11:]) for line in done.stdout.splitlines()]
    assert [text for label, text in lines if label == "called"] == calls
    results = [json.loads(text) for label, text in lines if label == "result"]  # an error is not JSON
    assert len(results) == len(calls)
    assert results[0]["timezone"] == "Asia/Tokyo"


def test_a_second_service_on_the_same_data_folder_does_not_start_and_says_why(demo: Service) -> None:
    refused = run_toolscout(demo, "serve")
    assert refused.returncode == 1
    assert "in use by another Toolscout" in refused.stderr


def test_a_command_for_an_unknown_user_says_why_it_fails(demo: Service) -> None:
    refused = run_toolscout(demo, "discover", "x", "--user", "nobody-of-that-name")
    assert refused.returncode == 1
    assert "there is no user 'nobody-of-that-name'" in refused.stderr


def test_a_second_start_is_quick_and_finds_the_same_data(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, service.admin("alice") as alice:
        server = alice.post("/servers", json={"name": "files", "transport": "push"}).json()
        alice.put(f"/servers/{server['id']}/tools?wait=true", json={"tools": [tool("read_file", "Reads a file.")]})
        before = alice.get("/tools").json()
    assert service.process.returncode == 0
    started = time.monotonic()
    with running_service(tmp_path) as service, service.admin("alice") as alice:
        assert time.monotonic() - started < 30  # a promise of 5 s on a quiet machine
        assert alice.get("/tools").json() == before
        assert alice.post("/discover", json={"query": "read a file"}).json()["tools"]


def test_an_accepted_list_is_indexed_although_the_service_is_killed(tmp_path: Path) -> None:
    tools = [tool(f"tool_{i}", f"Does the thing number {i}.") for i in range(120)]
    with running_service(tmp_path) as service, service.admin("alice") as alice:
        server = alice.post("/servers", json={"name": "files", "transport": "push"}).json()
        run = alice.put(f"/servers/{server['id']}/tools", json={"tools": tools}).json()
        assert run["state"] == "queued"
        postgres = [child for child in psutil.Process(service.process.pid).children() if child.name() == "postgres"]
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        gone, alive = psutil.wait_procs(postgres, timeout=60)
        assert gone
        assert not alive
    with running_service(tmp_path) as service, service.admin("alice") as alice:
        expire_lease(service)
        assert wait_until_finished(alice, run["id"])["state"] == "succeeded"
        assert len(alice.get("/tools?limit=200").json()["items"]) == 120


def expire_lease(service: Service) -> None:
    """The lease of the dead worker would last for a minute."""
    with psycopg.connect(EmbeddedPostgres(service.folder / "data").url) as connection:
        connection.execute("UPDATE index_runs SET lease_until = now() WHERE state = 'running'")


def wait_until_finished(client: httpx.Client, run_id: str) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        run: dict[str, object] = client.get(f"/runs/{run_id}").json()
        if run["state"] in ("succeeded", "failed"):
            return run
        time.sleep(0.1)
    raise AssertionError("the run did not finish")


def test_an_invalid_setting_is_named(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "TOOLSCOUT_PORT": "many", "TOOLSCOUT_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "app", "serve"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "PORT" in refused.stderr


def test_a_busy_port_is_named(demo: Service, tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "TOOLSCOUT_PORT": str(demo.port),
        "TOOLSCOUT_DATA_DIR": str(tmp_path / "another"),
        "TOOLSCOUT_DEMO": "0",
    }
    command = [sys.executable, "-m", "app", "serve"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert "set TOOLSCOUT_PORT to another" in refused.stderr

"""What a newcomer does: start it, ask it, stop it, start it again. The real command, over real sockets."""

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
from tests.conftest import PATIENT, tool
from tests.support.documents import PAGES, README, name_of, run_as_a_reader, runnable

DEMO = {"TOOLSCOUT_DEMO": "1", "TOOLSCOUT_ADMIN_API_KEY": "", **PATIENT}
FIRST = [
    ("do I need an umbrella in Salzburg this weekend?", "weather", "get_forecast"),
    ("How warm is it in Lisbon right now?", "weather", "get_current_weather"),
    ("The customer wants her money back for pay_7Kd92, please refund the full amount.", "payments", "refund_payment"),
    ("Payment pay_51QxT is still pending and was a mistake. Stop it.", "payments", "cancel_payment"),
    ("Show me all open issues in acme/webshop labelled urgent.", "codehub", "list_issues"),
    ("Read the article I have open in the browser and summarise it for me.", "browser", "read_page"),
]
AMONG_SIBLINGS = [
    ("Search my files for everything about the travel budget.", "files", "search"),
    ("Set up a meeting with lena@example.com on Thursday at 10 and invite her.", "calendar", "create_event"),
    ("Move tomorrow's appointment with the auditors to 3 pm.", "calendar", "update_event"),
    ("How many orders did we ship last month? Count the rows in the orders table.", "database", "run_query"),
]
TELLING = {
    "README.md": r"  1  0\.\d+  weather\.get_forecast ",
    "docs/backend.md": '"name":"search_repositories"',
    "docs/evaluation.md": "hit@1",
    "docs/mcp.md": "get_forecast",
    "docs/operations.md": r"(?:^ok .*\n){4}",
    "docs/visibility.md": '"was_visible":true',
}
"""What the commands of a page print, if they have done what the page says."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("demo"), {**DEMO, "TOOLSCOUT_MAX_TOLS": "5"}) as service:
        yield service


def greeting(service: Service) -> str:
    return (service.folder / "service.log").read_text()


def demo_client(service: Service) -> httpx.Client:
    found = re.search(r"ts_user_[\w-]+", greeting(service))
    assert found is not None
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {found[0]}"}, timeout=30)


def ask(demo: Service, message: str) -> list[tuple[str, str]]:
    with demo_client(demo) as client:
        answer = client.post("/discover", json={"query": message}).json()
    assert answer["total_searched"] > 55
    assert answer["tokens"]["saved_percent"] > 70
    return [(found["server_name"], found["tool"]["name"]) for found in answer["tools"]]


@pytest.mark.parametrize(("message", "server", "name"), FIRST)
def test_the_demo_finds_the_right_tool_first(demo: Service, message: str, server: str, name: str) -> None:
    assert ask(demo, message)[0] == (server, name)


@pytest.mark.parametrize(("message", "server", "name"), AMONG_SIBLINGS)
def test_among_near_siblings_the_right_tool_is_in_the_answer(
    demo: Service, message: str, server: str, name: str
) -> None:
    assert (server, name) in ask(demo, message)


def test_the_greeting_holds_a_key_for_each_and_a_curl_that_works(demo: Service) -> None:
    text = greeting(demo)
    assert len(re.findall(r"ts_admin_[\w-]+", text)) == 1
    command = re.search(r"curl -s .*?'\n", text, re.DOTALL)
    assert command is not None
    answered = subprocess.run(["sh", "-c", command[0]], capture_output=True, text=True, check=True)
    assert '"get_forecast"' in answered.stdout


def test_a_misspelt_setting_is_told_of_at_the_start(demo: Service) -> None:
    assert "TOOLSCOUT_MAX_TOLS is no setting: is TOOLSCOUT_MAX_TOOLS meant?" in greeting(demo)


def test_the_greeting_leads_to_the_console_and_the_demos_key_signs_in(demo: Service) -> None:
    text = greeting(demo)
    address, key = re.search(r"http://\S+/console", text), re.search(r"ts_user_[\w-]+", text)
    assert address is not None
    assert key is not None
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        assert "Sign in with one of your keys" in browser.get(address[0]).text
        page = browser.post(f"{address[0]}/sign-in", data={"key": key[0]})
    assert page.url.path == "/console/overview"
    assert "Signed in as</span> <strong>demo" in page.text


def toolscout(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    """On no port that others may have."""
    environment = {"PATH": os.environ["PATH"], "TOOLSCOUT_DATA_DIR": str(service.folder / "data"), **PATIENT}
    environment["TOOLSCOUT_PORT"] = str(free_port())
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_commands_work_beside_the_running_service(demo: Service) -> None:
    made = toolscout(demo, "key", "create", "--user", "carol", "--days", "1")
    with httpx.Client(base_url=demo.url, headers={"X-API-Key": made.stdout.strip()}, timeout=60) as carol:
        assert carol.get("/servers").json() == {"items": [], "next_cursor": None}
    assert str(head_revision()) in toolscout(demo, "migrate").stdout


def read_along(service: Service, folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """With the keys that the greeting shows, and the service's own data folder for commands."""
    keys = {kind: key for key, kind in re.findall(r"(ts_(admin|user)_[\w-]+)", greeting(service))}
    variables = {"KEY": keys["user"], "ADMIN_KEY": keys["admin"], "TOOLSCOUT_DATA_DIR": str(service.folder / "data")}
    variables |= PATIENT
    return run_as_a_reader(commands, folder, service.port, variables)


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page.read_text())], ids=name_of)
def test_the_commands_of_a_page_that_are_marked_runnable_run(demo: Service, tmp_path: Path, page: Path) -> None:
    done = read_along(demo, tmp_path, runnable(page.read_text()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(TELLING[name_of(page)], done.stdout, re.MULTILINE), done.stdout


def test_a_command_that_is_refused_would_be_noticed(demo: Service, tmp_path: Path) -> None:
    asked = "curl -s http://127.0.0.1:8000/tools -H"
    assert read_along(demo, tmp_path, f'{asked} "Authorization: Bearer $KEY"').returncode == 0
    assert read_along(demo, tmp_path, f'{asked} "Authorization: Bearer nobody"').returncode != 0


def test_the_first_answer_of_the_readme_is_the_real_one(demo: Service, tmp_path: Path) -> None:
    text = README.read_text()
    documented = re.findall(r'"(\w+)":', text.partition("```json\n")[2].partition("```")[0])
    answered = read_along(demo, tmp_path, runnable(text).partition("\n.venv")[0]).stdout
    assert len(documented) > 25
    assert set(documented) <= set(re.findall(r'"(\w+)":', answered))
    for figure in ('"total_searched": 62', '"all": 10121', '"saved_percent": 97.2', '"alias": "get_forecast"'):
        assert figure in text
        assert figure.replace(": ", ":") in answered


def test_a_second_service_on_the_same_folder_is_refused_with_the_reason(demo: Service) -> None:
    refused = toolscout(demo, "serve")
    assert refused.returncode == 1
    assert "in use by another Toolscout" in refused.stderr


def test_a_command_that_cannot_be_done_says_why(demo: Service) -> None:
    refused = toolscout(demo, "discover", "x", "--user", "nobody-of-that-name")
    assert refused.returncode == 1
    assert "there is no such user" in refused.stderr


def test_a_second_start_is_quick_and_finds_everything_as_it_was(tmp_path: Path) -> None:
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
    tools = [tool(f"tool_{i}", f"Does the thing number {i} for whoever asks.") for i in range(120)]
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
        _shorten_lease(service)
        assert _ended(alice, run["id"])["state"] == "succeeded"
        assert len(alice.get("/tools?limit=200").json()["items"]) == 120


def _shorten_lease(service: Service) -> None:
    """The dead worker's lease would run for a minute; a test does not wait for that."""
    with psycopg.connect(EmbeddedPostgres(service.folder / "data").url) as connection:
        connection.execute("UPDATE index_runs SET lease_until = now() WHERE state = 'running'")


def _ended(client: httpx.Client, run_id: str) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        run: dict[str, object] = client.get(f"/runs/{run_id}").json()
        if run["state"] in ("succeeded", "failed"):
            return run
        time.sleep(0.1)
    raise AssertionError("the run did not end")


def test_settings_that_make_no_sense_are_named(tmp_path: Path) -> None:
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

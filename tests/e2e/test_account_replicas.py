"""Two processes on one database: a sign-in, its refresh and its secrets.

The processes run as an operator runs them, with all that they log.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, free_port, running_service
from tests.support.accounts import get_query
from tests.support.factories import SECRET_KEY, SLOW_MACHINE_ENV, make_database
from tests.support.leaks import dump_database, find_leaks
from tests.support.oidc_provider import OidcProvider, Person
from tests.support.protected_server import ProtectedServer

pytestmark = pytest.mark.needs_npm

Json = dict[str, Any]


@dataclass
class Replicas:
    services: list[Service]
    database_url: str
    answers: list[str] = field(default_factory=list)
    """The bodies and headers of all answers."""

    def open(self, index: int, user_id: str) -> httpx.Client:
        http = self.services[index].admin(user_id)
        http.event_hooks["response"] = [self._record]
        return http

    def _record(self, answer: httpx.Response) -> None:
        self.answers.append(f"{answer.headers}{answer.read().decode()}")

    def expire_tokens(self) -> None:
        """Let all access tokens end now, as far as Toolscout knows."""
        with psycopg.connect(self.database_url) as connection:
            connection.execute("UPDATE server_connections SET expires_at = now() - interval '1 s'")

    def read_logs(self) -> str:
        return "".join((service.folder / "service.log").read_text() for service in self.services)


@pytest.fixture(scope="module")
def replicas(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    _running_provider: OidcProvider,
    _running_server: ProtectedServer,
) -> Iterator[Replicas]:
    ports, database_url = [free_port(), free_port()], make_database(postgres)
    settings = {
        "DATABASE_URL": database_url,
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_PUBLIC_URL": f"http://127.0.0.1:{ports[0]}",
        "TOOLSCOUT_OUTBOUND_ALLOW": f"{_running_provider.address},{_running_server.address}",
        "TOOLSCOUT_LOG_LEVEL": "DEBUG",
        **SLOW_MACHINE_ENV,
    }
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:

        def start(port: int) -> Service:
            return stack.enter_context(running_service(tmp_path_factory.mktemp("replica"), settings, port))

        yield Replicas(list(threads.map(start, ports)), database_url)


def wait_for(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass
class Owner:
    """A user who acts through both processes."""

    first: httpx.Client
    second: httpx.Client
    server_id: str = ""

    def add_server(self, url: str) -> None:
        body = {"name": "notes", "transport": "streamable_http", "url": url}
        self.server_id = self.first.post("/servers", json=body).json()["id"]
        self.wait_for_status("needs_authorization")

    def wait_for_status(self, status: str) -> None:
        wait_for(lambda: self.first.get(f"/servers/{self.server_id}").json()["status"] == status)

    def sign_in(self, person: Person) -> None:
        """Begin at one process and end at the other."""
        begun = self.first.post(f"/servers/{self.server_id}/connect", json={}).json()
        callback = httpx.URL(person.authorize(begun["authorization_url"]))
        self.second.get(f"/oauth/callback?{callback.query.decode()}")
        self.wait_for_status("connected")

    def find_tool(self, name: str) -> str:
        wait_for(lambda: bool(self.first.get("/tools", params={"name": name}).json()["items"]))
        found: str = self.first.get("/tools", params={"name": name}).json()["items"][0]["id"]
        return found


@pytest.fixture
def owner(replicas: Replicas, server: ProtectedServer) -> Iterator[Owner]:
    user_id = f"user-{uuid.uuid4().hex[:12]}"
    with replicas.open(0, user_id) as first, replicas.open(1, user_id) as second:
        created = Owner(first, second)
        created.add_server(server.url)
        yield created


def test_a_sign_in_that_begins_at_one_process_ends_at_the_other(owner: Owner) -> None:
    owner.sign_in(Person("ada"))
    call = {"tool_key": owner.find_tool("list_notes"), "arguments": {}}
    for http in (owner.first, owner.second):
        assert "the notes of ada" in http.post("/execute", json=call).text


def test_many_calls_at_both_processes_refresh_an_expired_token_once(
    owner: Owner, replicas: Replicas, provider: OidcProvider
) -> None:
    owner.sign_in(Person("ada"))
    call = {"tool_key": owner.find_tool("list_notes"), "arguments": {}}
    for http in (owner.first, owner.second):
        assert http.post("/execute", json=call).status_code == 200
    replicas.expire_tokens()
    before = len(provider.find_requests("/token", grant_type="refresh_token"))
    with ThreadPoolExecutor(20) as threads:
        clients = [owner.first, owner.second] * 10
        answers = list(threads.map(lambda http: http.post("/execute", json=call), clients))
    assert {answer.status_code for answer in answers} == {200}
    refreshes = provider.find_requests("/token", grant_type="refresh_token")[before:]
    assert [each["status"] for each in refreshes] == [200]


def test_no_secret_of_a_sign_in_is_in_a_log_an_answer_the_metrics_the_audit_log_or_a_dump(
    owner: Owner, replicas: Replicas, provider: OidcProvider, server: ProtectedServer
) -> None:
    use_all_secrets(owner, replicas, provider, server)
    secrets = provider.find_secrets()
    assert len(secrets) >= 9, "of these requests alone; tests that ran before add theirs"
    assert set(server.tokens) & secrets, "the server has received none of them"
    with replicas.services[0].admin() as http:
        metrics, audit = http.get("/metrics").text, http.get("/audit", params={"limit": 200}).text
    assert "server.connect" in audit
    dump = dump_database(replicas.database_url)
    assert owner.server_id in dump["server_connections"]
    places = {
        "log": replicas.read_logs(),
        "answers": "".join(replicas.answers),
        "metrics": metrics,
        "audit": audit,
        "dump": "\n".join(dump.values()),
    }
    leaks = {name: find_leaks(text, secrets) for name, text in places.items()}
    assert not any(leaks.values()), leaks


def use_all_secrets(owner: Owner, replicas: Replicas, provider: OidcProvider, server: ProtectedServer) -> None:
    """Sign in, fail to sign in, refresh, fail to refresh, and let the token endpoint quote what it has received."""
    person = Person("ada")
    begun = owner.first.post(f"/servers/{owner.server_id}/connect", json={}).json()
    callback = httpx.URL(person.authorize(begun["authorization_url"]))
    code = get_query(str(callback))["code"]
    with provider.failing("/token", status=400, body=f'{{"error": "{code}", "error_description": "{code}"}}'):
        owner.first.get(f"/oauth/callback?{callback.query.decode()}")
    owner.sign_in(person)
    call = {"tool_key": owner.find_tool("list_notes"), "arguments": {}}
    assert owner.first.post("/execute", json=call).status_code == 200
    token = server.tokens[-1]
    replicas.expire_tokens()
    with provider.failing("/token", status=200, body=f'{{"access_token": ["{token}"], "x": "{token}"}}'):
        assert owner.first.post("/execute", json=call).status_code == 502
    assert owner.first.post("/execute", json=call).status_code == 200

"""The request pipeline: the key before the body, slots of resolved users, deadlines. Each test attacks with many raw
connections while another user works, and checks that nothing is held afterwards."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from app.container import Container
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import OpenService
from tests.support.http_server import RawClient, RunningApp, make_request, serve_app
from tests.support.worker_steps import until

ATTACKERS = 80
HALF_BODY = b'{"query": "half of'
DEADLINE_S = 1.0


@asynccontextmanager
async def attack(app: RunningApp, *sent: bytes) -> AsyncIterator[list[RawClient]]:
    attackers = await asyncio.gather(*(app.connect(sent[number % len(sent)]) for number in range(ATTACKERS)))
    try:
        yield list(attackers)
    finally:
        for attacker in attackers:
            attacker.close()


async def assert_served(http: httpx.AsyncClient, requests: int = 20) -> None:
    answers = [await http.post("/discover", json={"query": "read a file"}) for _ in range(requests)]
    assert {answer.status_code for answer in answers} == {200}


async def in_flight(http: httpx.AsyncClient) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    [value] = [line.split()[-1] for line in lines if line.startswith("toolscout_requests_in_flight ")]
    return float(value)


async def wait_until_nothing_is_held(http: httpx.AsyncClient) -> None:
    async def is_free() -> bool:
        return await in_flight(http) == 0

    await until(is_free)


async def test_half_sent_bodies_with_invented_keys_hold_nothing(open_service: OpenService) -> None:
    async with open_service(max_in_flight=10) as service, new_user(service) as user, serve_app(service) as app:
        sent = [
            make_request("/discover", f"Authorization: Bearer ts_user_{number}", body=HALF_BODY, content_length=900)
            for number in range(ATTACKERS)
        ]
        async with app.client(user) as http, attack(app, *sent) as attackers:
            await assert_served(http)
            heads = await asyncio.gather(*(attacker.read_head() for attacker in attackers))
            assert {head.split(b"\r\n")[0] for head in heads} == {b"HTTP/1.1 401 Unauthorized"}
            await wait_until_nothing_is_held(http)
            await app.wait_for_connections(1)  # theirs are closed, although they have sent nothing more


async def test_half_sent_bodies_of_a_user_end_at_the_deadline_and_hold_no_slot_of_another(
    open_service: OpenService,
) -> None:
    settings = {"max_in_flight": 10, "body_timeout_s": DEADLINE_S}
    async with (
        open_service(**settings) as service,
        new_user(service) as greedy,
        new_user(service) as user,
        serve_app(service) as app,
    ):
        spellings = [f"Authorization: Bearer {greedy.key}", f"authorization: bearer  {greedy.key}"]
        spellings += [f"X-API-Key: {greedy.key}", f"X-API-Key: {greedy.key}\r\nCookie: a={time.time()}"]
        sent = [make_request("/discover", each, body=HALF_BODY, content_length=900) for each in spellings]
        async with app.client(user) as http, attack(app, *sent) as attackers:
            await assert_served(http)
            statuses = [(await attacker.read_head()).split()[1] for attacker in attackers]
            assert (statuses.count(b"408"), statuses.count(b"429")) == (8, ATTACKERS - 8)
            await wait_until_nothing_is_held(http)
            await app.wait_for_connections(1)


async def test_a_body_that_arrives_byte_by_byte_ends_at_the_deadline(open_service: OpenService) -> None:
    async with (
        open_service(body_timeout_s=DEADLINE_S) as service,
        new_user(service) as user,
        serve_app(service) as app,
    ):
        head = make_request("/discover", f"X-API-Key: {user.key}", content_length=100_000)
        slow = await app.connect(head)
        answer = asyncio.create_task(slow.read_head())
        while not answer.done():
            slow.writer.write(b" ")
            await asyncio.wait({answer}, timeout=0.05)
        assert answer.result().startswith(b"HTTP/1.1 408 ")
        problem = await slow.reader.readuntil(b"}")
        assert b'"code":"request_timeout"' in problem
        slow.close()


async def test_a_large_body_may_take_longer_than_the_deadline(open_service: OpenService) -> None:
    """It moves by a second for each 64 KiB."""
    async with (
        open_service(body_timeout_s=DEADLINE_S) as service,
        new_user(service) as user,
        serve_app(service) as app,
    ):
        body = b'{"query": "read a file"}' + b" " * 900_000
        head = make_request("/discover", f"X-API-Key: {user.key}", content_length=len(body))
        started = time.monotonic()
        patient = await app.connect(head + body[:200_000])
        for part in range(200_000, len(body), 100_000):
            await asyncio.sleep(0.2)
            patient.writer.write(body[part : part + 100_000])
        assert (await patient.read_head()).startswith(b"HTTP/1.1 200 ")
        assert time.monotonic() - started > DEADLINE_S
        patient.close()


async def test_half_sent_headers_end_at_the_deadline(open_service: OpenService) -> None:
    settings = {"max_in_flight": 10, "head_timeout_s": DEADLINE_S}
    async with open_service(**settings) as service, new_user(service) as user, serve_app(service) as app:
        first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sent = [b"", b"\r\n", b"POST /discover HTTP/1.1\r\nHost: lo", first + b"GET /healthz HT"]
        async with app.client(user) as http, attack(app, *sent) as attackers:
            await assert_served(http)
            answers = await asyncio.gather(*(attacker.read_rest() for attacker in attackers))
            assert {answer[:15] for answer in answers} == {b"", b"HTTP/1.1 200 OK"}
            await app.wait_for_connections(1)
            await assert_served(http, 1)


async def test_headers_beyond_64_kib_are_refused_while_they_arrive(container: Container) -> None:
    begin = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Large: "
    async with serve_app(container) as app:
        fitting = await app.connect(begin)
        fitting.writer.write(b"a" * 30_000 + b"\r\n\r\n")
        assert (await fitting.read_head()).startswith(b"HTTP/1.1 200 ")
        fitting.close()
        endless = await app.connect(begin)
        answer = asyncio.create_task(endless.read_rest())
        with contextlib.suppress(ConnectionError):
            while not answer.done():
                endless.writer.write(b"a" * 10_000)
                await endless.writer.drain()
        assert (await answer)[:12] in (b"HTTP/1.1 431", b"")  # a client that goes on sending may lose the answer
        endless.close()
        await app.wait_for_connections(0)


async def test_the_connection_that_waits_longest_is_closed_if_too_many_wait(container: Container) -> None:
    answered = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serve_app(container, max_waiting=10) as app, attack(app, b"", answered):
        await app.wait_for_connections(10)
        newest = await app.connect(answered)
        assert (await newest.read_head()).startswith(b"HTTP/1.1 200 ")
        await app.wait_for_connections(10)
        newest.writer.write(answered)
        await newest.reader.readuntil(b"}")
        assert (await newest.read_head()).startswith(b"HTTP/1.1 200 ")
        newest.close()


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_large_bodies_of_strangers_are_not_read(container: Container, connection: str) -> None:
    """They are dropped as they come: a client that sends its whole body first still gets its answer."""
    async with serve_app(container) as app:
        large = b" " * (15 * 1024 * 1024)
        async with httpx.AsyncClient(base_url=app.url, timeout=30) as http:
            refused = await http.put(
                "/servers/x/tools",
                content=large,
                headers={
                    "Content-Type": "application/json",
                    "Authorization": "Bearer nobody",
                    "Connection": connection,
                },
            )
            assert_problem(refused, 401)
            assert refused.headers["www-authenticate"] == "Bearer"
            if connection == "close":
                await app.wait_for_connections(0)


async def test_a_client_that_does_not_read_its_response_is_disconnected(open_service: OpenService) -> None:
    """Its answers fill the buffers of both sides, those of the kernel too."""
    async with open_service(body_timeout_s=DEADLINE_S, max_in_flight=1_000) as service, serve_app(service) as app:
        sent = b"GET /docs/static/swagger/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60
        async with httpx.AsyncClient(base_url=app.url) as http, attack(app, sent):
            assert (await http.get("/healthz")).status_code == 200
            await app.wait_for_connections(1)
            await wait_until_nothing_is_held(http)
            assert (await http.get("/docs/static/swagger/swagger-ui-bundle.js")).status_code == 200


async def test_people_can_sign_in_while_strangers_send_half_a_form(open_service: OpenService) -> None:
    async with open_service(max_in_flight=10) as service, new_user(service) as user, serve_app(service) as app:
        half = make_request("/console/sign-in", body=b"key=", content_length=900)
        async with attack(app, half), httpx.AsyncClient(base_url=app.url, timeout=30) as http:
            assert (await http.get("/console/sign-in")).status_code == 200
            answer = await http.post("/console/sign-in", data={"key": user.key})
            assert (answer.status_code, answer.headers["location"]) == (303, "/console")
            large = await http.post("/console/sign-in", data={"key": "x" * 70_000})
            assert_problem(large, 413)
        await app.wait_for_connections(0)


async def test_a_key_is_looked_up_once_for_each_request(
    container: Container, user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = []
    authenticate = container.authenticator.authenticate_digest

    async def count(digest: bytes, user_id: str | None) -> object:
        lookups.append(digest)
        return await authenticate(digest, user_id)

    monkeypatch.setattr(container.authenticator, "authenticate_digest", count)
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await user.http.post("/discover", json={"query": "x"})).status_code == 200
    assert len(lookups) == 1
    assert (await user.http.post("/mcp", json=message, headers={"Host": "localhost"})).status_code in (200, 406)
    assert len(lookups) == 2
    async with open_client(container) as stranger:
        for path in ("/healthz", "/docs", "/console/sign-in", "/tools"):
            await stranger.get(path)
    assert len(lookups) == 2

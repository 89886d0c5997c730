"""The end of a service: nobody who has knocked stands before a closed door."""

import asyncio
import socket

import pytest
import uvicorn

from app.cli.serving import _Server
from app.wiring import Container
from tests.conftest import app_of
from tests.indexing.by_hand import until

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def test_whoever_has_knocked_is_let_in_before_the_port_is_closed(container: Container) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    config = uvicorn.Config(app_of(container), log_config=None, lifespan="off", ws="none")
    server = _Server(config, "", asyncio.Event(), drain_s=0)
    listeners = [listener]
    serving = asyncio.create_task(server.serve(sockets=listeners))

    async def is_open() -> bool:
        return server.started

    await until(is_open)
    # the system has let them in, but we have not looked since: nothing is awaited in between
    knocking = [socket.create_connection(place) for _ in range(3)]
    for client in knocking:
        client.sendall(REQUEST)
    server._let_in_the_last(listeners)
    listeners.clear()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    answers = [await asyncio.to_thread(client.recv, 65_536) for client in knocking]
    assert {answer[:15] for answer in answers} == {b"HTTP/1.1 200 OK"}
    for client in knocking:
        client.close()
    server.should_exit = True
    await serving

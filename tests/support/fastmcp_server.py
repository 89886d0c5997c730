"""A server of FastMCP that is its own authorization server: it wants OAuth and grants it to everybody at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastmcp import FastMCP
from fastmcp.server.auth.auth import ClientRegistrationOptions, RevocationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider

from bench.service import free_port
from tests.support.protected_server import running_app

_SCOPES = ["tasks"]


@dataclass(frozen=True)
class FastMcpServer:
    port: int
    auth: InMemoryOAuthProvider

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def running_fastmcp_server() -> Iterator[FastMcpServer]:
    port = free_port()
    auth = InMemoryOAuthProvider(
        base_url=f"http://127.0.0.1:{port}",
        client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=_SCOPES),
        revocation_options=RevocationOptions(enabled=True),
        required_scopes=_SCOPES,
    )
    mcp: FastMCP = FastMCP("tasks", auth=auth)

    # a docstring would need one more package, to be parsed
    mcp.tool(_add_task, name="add_task", description="Add a task to the list of things to do.")
    with running_app(mcp.http_app(path="/mcp"), port):
        yield FastMcpServer(port, auth)


def _add_task(title: str) -> str:
    return f"added {title}"

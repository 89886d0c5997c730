"""What a registry says about an MCP server. Its texts come from strangers: they are short, in one line and visible."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.mcp_types import Transport

InputKind = Literal["header", "variable"]
EntryStatus = Literal["active", "deprecated", "deleted"]

LOCAL_ONLY = "it runs as a program on one's own computer only: it has no URL to connect to"


@dataclass(frozen=True)
class RegistryInput:
    """A value that the user gives: a header, or a variable in the URL or in the value of a header."""

    kind: InputKind
    name: str
    description: str = ""
    required: bool = False
    secret: bool = False
    default: str | None = None
    placeholder: str | None = None
    choices: Sequence[str] = ()


@dataclass(frozen=True)
class RemoteHeader:
    name: str
    template: str | None
    """The value, with variables as `{name}`; None if the user gives the whole value."""
    required: bool


@dataclass(frozen=True)
class Remote:
    """An address at which the server can be reached."""

    transport: Transport
    url: str
    """A template: variables stand in it as `{name}`."""
    headers: Sequence[RemoteHeader] = ()
    inputs: Sequence[RegistryInput] = ()


@dataclass(frozen=True)
class RegistryServer:
    name: str
    """In reverse-DNS form: `io.github.user/weather`."""
    title: str
    description: str
    version: str
    status: EntryStatus
    status_message: str
    website_url: str | None
    repository_url: str | None
    remotes: Sequence[Remote]
    """The recommended one first."""

    @property
    def usable(self) -> bool:
        return bool(self.remotes)

    @property
    def unusable_reason(self) -> str | None:
        return None if self.usable else LOCAL_ONLY

    @property
    def suggested_name(self) -> str:
        """Return a name for the user's server: `weather` for `io.github.user/weather`, `acme` for `com.acme/mcp`."""
        namespace, _, name = self.name.partition("/")
        return namespace.rpartition(".")[2] if name.lower() in _MEANINGLESS_NAMES else name[:128]


_MEANINGLESS_NAMES = frozenset({"mcp", "mcp-server", "mcp_server", "server", "remote", "remote-mcp"})


@dataclass(frozen=True)
class RegistryPage:
    servers: Sequence[RegistryServer]
    next_cursor: str | None


@dataclass(frozen=True)
class RegistrySearchResult:
    servers: Sequence[RegistryServer]
    next_cursor: str | None
    not_allowed: int
    """How many servers were left out because the operator does not allow them."""

"""MCP types that several packages share: a server's endpoint, a tool definition, the input a tool call may request."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app.text.strict_json import Json, canonical_json

Transport = Literal["streamable_http", "sse", "stdio", "push"]

TRANSPORT_ALIASES: Mapping[str, Transport] = {
    "http": "streamable_http",
    "streamable-http": "streamable_http",
    "streamableHttp": "streamable_http",
}
"""MCP clients have several names for streamable HTTP. All are accepted, and stored as one."""

FINGERPRINT_VERSION = 2
"""Stored with each hash, so that an upgrade of Toolscout does not look like a change of all tools."""

_SSE_URL = re.compile(r"[^/?#]*//[^/?#]+(/[^?#]*)?/sse/?([?#].*)?", re.DOTALL)


def guess_transport(url: str) -> Transport:
    """Return the transport of a URL for which none is given. By convention, endpoints of the SSE transport end in
    `/sse`."""
    return "sse" if _SSE_URL.fullmatch(url) else "streamable_http"


@dataclass(frozen=True)
class Endpoint:
    """The address of an MCP server and the headers to send. A new `config_version` requires a new connection."""

    user_id: str
    server_id: str
    server_name: str
    config_version: int
    transport: Transport
    url: str | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    credential_version: int = 0
    """The version of the access token in the headers; 0 if there is none. A newer one needs no new connection."""
    is_issued: bool = False
    """Whether the operator's credential service has issued headers for it."""
    shared_id: str | None = None
    """The shared server that this one is a member's copy of."""
    uses_operator_account: bool = False
    """Whether calls of the copy use the shared server's credentials."""

    signed_in: bool = False
    """Whether the user has signed in to the server, so that there is a token to add."""
    needs_sign_in: bool = False
    """Whether the server was last seen to want a sign-in."""

    @property
    def has_own_credentials(self) -> bool:
        """Whether the headers are those that the user has stored, without a token that Toolscout keeps fresh."""
        return bool(self.headers) and not self.credential_version


@dataclass(frozen=True)
class ToolList:
    """The tools that a server lists, and how its list may be cached."""

    tools: list[Json]
    ttl_s: float | None = None
    """For so long the server expects no change; None if it does not say."""
    is_public: bool = False
    """Whether the server says that the list is the same for everybody."""


@dataclass(frozen=True)
class Dialogue:
    """How a server can request more input from the caller during a tool call, and the caller's responses so far."""

    capabilities: Json
    """The client capabilities that the caller declares, such as `elicitation`."""
    responses: Json | None = field(default=None, repr=False)
    state: str | None = field(default=None, repr=False)
    """The server's opaque state, which must be sent back unchanged."""


@dataclass(frozen=True)
class ToolDefinition:
    """An MCP tool as its server lists it."""

    name: str
    title: str | None
    description: str
    input_schema: Json
    output_schema: Json | None
    annotations: Json | None
    meta: Json | None
    icons: Sequence[Any] | None = None
    execution: Json | None = None

    def as_mcp(self) -> Json:
        fields: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
            "_meta": self.meta,
            "icons": self.icons,
            "execution": self.execution,
        }
        return {key: value for key, value in fields.items() if value is not None}

    def without_icons_and_execution(self) -> "ToolDefinition":
        return replace(self, icons=None, execution=None)

    def fingerprint(self) -> str:
        """Return the hash of the whole definition. A change of what it covers needs a new `FINGERPRINT_VERSION`."""
        return hashlib.sha256(canonical_json(self.as_mcp())).hexdigest()

    def fingerprint_of_version_1(self) -> str:
        """Return the hash that versions up to 0.2 have stored, which did not cover icons and execution."""
        return self.without_icons_and_execution().fingerprint()

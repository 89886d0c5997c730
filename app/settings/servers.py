"""Connections to users' MCP servers: programs, credentials, timeouts, sizes."""

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr


class ServerSettings(BaseModel):
    stdio_servers: Path | None = Field(
        None, description="JSON file with the stdio servers that users may add: `{name: {argv: [...], env: {}}}`"
    )
    credential_url: str | None = Field(
        None,
        description="URL of a service of your own that is asked for the headers to send to a user's server, where the "
        "user has not signed in through Toolscout: `POST {user_id, server}` answers `{headers, expires_in}` or 404; it "
        "may be in your own network and use plain HTTP",
    )
    credential_key: SecretStr | None = Field(
        None, description="secret for `TOOLSCOUT_CREDENTIAL_URL`, sent as a bearer token"
    )
    credential_timeout_s: float = Field(
        5.0, gt=0, le=60, description="timeout in seconds for a request to `TOOLSCOUT_CREDENTIAL_URL`"
    )
    # The SDK waits for an older server that ignores the newer handshake. A shorter timeout would end every connection
    # to such a server during that wait.
    connect_timeout_s: float = Field(
        15.0, gt=0, le=300, description="timeout in seconds for connecting to an MCP server, handshake included"
    )
    list_timeout_s: float = Field(
        30.0, gt=0, le=600, description="timeout in seconds for listing the tools of a server"
    )
    call_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="timeout in seconds for a tool call, unless the request sets `timeout_ms`"
    )
    max_call_timeout_s: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="the highest timeout in seconds that a request can set with `timeout_ms`: a higher one counts as "
        "this one, or as `TOOLSCOUT_CALL_TIMEOUT_S` if that is higher",
    )
    upstream_idle_s: float = Field(
        300.0, gt=0, description="seconds after which an idle connection to an MCP server is closed"
    )
    upstream_connections: int = Field(
        500,
        ge=1,
        description="maximum number of MCP servers that each process is connected to at the same time; one user may "
        "have four fifths of the connections",
    )
    upstream_max_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024,
        description="maximum size in bytes of one response of an MCP server, after decompression",
    )
    max_result_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description="maximum size in bytes of the result of a tool; a larger one is truncated and marked",
    )
    max_resource_bytes: int = Field(
        4 * 1024 * 1024,
        ge=1024,
        description="maximum size in bytes of a resource or a prompt that `/mcp/full` passes on; a larger one is "
        "refused",
    )
    mcp_list_cache_s: float = Field(
        3600.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="seconds for which lists of servers and tools are cached for MCP clients (`list_servers`, "
        "`list_tools`); a change of the catalogue is seen at once; 0 caches no lists",
    )
    mcp_result_tokens: int = Field(
        2_000,
        ge=0,
        description="tokens that a result of `tool_discovery` may take in full; a longer one shows signatures instead "
        "of schemas, unless the caller asks for `detail`; 0 always shows signatures",
    )

"""Request and response models of MCP servers."""

from datetime import datetime
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from app.catalog.availability import Status
from app.catalog.request_headers import HEADER_VALUE, MAX_HEADER_VALUE, MAX_HEADERS, check_header_names
from app.catalog.servers import check_transport
from app.catalog.shared_servers import Credentials
from app.catalog.visibility_policy import ANY_TOOL
from app.mcp_types import TRANSPORT_ALIASES, Transport
from app.schemas.base import (
    Changes,
    Description,
    FieldError,
    Input,
    Name,
    Output,
    ShownText,
    Tags,
    Visible,
    make_synonyms,
)

HeaderValue = Annotated[str, StringConstraints(max_length=MAX_HEADER_VALUE, pattern=HEADER_VALUE)]
ToolPermissions = Annotated[dict[Visible, bool], Field(max_length=1_000)]
_NAME = "unique among the user's servers; for a stdio server, its name in the operator's file"
_URL = "its MCP endpoint: https, or a host that TOOLSCOUT_OUTBOUND_ALLOW lists; not for `stdio` and `push`"
_DESCRIPTION = "what it is for; not searched"
_HEADERS = "sent with every request to it, such as its token; stored encrypted and never returned"
_TAGS = "added to all its tools"
_ENABLED = "false: none of its tools can be found or run"
_TRANSPORT = (
    "`http`, `streamable-http` and `streamableHttp` are other names of `streamable_http`; "
    "`push`: its tools are sent by `PUT /servers/{server_id}/tools`"
)
_PERMISSIONS = "which tools may be found and run, by name; `*` stands for all others; empty: all tools may"


def _resolve_transport_alias(value: Any) -> Any:
    if isinstance(value, str) and value not in (*get_args(Transport), *TRANSPORT_ALIASES):
        aliases = ", ".join(f"`{alias}`" for alias in TRANSPORT_ALIASES)
        raise ValueError(f"must be `streamable_http` (or one of its other names: {aliases}), `sse`, `stdio` or `push`")
    return TRANSPORT_ALIASES.get(value, value) if isinstance(value, str) else value


GivenTransport = Annotated[Transport, BeforeValidator(_resolve_transport_alias)]


class _ServerFields(Input):
    synonyms = make_synonyms(
        transport="type",
        url="uri endpoint address",
        tool_permissions="permissions allowed_tools",
    )

    @field_validator("tool_permissions", check_fields=False)
    @classmethod
    def _check_tool_permissions(cls, value: dict[str, bool]) -> dict[str, bool]:
        if any("*" in name and name != ANY_TOOL for name in value):
            raise ValueError("names are exact, and `*` stands for all others; patterns are for rules")
        return value

    @field_validator("headers", check_fields=False)
    @classmethod
    def _check_headers(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        check_header_names(value or {})
        return value


class NewServerBody(_ServerFields):
    name: Name = Field(description=_NAME, examples=["github"])
    transport: GivenTransport = Field(description=_TRANSPORT, examples=["push"])
    description: Description = Field("", description=_DESCRIPTION)
    url: str | None = Field(None, max_length=2_048, description=_URL)
    headers: dict[str, HeaderValue] = Field({}, max_length=MAX_HEADERS, description=_HEADERS)
    tags: Tags = Field([], description=_TAGS)
    enabled: bool = Field(True, description=_ENABLED)
    tool_permissions: ToolPermissions = Field({}, description=_PERMISSIONS)

    @model_validator(mode="after")
    def _check_url(self) -> "NewServerBody":
        try:
            check_transport(self.transport, self.url)
        except ValueError as error:
            raise FieldError(str(error), "url") from error
        return self


class ServerChanges(_ServerFields, Changes):
    name: Name = Field("", description=_NAME)
    description: Description = Field("", description=_DESCRIPTION)
    transport: GivenTransport = Field("push", description=_TRANSPORT)
    url: str | None = Field(None, max_length=2_048, description=_URL)
    headers: dict[str, HeaderValue] | None = Field(None, max_length=MAX_HEADERS, description=_HEADERS)
    tags: Tags = Field([], description=_TAGS)
    enabled: bool = Field(True, description=_ENABLED)
    tool_permissions: ToolPermissions = Field({}, description=_PERMISSIONS)


class CredentialsBody(_ServerFields):
    synonyms = make_synonyms(headers="header credentials")

    headers: dict[str, HeaderValue] = Field(
        min_length=1,
        max_length=MAX_HEADERS,
        description=f"{_HEADERS}; they replace all stored headers",
        examples=[{"Authorization": "Bearer its-token"}],
    )


class ServerOut(Output):
    id: str
    user_id: str
    name: ShownText
    description: ShownText
    transport: Transport
    url: str | None
    header_names: list[str]
    tags: list[ShownText]
    tool_permissions: dict[str, bool]
    enabled: bool
    status: Status = Field(
        description="after the last contact; `push`: Toolscout does not connect to it; `needs_authorization`: it wants "
        "the user to sign in, see `POST /servers/{id}/connect`"
    )
    last_error: str | None
    last_cause: str | None = Field(description="the cause of the last error, as one stable word")
    config_version: int
    tool_count: int
    pending_count: int
    signed_in: bool = Field(description="whether the user has signed in to it through Toolscout")
    shared: bool = Field(description="whether an administrator manages it for many users: it cannot be changed here")
    shared_credentials: Credentials | None = Field(
        description="of a shared server, whose credentials calls use: `member`, the user's own; `operator`, the "
        "administrator's; null if it is not shared"
    )
    created_at: datetime
    updated_at: datetime

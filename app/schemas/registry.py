"""Request and response models of `/registry/servers` and `/servers/from-registry`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from app.catalog.servers import NewServer, Server
from app.errors import InvalidInput
from app.mcp_types import Transport
from app.registry.models import EntryStatus, InputKind, RegistrySearchResult, RegistryServer
from app.registry.remote_values import choose_remote, fill_remote
from app.schemas.base import Description, Input, Name, Output, Tags, describe_errors
from app.schemas.servers import HeaderValue, NewServerBody, ServerOut

RegistryName = Annotated[str, StringConstraints(min_length=3, max_length=200)]
_VariableName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
_VariableValue = Annotated[str, StringConstraints(max_length=8_192)]


class RegistryInputOut(Output):
    kind: InputKind = Field(description="where its value belongs: into `headers` or into `variables`")
    name: str
    description: str
    required: bool
    secret: bool = Field(description="whether to hide it while a person types")
    default: str | None = Field(description="used if no value is given")
    placeholder: str | None = Field(description="an example for people")
    choices: list[str] = Field(description="the values that are allowed; empty: any")


class RemoteOut(Output):
    transport: Transport
    url: str = Field(description="variables stand in it as `{name}`")
    inputs: list[RegistryInputOut] = Field(description="the headers and variables to give when it is added")


class RegistryServerOut(Output):
    name: str = Field(examples=["io.github.user/weather"])
    title: str
    description: str
    version: str
    status: EntryStatus
    status_message: str = Field(description="such as the reason why it is deprecated")
    website_url: str | None
    repository_url: str | None
    usable: bool = Field(description="whether it has a remote, so that it can be added")
    unusable_reason: str | None
    suggested_name: str = Field(description="the name that it gets unless another one is given")
    remotes: list[RemoteOut] = Field(description="the one that is taken unless another one is chosen comes first")


class RegistryOmittedOut(Output):
    count: int
    reason: Literal["not_allowed"]


class RegistryServersOut(Output):
    items: list[RegistryServerOut]
    next_cursor: str | None
    omitted: RegistryOmittedOut | None = Field(
        description="how many servers the operator's allow-list leaves out of this page"
    )


class FromRegistryBody(Input):
    registry_name: RegistryName = Field(
        description="the server's name in the registry", examples=["io.github.user/weather"]
    )
    name: Name | None = Field(None, description="unique among the user's servers; null: `suggested_name`")
    remote_url: str | None = Field(
        None, max_length=2_048, description="the `url` of one of its `remotes`; null: the first one"
    )
    headers: dict[str, HeaderValue] = Field(
        {}, max_length=32, description="values of its headers, and any others; stored encrypted and never returned"
    )
    variables: dict[_VariableName, _VariableValue] = Field(
        {}, max_length=64, description="values of the variables in its URL and headers"
    )
    description: Description | None = Field(None, description="null: that of the registry")
    tags: Tags = Field([], description="added to all its tools")
    enabled: bool = Field(True, description="false: none of its tools can be found or run")


class FromRegistryOut(Output):
    server: ServerOut
    registry_name: str
    version: str
    remote_url: str = Field(description="the `url` of the remote that was taken, with its variables")
    notes: list[str] = Field(description="what to know about it, such as that it is deprecated")


@dataclass(frozen=True)
class PlannedServer:
    """A server of the registry with the user's values, validated by the rules of `POST /servers`."""

    new_server: NewServer = field(repr=False)
    registry_name: str
    version: str
    remote_url: str
    notes: Sequence[str]


def plan_registration(entry: RegistryServer, body: FromRegistryBody) -> PlannedServer:
    """Put the user's values into the entry, and validate the result.

    Raise `InvalidInput`, whose `errors` name every header and variable that is missing.
    """
    remote = choose_remote(entry, body.remote_url)
    filled = fill_remote(remote, body.headers, body.variables)
    try:
        checked = NewServerBody(
            name=body.name or entry.suggested_name,
            transport=remote.transport,
            description=entry.description if body.description is None else body.description,
            url=filled.url,
            headers=dict(filled.headers),
            tags=body.tags,
            enabled=body.enabled,
        )
    except ValidationError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from None
    notes = [*_list_notes(entry), *filled.notes]
    return PlannedServer(NewServer(**checked.model_dump()), entry.name, entry.version, remote.url, notes)


def _list_notes(entry: RegistryServer) -> list[str]:
    if entry.status != "deprecated":
        return []
    return [f"its publisher has deprecated it{f': {entry.status_message}' if entry.status_message else ''}"]


def render_registration(planned: PlannedServer, server: Server) -> FromRegistryOut:
    return FromRegistryOut(
        server=ServerOut.model_validate(server),
        registry_name=planned.registry_name,
        version=planned.version,
        remote_url=planned.remote_url,
        notes=list(planned.notes),
    )


def render_search(result: RegistrySearchResult) -> RegistryServersOut:
    omitted = RegistryOmittedOut(count=result.not_allowed, reason="not_allowed") if result.not_allowed else None
    items = [RegistryServerOut.model_validate(server) for server in result.servers]
    return RegistryServersOut(items=items, next_cursor=result.next_cursor, omitted=omitted)

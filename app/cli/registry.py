"""`toolscout server search`, and what `toolscout server add --from-registry` asks for."""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated

import typer
from pydantic import ValidationError

from app.cli.context import ACTOR, with_settings
from app.cli.output import print_lines, print_table
from app.cli.values import ask_for_value, can_ask
from app.errors import InvalidInput
from app.observability.metrics import Metrics
from app.registry.client import make_registry_client, require_registry
from app.registry.models import RegistrySearchResult, RegistryServer
from app.registry.remote_values import choose_remote, find_open_inputs
from app.schemas.base import describe_errors
from app.schemas.registry import FromRegistryBody, PlannedServer, plan_registration, render_search
from app.settings import Settings

_MAX_LIMIT = 100


@with_settings
async def search(
    settings: Settings,
    word: Annotated[
        str, typer.Argument(metavar="WORD", help="A part of the server's name. Without it: all servers.")
    ] = "",
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MAX_LIMIT, help="The maximum number of servers.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer of `GET /registry/servers`, with all details.")
    ] = False,
) -> int:
    """Search the MCP registry of TOOLSCOUT_REGISTRY_URL for servers."""
    async with aclosing(require_registry(make_registry_client(settings, Metrics()))) as registry:
        result = await registry.search(ACTOR, word.strip(), limit)
    if as_json:
        print(render_search(result).model_dump_json(indent=2))
    else:
        _print_result(result)
    return 0


async def read_entry(settings: Settings, name: str) -> RegistryServer:
    async with aclosing(require_registry(make_registry_client(settings, Metrics()))) as registry:
        return await registry.get_server(ACTOR, name)


def _print_result(result: RegistrySearchResult) -> None:
    if result.servers:
        rows = [(server.name, server.version, _describe_use(server), server.description) for server in result.servers]
        plain = [f"{name:40}  {version:12}  {use:10}  {text}".rstrip() for name, version, use, text in rows]
        print_table(["name", "version", "use", "description"], rows, plain)
        print_lines(["", "to add one: toolscout server add --from-registry NAME"])
    else:
        print_lines(["no servers found"])
    if result.not_allowed:
        print_lines([f"{result.not_allowed} more are not allowed by TOOLSCOUT_REGISTRY_ALLOW"])
    if result.next_cursor is not None:
        print_lines(["there are more: search for a longer part of the name, or raise --limit"])


def _describe_use(server: RegistryServer) -> str:
    if not server.usable:
        return "local only"
    return "deprecated" if server.status == "deprecated" else "remote"


def plan_server(
    entry: RegistryServer,
    name: str | None,
    remote_url: str | None,
    headers: Mapping[str, str],
    variables: Mapping[str, str],
    description: str,
) -> PlannedServer:
    """Return the server to register. On a terminal, ask for the required values that are missing."""
    headers, variables = dict(headers), dict(variables)
    if can_ask():
        for missing in find_open_inputs(choose_remote(entry, remote_url), headers, variables):
            if missing.required:
                values = headers if missing.kind == "header" else variables
                values[missing.name] = ask_for_value(
                    missing.name,
                    description=missing.description or missing.placeholder,
                    choices=missing.choices,
                    default=None,
                    hidden=missing.secret,
                )
    try:
        body = FromRegistryBody(
            registry_name=entry.name,
            name=name,
            remote_url=remote_url,
            headers=headers,
            variables=variables,
            description=description or None,
        )
    except ValidationError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from None
    try:
        return plan_registration(entry, body)
    except InvalidInput as error:
        if not any(each["type"] == "missing" for each in error.errors or ()):
            raise
        raise InvalidInput(
            f"{error.message}; give them with --header 'Name: value' and --variable NAME=VALUE"
        ) from None

"""`toolscout server add`, `search`, `import`, `list`, `connect`, `disconnect`, `remove` and `reindex`."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from app.catalog import servers
from app.catalog.servers import NewServer, Server
from app.cli.connections import ServerName, connect, disconnect, find_server
from app.cli.context import ACTOR, UserOption, open_for_user, read_all_pages, with_settings
from app.cli.group import make_group
from app.cli.output import print_lines, print_table
from app.cli.registry import plan_server, read_entry, search
from app.cli.run_progress import follow_run, reindex_command
from app.cli.server_import import import_file
from app.cli.values import parse_assignment
from app.container import Container
from app.db.pagination import Page, PageRequest
from app.demo.seed import DEMO_USER
from app.errors import Conflict, InvalidInput
from app.indexing.queue import Run
from app.management.runs import request_reindex
from app.management.servers import delete_server, register_server
from app.mcp_client.stdio_servers import read_stdio_servers
from app.mcp_types import TRANSPORT_ALIASES, Transport, guess_transport
from app.schemas.base import describe_errors
from app.schemas.servers import NewServerBody
from app.settings import Settings

GivenTransport = Literal["streamable_http", "http", "streamable-http", "streamableHttp", "sse", "stdio"]
_HEADER_SEPARATOR = re.compile("[:=]")

commands = make_group()
server_commands = make_group("Manage a user's MCP servers.")
commands.add_typer(server_commands, name="server")


@server_commands.command("add")
@with_settings
async def add(
    settings: Settings,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The server's name. For a stdio server: its name in TOOLSCOUT_STDIO_SERVERS. With --from-registry it "
            "may be left out.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The MCP endpoint. A stdio server has none.", show_default=False)
    ] = None,
    transport: Annotated[
        GivenTransport | None,
        typer.Option(
            "--transport",
            help="The transport; http is short for streamable_http. Without it: stdio if there is no URL, sse if the "
            "URL's path ends in /sse, and streamable_http otherwise.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="HEADER",
            help="A header of each request, stored encrypted: 'Name: value' or NAME=VALUE. Repeatable.",
        ),
    ] = None,
    from_registry: Annotated[
        str | None,
        typer.Option(
            "--from-registry",
            metavar="REGISTRY_NAME",
            help="Take address and headers from the MCP registry: the name that `toolscout server search` lists. URL "
            "chooses one of several addresses. Required values that are missing are asked for on a terminal.",
        ),
    ] = None,
    variable: Annotated[
        list[str] | None,
        typer.Option(
            "--variable",
            metavar="NAME=VALUE",
            help="With --from-registry: the value of a variable in the server's URL or headers. Repeatable.",
        ),
    ] = None,
    description: Annotated[str, typer.Option("--description", help="What the server is for.", show_default=False)] = "",
    user: UserOption = DEMO_USER,
) -> int:
    """Register a server and index its tools."""
    notes: Sequence[str] = ()
    if from_registry is not None:
        if transport is not None:
            raise InvalidInput("the registry says which transport it is: leave --transport out")
        entry = await read_entry(settings, from_registry)
        headers = dict(map(_parse_header, header or []))
        variables = dict(parse_assignment(text, "--variable") for text in variable or [])
        planned = plan_server(entry, name, url, headers, variables, description)
        new_server, notes = planned.new_server, planned.notes
    elif name is None or variable:
        raise InvalidInput("give the server's NAME" if name is None else "--variable needs --from-registry")
    else:
        new_server = make_new_server(name, url, transport, header or [], description)
    if new_server.transport == "stdio":
        _check_stdio_server(settings, new_server.name, user)
    async with open_for_user(settings, user) as (container, _):
        server, run = await _register(container, user, new_server)
        print_lines([f"{server.name}  {server.id}", *(f"note: {note}" for note in notes)])
        return 0 if run is None else await follow_run(container, server, run, is_new=True)


async def _register(container: Container, user_id: str, new_server: NewServer) -> tuple[Server, Run | None]:
    try:
        return await register_server(
            container.database,
            container.mcp_pool,
            container.sealer,
            container.worker,
            user_id,
            new_server,
            container.quotas,
            actor=ACTOR,
        )
    except Conflict as error:
        command = reindex_command(new_server.name, user_id)
        raise Conflict(
            f"{error.message}; to index it again, run {command}; to add another one, give another NAME"
        ) from None


def make_new_server(
    name: str, url: str | None, transport: GivenTransport | None, headers: list[str], description: str
) -> NewServer:
    """Validate the server by the same rules as REST."""
    try:
        body = NewServerBody(
            name=name,
            transport=_to_transport(transport, url),
            description=description,
            url=url,
            headers=dict(_parse_header(text) for text in headers),
        )
    except ValidationError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from None
    return NewServer(**body.model_dump())


def _to_transport(given: GivenTransport | None, url: str | None) -> Transport:
    if given is None:
        return "stdio" if url is None else guess_transport(url)
    return given if given in ("streamable_http", "sse", "stdio") else TRANSPORT_ALIASES[given]


def _check_stdio_server(settings: Settings, name: str, user_id: str) -> None:
    listed = read_stdio_servers(settings).list_names(user_id)
    if name not in listed:
        raise InvalidInput(
            f"give the URL of its MCP endpoint (`toolscout server add {name} URL`, with `--transport sse` if need be) "
            f"or the name of a stdio server that TOOLSCOUT_STDIO_SERVERS lists ({', '.join(listed) or 'it lists none'})"
        )


def _parse_header(text: str) -> tuple[str, str]:
    """The first `:` or `=` ends the name: neither can be part of one. The error does not repeat the text, which may
    be a credential."""
    separator = _HEADER_SEPARATOR.search(text)
    if separator is None or not text[: separator.start()].strip():
        raise InvalidInput("a header is written 'Name: value' or NAME=VALUE")
    name, value = text[: separator.start()], text[separator.end() :]
    return name.strip(), value.strip() if separator[0] == ":" else value


server_commands.command("search")(search)
server_commands.command("import")(import_file)
server_commands.command("connect")(connect)
server_commands.command("disconnect")(disconnect)


@server_commands.command("list")
@with_settings
async def list_servers(settings: Settings, user: UserOption = DEMO_USER) -> int:
    """List the user's servers with their status and the number of their tools."""
    async with open_for_user(settings, user) as (container, _):
        found = await _list_all(container, user)
    if not found:
        print("no servers yet; to add one, see `toolscout server add --help`")
        return 0
    print_table(
        ["name", "transport", "status", "tools", "last error"],
        [
            [server.name, server.transport, server.status, str(server.tool_count), server.last_error or ""]
            for server in found
        ],
        [
            f"{server.name:24}  {server.transport:15}  {server.status:19}  {server.tool_count:5} tools"
            + (f"  {server.last_error}" if server.last_error else "")
            for server in found
        ],
    )
    return 0


@server_commands.command("remove")
@with_settings
async def remove(
    settings: Settings,
    name: ServerName,
    user: UserOption = DEMO_USER,
) -> int:
    """Remove a server and its tools."""
    async with open_for_user(settings, user) as (container, owner):
        server = await find_server(container, owner.id, name)
        await delete_server(
            container.database,
            container.mcp_pool,
            owner.id,
            server.id,
            ann_above=settings.search_ann_above,
            actor=ACTOR,
        )
    print_lines([f"{server.name}: removed, with {server.tool_count} tools"])
    return 0


@server_commands.command("reindex")
@with_settings
async def reindex(
    settings: Settings,
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="The servers' names. Without one: all servers of the user."),
    ] = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Embed unchanged tools again, and accept an empty list of tools.")
    ] = False,
    user: UserOption = DEMO_USER,
) -> int:
    """List the tools of servers again and index what has changed."""
    names = name or []
    async with open_for_user(settings, user) as (container, _):
        found = await _list_all(container, user)
        if unknown := set(names) - {server.name for server in found}:
            raise InvalidInput(f"there is no server named {min(unknown)!r}")
        chosen = [server for server in found if not names or server.name in names]
        failed = 0
        for server in chosen:
            run = await request_reindex(container.database, container.worker, user, server.id, force=force, actor=ACTOR)
            failed += await follow_run(container, server, run)
    return 1 if failed else 0


async def _list_all(container: Container, user_id: str) -> list[Server]:
    async def read_page(request: PageRequest) -> Page[Server]:
        async with container.database.transaction(user_id) as session:
            return await servers.list_servers(session, user_id, request)

    return await read_all_pages(read_page)

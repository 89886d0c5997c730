"""`toolscout shared-server add`, `list`, `show`, `update`, `remove`, `reindex`, `connect` and `disconnect`."""

from typing import Annotated, Any, Literal

import typer

from app.catalog.shared_servers import Sharing
from app.cli.connections import WaitOption, begin_sign_in
from app.cli.context import ACTOR, confirm, open_with_url, read_all_pages, with_settings
from app.cli.group import make_group
from app.cli.output import print_lines, print_table
from app.cli.run_progress import follow_run
from app.cli.servers import GivenTransport, make_new_server
from app.db.pagination import Page, PageRequest
from app.db.tables import SHARED_OWNER
from app.errors import InvalidInput
from app.management import shared_servers
from app.management.runs import request_reindex
from app.management.servers import delete_server
from app.management.shared_servers import CountedServer, find_shared_server, load_shared_server
from app.schemas.base import describe_errors
from app.schemas.shared_servers import SharedServerChanges
from app.settings import Settings

commands = make_group()
shared_server_commands = make_group("Manage the servers that many users share.")
commands.add_typer(shared_server_commands, name="shared-server")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The shared server's name.")]
_Credentials = Literal["member", "operator"]
_Group = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="Share it with the users of this group. Repeatable."),
]
_User = Annotated[list[str] | None, typer.Option("--user", metavar="USER", help="Share it with this user. Repeatable.")]
_CREDENTIALS = "Whose credentials calls use: each member's own, or those of this server."


@shared_server_commands.command("add")
@with_settings
async def add(
    settings: Settings,
    name: _Name,
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The MCP endpoint. A stdio server has none.", show_default=False)
    ] = None,
    *,
    everyone: Annotated[bool, typer.Option("--everyone", help="Share it with all users, also later ones.")] = False,
    group: _Group = None,
    user: _User = None,
    credentials: Annotated[_Credentials, typer.Option("--credentials", help=_CREDENTIALS)] = "member",
    transport: Annotated[GivenTransport | None, typer.Option("--transport", help="As for `server add`.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="HEADER", help="'Name: value' or NAME=VALUE, stored encrypted. Repeatable."),
    ] = None,
    description: Annotated[str, typer.Option("--description", help="What the server is for.", show_default=False)] = "",
) -> int:
    """Register a server once for many users, and index its tools."""
    new_server = make_new_server(name, url, transport, header or [], description)
    changes = _parse(everyone=everyone, groups=group or [], user_ids=user or [], credentials=credentials)
    async with open_with_url(settings) as (container, _):
        shared, run = await shared_servers.register_shared_server(
            container.database,
            container.mcp_pool,
            container.sealer,
            container.worker,
            new_server,
            Sharing(**changes),
            actor=ACTOR,
        )
        print_lines([f"{shared.server.name}  {shared.server.id}"])
        return 0 if run is None else await follow_run(container, shared.server, run, is_new=True)


@shared_server_commands.command("list")
@with_settings
async def list_shared_servers(settings: Settings) -> int:
    """List the shared servers with their status, and how many members have them."""
    async with open_with_url(settings) as (container, _):

        async def read_page(request: PageRequest) -> Page[CountedServer]:
            return await shared_servers.list_shared_servers(container.database, request)

        found = await read_all_pages(read_page)
    if not found:
        print("no shared servers yet; to add one, see `toolscout shared-server add --help`")
        return 0
    print_table(
        ["name", "status", "tools", "members", "ready", "credentials"],
        [
            [
                shared.server.name,
                shared.server.status,
                str(shared.server.tool_count),
                str(members.total),
                str(members.ready),
                shared.sharing.credentials,
            ]
            for shared, members in found
        ],
        [
            f"{shared.server.name:24}  {shared.server.status:19}  {shared.server.tool_count:5} tools  "
            f"{members.ready} of {members.total} members ready  {shared.sharing.credentials}"
            for shared, members in found
        ],
    )
    return 0


@shared_server_commands.command("show")
@with_settings
async def show(settings: Settings, name: _Name) -> int:
    """Show who may use a shared server, and how many members have it."""
    async with open_with_url(settings) as (container, _):
        shared = await find_shared_server(container.database, name)
        shared, members = await load_shared_server(container.database, shared.server.id)
    server, sharing = shared.server, shared.sharing
    audience = ["everyone"] if sharing.everyone else []
    audience += [f"group {group}" for group in sharing.groups] + [f"user {user}" for user in sharing.user_ids]
    print_lines(
        [
            f"{server.name}  {server.id}",
            f"status       {server.status}" + (f": {server.last_error}" if server.last_error else ""),
            f"address      {server.url or server.transport}",
            f"tools        {server.tool_count}",
            f"shared with  {', '.join(audience) or 'nobody yet'}",
            f"credentials  {sharing.credentials}",
            f"members      {members.ready} of {members.total} ready",
        ]
    )
    return 0


@shared_server_commands.command("update")
@with_settings
async def update(
    settings: Settings,
    name: _Name,
    *,
    everyone: Annotated[
        bool | None, typer.Option("--everyone/--not-everyone", help="Share it with all users, or not any more.")
    ] = None,
    group: _Group = None,
    user: _User = None,
    no_groups: Annotated[bool, typer.Option("--no-groups", help="Share it with no group.")] = False,
    no_users: Annotated[bool, typer.Option("--no-users", help="Share it with no single user.")] = False,
    credentials: Annotated[_Credentials | None, typer.Option("--credentials", help=_CREDENTIALS)] = None,
) -> int:
    """Change who may use a shared server. The groups and users that are given replace the former ones."""
    given = {
        "everyone": everyone,
        "groups": [] if no_groups else group,
        "user_ids": [] if no_users else user,
        "credentials": credentials,
    }
    changes = _parse(**{key: value for key, value in given.items() if value is not None})
    if not changes:
        raise InvalidInput("nothing to change: see `toolscout shared-server update --help`")
    async with open_with_url(settings) as (container, _):
        shared = await find_shared_server(container.database, name)
        await shared_servers.change_shared_server(
            container.database,
            container.mcp_pool,
            container.sealer,
            container.worker,
            shared.server.id,
            changes,
            container.quotas,
            actor=ACTOR,
        )
    print_lines([f"{name}: changed; the members' copies follow while a service runs"])
    return 0


@shared_server_commands.command("remove")
@with_settings
async def remove(
    settings: Settings,
    name: _Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Remove a shared server and the copies of all members."""
    async with open_with_url(settings) as (container, _):
        shared = await find_shared_server(container.database, name)
        shared, members = await load_shared_server(container.database, shared.server.id)
        confirm(f"Remove {name} from {members.total} members?", yes=yes)
        await delete_server(
            container.database,
            container.mcp_pool,
            SHARED_OWNER,
            shared.server.id,
            ann_above=settings.search_ann_above,
            actor=ACTOR,
        )
    print_lines([f"{name}: removed; the members' copies go while a service runs"])
    return 0


@shared_server_commands.command("reindex")
@with_settings
async def reindex(
    settings: Settings,
    name: _Name,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Embed unchanged tools again, and accept an empty list of tools.")
    ] = False,
) -> int:
    """List the tools of a shared server again; what has changed reaches the members."""
    async with open_with_url(settings) as (container, _):
        shared = await find_shared_server(container.database, name)
        run = await request_reindex(
            container.database, container.worker, SHARED_OWNER, shared.server.id, force=force, actor=ACTOR
        )
        return await follow_run(container, shared.server, run)


@shared_server_commands.command("connect")
@with_settings
async def connect(settings: Settings, name: _Name, *, wait: WaitOption = False) -> int:
    """Print the link with which an administrator signs in to a shared server (OAuth).

    Its tools are listed with this account; calls use it if the credentials are the operator's. The service must be
    running: the browser comes back to it.
    """
    async with open_with_url(settings) as (container, _):
        shared = await find_shared_server(container.database, name)
        return await begin_sign_in(settings, container, shared.server, wait=wait)


@shared_server_commands.command("disconnect")
@with_settings
async def disconnect(settings: Settings, name: _Name) -> int:
    """Sign the administrator out of a shared server: the tokens are revoked and deleted."""
    async with open_with_url(settings) as (container, _):
        shared = await find_shared_server(container.database, name)
        await container.connector.disconnect(SHARED_OWNER, shared.server.id, ACTOR)
    print_lines([f"{name}: signed out; its tools stay"])
    return 0


def _parse(**values: Any) -> dict[str, Any]:
    """Validate by the same rules as REST."""
    try:
        return SharedServerChanges(**values).model_dump(include=set(values))
    except ValueError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from None  # type: ignore[arg-type]

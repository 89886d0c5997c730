"""`toolscout server …`: register MCP servers, see how they fare, make the index equal to what they offer."""

import argparse
import asyncio
import time
from typing import Any

from pydantic import ValidationError

from app.catalog import servers
from app.catalog.servers import NewServer, Server
from app.cli.context import ACTOR, add_user_option, open_for_user
from app.cli.progress import ProgressBar
from app.container import Container
from app.db.pagination import MAX_PAGE, PageRequest
from app.errors import Conflict, InvalidInput
from app.indexing import queue
from app.indexing.queue import Run
from app.management.servers import register_server, remove_server
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.schemas.servers import NewServerBody
from app.settings import Settings

_LOOK_S = 0.2
_PATIENCE_S = 5.0


def add_server_commands(commands: Any) -> None:
    server = commands.add_parser("server", help="MCP servers").add_subparsers(dest="server_command", required=True)

    adding = server.add_parser("add", help="register a server and index its tools")
    adding.add_argument("name", help="of a stdio server: its name in TOOLSCOUT_STDIO_SERVERS")
    adding.add_argument("url", nargs="?", help="its MCP endpoint; none for a stdio server")
    adding.add_argument("--transport", choices=["streamable_http", "sse", "stdio"], help="default: by the URL")
    adding.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="sealed when stored")
    adding.add_argument("--description", default="")
    add_user_option(adding)
    adding.set_defaults(deed=_add)

    listing = server.add_parser("list", help="the user's servers, their status and counts")
    add_user_option(listing)
    listing.set_defaults(deed=_list)

    removal = server.add_parser("remove", help="forget a server and its tools")
    removal.add_argument("name")
    add_user_option(removal)
    removal.set_defaults(deed=_remove)

    reindexing = server.add_parser("reindex", help="ask servers for their tools and index what has changed")
    reindexing.add_argument("name", nargs="*", help="default: all of the user's servers")
    reindexing.add_argument("--force", action="store_true", help="embed everything anew, and accept an empty list")
    add_user_option(reindexing)
    reindexing.set_defaults(deed=_reindex)


async def _add(settings: Settings, options: argparse.Namespace) -> int:
    wanted = _wanted(options)
    if wanted.transport == "stdio":
        _check_listed(settings, wanted.name)
    async with open_for_user(settings, options.user) as (container, _):
        await container.mcp_pool.check(wanted.transport, wanted.name, wanted.url)
        server, run = await _registered(container, options.user, wanted)
        print(f"{server.name}  {server.id}")
        return 0 if run is None else await _follow(container, server, run)


async def _registered(container: Container, user_id: str, wanted: NewServer) -> tuple[Server, Run | None]:
    try:
        async with container.database.transaction(user_id) as session:
            return await register_server(session, container.sealer, user_id, wanted, ACTOR)
    except Conflict as error:
        raise Conflict(f"{error.message}: `toolscout server reindex {wanted.name}` asks it again") from None


def _wanted(options: argparse.Namespace) -> NewServer:
    """By the same rules as over HTTP."""
    try:
        body = NewServerBody(
            name=options.name,
            transport=options.transport or ("stdio" if options.url is None else "streamable_http"),
            description=options.description,
            url=options.url,
            headers=dict(_header(text) for text in options.header),
        )
    except ValidationError as error:
        raise InvalidInput("; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())) from None
    return NewServer(**body.model_dump())


def _check_listed(settings: Settings, name: str) -> None:
    listed = StdioServerRegistry.read(settings.stdio_servers).programs
    if name not in listed:
        raise InvalidInput(
            f"give the URL of its MCP endpoint (`toolscout server add {name} URL`, with `--transport sse` if need be) "
            f"or the name of a stdio server that TOOLSCOUT_STDIO_SERVERS lists ({', '.join(listed) or 'it lists none'})"
        )


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"a header is written NAME=VALUE, not {name!r}")
    return name, value


async def _list(settings: Settings, options: argparse.Namespace) -> int:
    async with open_for_user(settings, options.user) as (container, _):
        found = await _servers(container, options.user)
    for server in found:
        trouble = f"  {server.last_error}" if server.last_error else ""
        print(f"{server.name:24}  {server.transport:15}  {server.status:12}  {server.tool_count:5} tools{trouble}")
    if not found:
        print("no servers yet: toolscout server add --help")
    return 0


async def _reindex(settings: Settings, options: argparse.Namespace) -> int:
    async with open_for_user(settings, options.user) as (container, _):
        found = await _servers(container, options.user)
        if unknown := set(options.name) - {server.name for server in found}:
            raise InvalidInput(f"there is no server named {min(unknown)!r}")
        chosen = [server for server in found if not options.name or server.name in options.name]
        failed = 0
        for server in chosen:
            async with container.database.transaction(options.user) as session:
                run = await queue.enqueue(session, options.user, server.id, force=options.force, asked_by=ACTOR)
            failed += await _follow(container, server, run)
    return 1 if failed else 0


async def _remove(settings: Settings, options: argparse.Namespace) -> int:
    async with (
        open_for_user(settings, options.user) as (container, user),
        container.database.transaction(user.id) as session,
    ):
        server = await servers.find_server_by_name(session, user.id, options.name)
        await remove_server(session, user.id, server.id, settings.search_ann_above, ACTOR)
    print(f"{server.name}: removed, with {server.tool_count} tools")
    return 0


async def _servers(container: Container, user_id: str) -> list[Server]:
    found: list[Server] = []
    page = PageRequest(MAX_PAGE)
    while True:
        async with container.database.transaction(user_id) as session:
            read = await servers.list_servers(session, user_id, page)
        found += read.items
        if read.next_cursor is None:
            return found
        page = PageRequest(MAX_PAGE, read.next_cursor)


async def _follow(container: Container, server: Server, run: Run) -> int:
    """Until it has ended, or failed and waits to be tried again, whoever does it: a service, or this process if none
    seems to be there."""
    container.worker.notify()
    bar = ProgressBar(server.name)
    begun = time.monotonic()
    while not (run.is_finished or _waits_to_try_again(run)):
        bar.show(run.done, run.total, run.state)
        await asyncio.sleep(_LOOK_S)
        if run.state == "queued" and time.monotonic() - begun > _PATIENCE_S:
            await container.worker.run_now(run.id)
        async with container.database.transaction(run.user_id) as session:
            run = await queue.get_run(session, run.user_id, run.id)
    bar.show(run.done, run.total, run.state)
    bar.end()
    return _tell(server, run)


def _waits_to_try_again(run: Run) -> bool:
    """It stays under way; of an attempt that failed it has the error."""
    return not run.is_finished and run.error is not None


def _tell(server: Server, run: Run) -> int:
    for refusal in run.refused:
        print(f"  refused {refusal['name']}: {refusal['reason']}")
    for warning in run.warnings:
        print(f"  {warning}")
    if run.error is not None:
        print(f"{server.name}: failed ({run.error['cause']}): {run.error['message']}")
        print(_what_now(f"`toolscout server reindex {server.name}`", run))
        return 1
    counts = ", ".join(f"{count} {name}" for name, count in run.all_counts.items() if count)
    print(f"{server.name}: {counts or 'no tools'}")
    return 0


def _what_now(reindex: str, run: Run) -> str:
    if _waits_to_try_again(run):
        return f"a service that runs asks it again by itself, as does {reindex}"
    return f"it stays registered: {reindex} asks it again"

"""`toolscout user list` and `delete`."""

from typing import Annotated

import typer

from app.auth import users
from app.auth.users import User
from app.catalog.servers import list_server_ids
from app.cli.context import ACTOR, confirm, open_database, open_for_user, read_all_pages, with_settings
from app.cli.group import make_group
from app.cli.output import print_table
from app.cli.text import make_printable
from app.container import make_rollout
from app.db.pagination import Page, PageRequest
from app.management.users import delete_user
from app.settings import Settings

commands = make_group()
user_commands = make_group("Manage users.")
commands.add_typer(user_commands, name="user")


@user_commands.command("list")
@with_settings
async def list_users(settings: Settings) -> int:
    """List users by id, with the number of their tools and whether their messages are searched."""
    async with open_database(settings) as database:

        async def read_page(request: PageRequest) -> Page[User]:
            async with database.system_transaction() as session:
                return await users.list_users(session, request)

        found = await read_all_pages(read_page)
    if not found:
        print("no users yet; `toolscout key create --user ID` creates one, and so does the first request that names it")
        return 0
    rollout = make_rollout(settings)
    rows = [
        (
            user.id,
            str(user.tool_count),
            "on" if rollout.includes(user) else "off",
            user.created_at.strftime("%Y-%m-%d"),
            user.name or "",
        )
        for user in found
    ]
    print_table(
        ["id", "tools", "discovery", "created", "name"],
        rows,
        [
            f"{user_id:32}  {tools:>6} tools  {discovery:3}  {created}  {name}".rstrip()
            for user_id, tools, discovery, created, name in rows
        ],
    )
    return 0


@user_commands.command("delete")
@with_settings
async def delete(
    settings: Settings,
    user_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the user.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking, as scripts must.")] = False,
) -> int:
    """Delete a user with its servers, tools, projects and keys.

    Audit events stay. This cannot be undone.
    """
    async with open_for_user(settings, user_id) as (container, user):
        async with container.database.transaction(user.id) as session:
            server_count = len(await list_server_ids(session, user.id))
        owned = f"{server_count} servers, {user.tool_count} tools"
        confirm(f"delete the user {user.id} with {owned} and all keys?", yes=yes)
        await delete_user(container.database, container.mcp_pool, user.id, actor=ACTOR)
    print(make_printable(f"{user.id}: deleted, with {owned}"))
    return 0

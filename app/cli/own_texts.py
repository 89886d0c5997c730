"""`toolscout tool show`, `edit` and `approve`."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from app.catalog.own_texts import OwnTexts, Texts
from app.catalog.servers import get_server
from app.catalog.tools import Tool, get_tool
from app.cli.context import ACTOR, ToolArgument, UserOption, open_for_user, resolve_tool, with_settings
from app.cli.group import make_group
from app.cli.output import print_lines
from app.cli.run_progress import follow_run
from app.container import Container
from app.demo.seed import DEMO_USER
from app.errors import InvalidInput
from app.indexing.queue import get_run
from app.management.tools import approve_tools, change_tool
from app.schemas.base import describe_errors
from app.schemas.tools import ToolChanges
from app.settings import Settings
from app.text.strict_json import parse_json

commands = make_group()
tool_commands = make_group("Show a tool's texts, write texts of your own for it, and approve its definition.")
commands.add_typer(tool_commands, name="tool")

_NO_TEXTS = {"title": None, "description": None, "annotations": None}


@tool_commands.command("show")
@with_settings
async def show(settings: Settings, tool: ToolArgument, user: UserOption = DEMO_USER) -> int:
    """Show the texts of a tool: the server's, and your own."""
    async with open_for_user(settings, user) as (container, owner):
        tool_id = await resolve_tool(container, owner.id, tool)
        async with container.database.transaction(owner.id) as session:
            print_lines(_format_tool(await get_tool(session, owner.id, tool_id, container.model.id)))
    return 0


@tool_commands.command("approve")
@with_settings
async def approve(
    settings: Settings,
    tools: Annotated[list[str], typer.Argument(metavar="TOOL", help="The tools: SERVER.TOOL, or their keys.")],
    user: UserOption = DEMO_USER,
) -> int:
    """Approve the definitions of new or changed tools as they are stored.

    `toolscout tool show` shows one.
    """
    async with open_for_user(settings, user) as (container, owner):
        hashes: dict[str, str] = {}
        for name in tools:
            tool_id = await resolve_tool(container, owner.id, name)
            async with container.database.transaction(owner.id) as session:
                hashes[tool_id] = (await get_tool(session, owner.id, tool_id, container.model.id)).definition_hash
        await approve_tools(container.database, owner.id, hashes, actor=ACTOR)
    print(f"{len(hashes)} approved")
    return 0


@tool_commands.command("edit")
@with_settings
async def edit(
    settings: Settings,
    tool: ToolArgument,
    description: Annotated[
        str | None,
        typer.Option(
            "--description", metavar="TEXT", help="Your description. Empty: the server's.", show_default=False
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="Your title. Empty: the server's.", show_default=False)
    ] = None,
    annotations: Annotated[
        str | None,
        typer.Option(
            "--annotations",
            metavar="JSON",
            help="Your annotations, such as '{\"readOnlyHint\": true}', over the server's. Empty: the server's.",
            show_default=False,
        ),
    ] = None,
    *,
    reset: Annotated[
        bool, typer.Option("--reset", help="Restore the server's texts, except for those that are given.")
    ] = False,
    user: UserOption = DEMO_USER,
) -> int:
    """Write texts of your own for a tool, and index it again.

    They are searched and given to models in place of the server's.
    """
    texts = {"title": title, "description": description, "annotations": annotations}
    given = {name: text for name, text in texts.items() if text is not None}
    if not given and not reset:
        raise InvalidInput("give --description, --title or --annotations, or --reset")
    changes = _parse_changes({**(_NO_TEXTS if reset else {}), **given})
    async with open_for_user(settings, user) as (container, owner):
        tool_id = await resolve_tool(container, owner.id, tool)
        return await _change(container, owner.id, tool_id, changes)


def _parse_changes(given: dict[str, str | None]) -> dict[str, Any]:
    """Validate the texts by the same rules as REST."""
    values: dict[str, Any] = {name: text or None for name, text in given.items()}
    if values.get("annotations"):
        values["annotations"] = parse_json(values["annotations"].encode(errors="surrogateescape"), "--annotations")
    try:
        return ToolChanges.model_validate(values).to_changes()
    except ValidationError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from error


async def _change(container: Container, user_id: str, tool_id: str, changes: dict[str, Any]) -> int:
    changed = await change_tool(
        container.database,
        container.worker,
        user_id,
        tool_id,
        changes,
        container.quotas,
        model_id=container.model.id,
        actor=ACTOR,
    )
    print_lines([*_format_tool(changed.tool), *(f"warning: {warning}" for warning in changed.warnings)])
    if changed.run_id is None:
        return 0
    async with container.database.transaction(user_id) as session:
        server = await get_server(session, user_id, changed.tool.server_id)
        run = await get_run(session, user_id, changed.run_id)
    return await follow_run(container, server, run)


def _format_tool(tool: Tool) -> Iterator[str]:
    yield f"{tool.server_name}.{tool.name}  {tool.id}"
    yield from _format_texts("server's", tool.original or Texts(tool.title, tool.description, tool.annotations))
    if tool.own_texts is not None:
        yield from _format_texts("your", tool.own_texts)
    if tool.original_changed:
        yield "the server's definition has changed since you wrote your texts: write them again, or use --reset"


def _format_texts(whose: str, texts: Texts | OwnTexts) -> Iterator[str]:
    if texts.title is not None:
        yield f"{whose} title: {texts.title}"
    if texts.description:
        yield f"{whose} description: {' '.join(texts.description.split())}"
    if texts.annotations:
        yield f"{whose} annotations: {json.dumps(texts.annotations)}"

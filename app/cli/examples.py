"""`toolscout examples list`, `set` and `forget`."""

from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from app.cli.context import ACTOR, ToolArgument, UserOption, confirm, open_for_user, resolve_tool, with_settings
from app.cli.group import make_group
from app.cli.output import print_lines
from app.demo.seed import DEMO_USER
from app.errors import InvalidInput
from app.management.examples import forget_all_examples, forget_examples, replace_examples
from app.schemas.base import describe_errors
from app.schemas.tools import ExamplesBody
from app.settings import Settings
from app.usage.examples import ToolExamples, read_examples

commands = make_group()
example_commands = make_group("Manage the examples of what a tool is for.")
commands.add_typer(example_commands, name="examples")


@example_commands.command("list")
@with_settings
async def list_examples(settings: Settings, tool: ToolArgument, user: UserOption = DEMO_USER) -> int:
    """List the messages that a person wrote for a tool, and count those that were learnt from use."""
    async with open_for_user(settings, user) as (container, owner):
        tool_id = await resolve_tool(container, owner.id, tool)
        async with container.database.transaction(owner.id) as session:
            _print_examples(await read_examples(session, owner.id, container.model.id, tool_id))
    return 0


@example_commands.command("set")
@with_settings
async def set_examples(
    settings: Settings,
    tool: ToolArgument,
    messages: Annotated[list[str], typer.Argument(metavar="MESSAGE", help="Messages to which the tool is the answer.")],
    user: UserOption = DEMO_USER,
) -> int:
    """Replace the messages that a person wrote for a tool.

    What was learnt from use stays.
    """
    try:
        body = ExamplesBody(messages=messages)
    except ValidationError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from error
    async with open_for_user(settings, user) as (container, owner):
        tool_id = await resolve_tool(container, owner.id, tool)
        _print_examples(
            await replace_examples(
                container.database, container.searcher, owner.id, tool_id, body.messages, actor=ACTOR
            )
        )
    return 0


@example_commands.command("forget")
@with_settings
async def forget(
    settings: Settings,
    tool: Annotated[
        str | None, typer.Argument(metavar="TOOL", help="The tool: SERVER.TOOL, or its key. Without it: all tools.")
    ] = None,
    source: Annotated[
        Literal["use", "person"] | None,
        typer.Option("--source", help="Only what was learnt from use, or what a person wrote. Without it: both."),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    user: UserOption = DEMO_USER,
) -> int:
    """Delete the examples of a tool, or of all tools of a user."""
    confirm(f"Forget the examples of {tool or 'all tools'} of {user}?", yes=yes)
    async with open_for_user(settings, user) as (container, owner):
        database, learner = container.database, container.learner
        if tool is None:
            await forget_all_examples(database, learner, owner.id, source, actor=ACTOR)
        else:
            tool_id = await resolve_tool(container, owner.id, tool)
            await forget_examples(database, learner, owner.id, tool_id, source, actor=ACTOR)
    print("forgotten")
    return 0


def _print_examples(found: ToolExamples) -> None:
    print_lines(found.messages)
    print(f"{len(found.messages)} in words, {found.learned} learnt from use, {found.learned_against} learnt against it")

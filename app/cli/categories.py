"""`toolscout categories list`, `rename` and `remake`."""

from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import ValidationError

from app.catalog.categories import CategorySummary, list_categories, resolve_categories
from app.catalog.visibility import Scope
from app.cli.context import ACTOR, UserOption, open_for_user, with_settings
from app.cli.group import make_group
from app.cli.output import print_lines, print_table
from app.demo.seed import DEMO_USER
from app.errors import InvalidInput
from app.management.categories import remake_categories, rename_category
from app.schemas.base import describe_errors
from app.schemas.categories import CategoryChanges
from app.settings import Settings

commands = make_group()
category_commands = make_group("List and rename the categories of a user's tools.")
commands.add_typer(category_commands, name="categories")


@category_commands.command("list")
@with_settings
async def list_all(settings: Settings, user: UserOption = DEMO_USER) -> int:
    """List the categories that have a visible tool, those with the most tools first."""
    async with open_for_user(settings, user) as (container, owner):
        scope = Scope(owner.id, container.model.id)
        _print_categories(await list_categories(container.database.reader(owner.id), scope))
    return 0


@category_commands.command("rename")
@with_settings
async def rename(
    settings: Settings,
    category: Annotated[str, typer.Argument(metavar="CATEGORY", help="The category: its name or its id.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The new name. Without it: the automatic one.")
    ] = None,
    user: UserOption = DEMO_USER,
) -> int:
    """Give a category a name of your own, or restore the automatic one.

    Your name stays as long as the category exists.
    """
    try:
        body = CategoryChanges(name=name)
    except ValidationError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from error
    async with open_for_user(settings, user) as (container, owner):
        scope = Scope(owner.id, container.model.id)
        [category_id] = await resolve_categories(container.database.reader(owner.id), scope, [category])
        renamed = await rename_category(container.database, scope, category_id, body.name, actor=ACTOR)
    print_lines([f"{renamed.id}: {renamed.name}"])
    return 0


@category_commands.command("remake")
@with_settings
async def remake(settings: Settings, user: UserOption = DEMO_USER) -> int:
    """Group all tools again, however little has changed, and list the categories.

    A category that still has most of its tools keeps its id and name.
    """
    async with open_for_user(settings, user) as (container, owner):
        scope = Scope(owner.id, container.model.id)
        _print_categories(await remake_categories(container.database, scope, actor=ACTOR))
    return 0


def _print_categories(found: Sequence[CategorySummary]) -> None:
    if not found:
        print("no categories yet: they are made some seconds after tools were indexed, or by `categories remake`")
        return
    rows = [(each.id, str(each.tools), each.name, ", ".join(each.words), ", ".join(each.servers)) for each in found]
    print_table(
        ["id", "tools", "name", "words", "servers"],
        rows,
        [f"{category_id}  {tools:>6} tools  {name}" for category_id, tools, name, _, _ in rows],
    )

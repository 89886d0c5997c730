"""Rename a user's categories, and make them again."""

from app.audit.record import record_event
from app.catalog import categories
from app.catalog.categories import CategorySummary
from app.catalog.visibility import Scope
from app.db.engine import Database
from app.indexing.categories.maker import make_categories


async def rename_category(
    database: Database, scope: Scope, category_id: str, name: str | None, *, actor: str
) -> CategorySummary:
    """Give a category a name of the user's own; None restores the automatic one.

    Raise `NotFound` unless the category has a tool that is visible in the scope, and `Conflict` if another category
    has the name.
    """
    async with database.exclusive_transaction(scope.user_id) as session:
        await categories.get_category(session, scope, category_id)
        await categories.rename_category(session, scope.user_id, category_id, name)
        await record_event(session, scope.user_id, actor, "category.rename", category_id)
        return await categories.get_category(session, scope, category_id)


async def remake_categories(database: Database, scope: Scope, *, actor: str) -> list[CategorySummary]:
    """Make the categories again from all vectors, and return them. Names stay where the tools stay."""
    await make_categories(database, scope.user_id, scope.model, again=True)
    async with database.transaction(scope.user_id) as session:
        await record_event(session, scope.user_id, actor, "category.remake", None)
        return await categories.list_categories(session, scope)

"""The page for categories: what groups of tools there are, and their names."""

from starlette.responses import Response

from app.catalog.categories import list_categories
from app.catalog.visibility import Scope
from app.console.forms import parse_form
from app.console.page_context import CatalogWritePage, PageContext, ToolsReadPage, page_router, redirect
from app.errors import Conflict, InvalidInput
from app.management import categories as manage_categories
from app.schemas.categories import CategoryChanges

router = page_router()


@router.get("/categories")
async def show_categories(context: ToolsReadPage) -> Response:
    return await _render_page(context)


@router.post("/categories/{category_id}")
async def rename_category(context: CatalogWritePage, category_id: str) -> Response:
    """Give a category the typed name. An empty one restores the automatic name."""
    try:
        body = parse_form(CategoryChanges, {"name": context.form.optional_text("name")})
        await manage_categories.rename_category(
            context.container.database, _get_scope(context), category_id, body.name, actor=context.caller.actor
        )
    except (Conflict, InvalidInput) as error:
        return await _render_page(context, error, category_id)
    return redirect(f"/console/categories#{category_id}", notice="category-renamed")


async def _render_page(
    context: PageContext, error: Conflict | InvalidInput | None = None, edited_id: str | None = None
) -> Response:
    async with context.transaction() as session:
        found = await list_categories(session, _get_scope(context))
    return context.render("categories.html", error, categories=found, edited_id=edited_id, form=context.form)


def _get_scope(context: PageContext) -> Scope:
    return Scope(context.user.id, context.container.model.id, project_id=context.caller.resolve_project(None))

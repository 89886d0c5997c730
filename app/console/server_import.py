"""The page that imports the configuration file of an MCP client."""

from starlette.responses import Response

from app.catalog.client_config.config import read_client_config
from app.catalog.client_config.entries import find_open_values
from app.catalog.client_config.placeholders import Placeholder
from app.console.forms import Form
from app.console.page_context import CatalogWritePage, PageContext, page_router
from app.errors import ToolscoutError
from app.management.server_import import ImportResult, import_servers
from app.schemas.server_import import plan_import
from app.text.jsonc import parse_jsonc

router = page_router()


@router.get("/servers/import")
async def show_import_form(context: CatalogWritePage) -> Response:
    return _render_form(context)


@router.post("/servers/import")
async def import_config(context: CatalogWritePage) -> Response:
    """Import the pasted text. If it has placeholders without a value, ask for them once; then import what has all."""
    values = _read_values(context.form)
    try:
        config = read_client_config(parse_jsonc(context.form.text("config").encode(), "the text"))
        missing = [each for each in find_open_values(config) if not values.get(each.name)]
        if not context.form.is_checked("asked") and any(each.is_input or each.default is None for each in missing):
            return _render_form(context, missing=missing)
        container = context.container
        result = await import_servers(
            container.database,
            container.mcp_pool,
            container.sealer,
            container.worker,
            context.user.id,
            plan_import(config, values, container.mcp_pool.stdio_servers.list_names(context.user.id)),
            container.quotas,
            actor=context.caller.actor,
        )
    except ToolscoutError as error:
        return _render_form(context, error=error)
    return _render_result(context, result)


def _render_form(
    context: PageContext, *, missing: list[Placeholder] | None = None, error: ToolscoutError | None = None
) -> Response:
    return context.render("server_import.html", error, config=context.form.text("config"), missing=missing or [])


def _render_result(context: PageContext, result: ImportResult) -> Response:
    return context.render("server_imported.html", status=201 if result.imported else 200, result=result)


def _read_values(form: Form) -> dict[str, str]:
    return dict(zip(form.all("value_name"), form.all("value"), strict=False))

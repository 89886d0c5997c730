"""The page that adds a server of the MCP registry. The search itself is a part of "Add a server"."""

from starlette.responses import Response

from app.console.forms import Form, parse_form
from app.console.page_context import CatalogWritePage, PageContext, page_router
from app.console.servers import read_headers, register_new_server, try_new_server
from app.errors import ToolscoutError
from app.indexing.parsing import Listing
from app.registry.client import require_registry
from app.registry.models import RegistryServer
from app.registry.remote_values import choose_remote
from app.schemas.registry import FromRegistryBody, plan_registration

router = page_router()


@router.get("/servers/from-registry")
async def show_registry_server(context: CatalogWritePage) -> Response:
    entry = await _get_entry(context, context.query.text("name"))
    form = Form([("name", entry.suggested_name), ("description", entry.description)])
    return _render(context, entry, form)


@router.post("/servers/from-registry")
async def add_registry_server(context: CatalogWritePage) -> Response:
    """Handle the form's two buttons: `test` lists the server's tools and stores nothing, `add` stores the server."""
    form = context.form
    entry = await _get_entry(context, form.text("registry_name"))
    try:
        new_server = plan_registration(entry, parse_form(FromRegistryBody, _to_body(entry, form))).new_server
        if form.text("do") == "test":
            return _render(context, entry, form, listing=await try_new_server(context, context.user.id, new_server))
        return await register_new_server(context, new_server)
    except ToolscoutError as error:
        return _render(context, entry, form, error=error)


async def _get_entry(context: PageContext, name: str) -> RegistryServer:
    return await require_registry(context.container.registry).get_server(context.user.id, name)


def _render(
    context: PageContext,
    entry: RegistryServer,
    form: Form,
    *,
    listing: Listing | None = None,
    error: ToolscoutError | None = None,
) -> Response:
    remote = choose_remote(entry, form.optional_text("remote_url"))
    values = dict(zip(form.all("input_name"), form.all("input_value"), strict=False))
    return context.render(
        "server_from_registry.html", error, entry=entry, remote=remote, form=form, values=values, listing=listing
    )


def _to_body(entry: RegistryServer, form: Form) -> dict[str, object]:
    """Leave out the inputs of another remote: the page showed them before this one was chosen."""
    asked = {(each.kind, each.name) for each in choose_remote(entry, form.optional_text("remote_url")).inputs}
    inputs = zip(form.all("input_kind"), form.all("input_name"), form.all("input_value"), strict=False)
    given = [(kind, name, value.strip()) for kind, name, value in inputs if value.strip() and (kind, name) in asked]
    return {
        "registry_name": form.text("registry_name"),
        "name": form.optional_text("name"),
        "remote_url": form.optional_text("remote_url"),
        "headers": {name: value for kind, name, value in given if kind == "header"} | read_headers(form),
        "variables": {name: value for kind, name, value in given if kind == "variable"},
        "description": form.text("description"),
        "tags": form.comma_list("tags"),
    }

"""Sign in to a server (OAuth): the buttons on its page, and the page behind the links that are handed to users."""

from urllib.parse import urlencode, urlsplit

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from app.auth.users import get_user
from app.catalog.servers import Server, get_server
from app.catalog.shared_servers import Sharing
from app.connections.tickets import START_PATH, open_ticket
from app.console.oauth_callback import make_browser_secret, set_browser_cookie
from app.console.page_context import CatalogWritePage, PageContext, TemplatesDep, page_router, redirect
from app.console.servers import PAGES
from app.dependencies import ContainerDep
from app.errors import InvalidInput, NotFound

router = page_router()
link_router = page_router(prefix="")


@router.post("/servers/{server_id}/connect")
async def connect(context: CatalogWritePage, server_id: str) -> Response:
    async with context.transaction() as session:
        server = await get_server(session, context.user.id, server_id)
    return await render_sign_in(context, server, PAGES)


async def render_sign_in(context: PageContext, server: Server, pages: str, sharing: Sharing | None = None) -> Response:
    """Show where the sign-in takes place. It is a link and not a redirect, which browsers refuse after a form."""
    connector = context.container.connector
    base_url = connector.config.base_url or ""
    # the cookie comes back only if the browser has reached us under the address to which it is sent back
    browser = make_browser_secret() if urlsplit(base_url).netloc == context.request.url.netloc else None
    back = f"{base_url}{pages}/{server.id}"
    link = await connector.start(server.user_id, server.id, context.caller.actor, back, browser=browser)
    host = urlsplit(link.authorization_url).netloc
    response = context.render("server_connect.html", server=server, link=link, host=host, pages=pages, sharing=sharing)
    return response if browser is None else set_browser_cookie(context.request, response, browser)


@router.post("/servers/{server_id}/disconnect")
async def disconnect(context: CatalogWritePage, server_id: str) -> Response:
    await context.container.connector.disconnect(context.user.id, server_id, context.caller.actor)
    return redirect(f"/console/servers/{server_id}", notice="server-disconnected")


@link_router.get(START_PATH)
async def open_link(request: Request, templates: TemplatesDep, container: ContainerDep) -> Response:
    """Name the user and the server before anything is asked of anybody: the link may have been sent by somebody else,
    and programs that preview links open them, too."""
    text = request.query_params.get("ticket", "")
    ticket = open_ticket(container.sealer, text)
    if request.query_params.get("continue"):
        browser = make_browser_secret()
        link = await container.connector.start_without_key(
            ticket.user_id, ticket.server_id, ticket.actor, browser=browser
        )
        return set_browser_cookie(request, RedirectResponse(link.authorization_url, 303), browser)
    try:
        async with container.database.transaction(ticket.user_id) as session:
            user = await get_user(session, ticket.user_id)
            server = await get_server(session, ticket.user_id, ticket.server_id)
    except NotFound:
        raise InvalidInput("this link is for a server that does not exist any more") from None
    continue_url = f"{START_PATH}?{urlencode({'ticket': text, 'continue': 1})}"
    values = {"context": None, "notice": None, "user": user, "server": server, "continue_url": continue_url}
    return templates.render("sign_in_link.html", values | {"host": urlsplit(server.url or "").netloc})

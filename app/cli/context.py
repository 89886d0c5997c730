"""What the commands share: settings, options, and a container beside a running service or without one."""

import asyncio
import functools
import inspect
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer
import uvloop

from app.auth.users import User, get_account
from app.catalog.projects import list_all_projects
from app.catalog.tool_keys import resolve_owned_key
from app.catalog.visibility import Scope
from app.cli.text import make_printable
from app.container import Container, open_container
from app.db.engine import Database
from app.db.migrate import migrate
from app.db.pagination import MAX_PAGE, Page, PageRequest
from app.errors import InvalidInput, NotFound
from app.local_postgres.database import connect_database, is_service_running, make_pool
from app.observability.logging import configure_logging
from app.settings import Settings, load_settings
from app.text.suggestions import describe_unknown_name

ACTOR = "operator:cli"

UserOption = Annotated[str, typer.Option("--user", metavar="ID", help="The user whose servers and tools are used.")]
ProjectOption = Annotated[
    str | None,
    typer.Option("--project", metavar="PROJECT", help="Search only the tools that this project shows: its id or name."),
]

ToolArgument = Annotated[str, typer.Argument(metavar="TOOL", help="The tool: SERVER.TOOL, or its key.")]

_Parameters = ParamSpec("_Parameters")
T = TypeVar("T")


def with_settings(
    function: Callable[Concatenate[Settings, _Parameters], Coroutine[Any, Any, int]],
) -> Callable[_Parameters, None]:
    """Make a command of an async function, which takes the settings first and returns the exit code.

    The parameters after the settings are the arguments and options of the command.
    """

    @functools.wraps(function)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        settings = load_settings()
        configure_logging("WARNING", settings.log_format)  # `serve` lowers it to the level of the settings
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            exit_code = runner.run(function(settings, *args, **kwargs))
        raise typer.Exit(exit_code)

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


@asynccontextmanager
async def open_for_user(settings: Settings, user_id: str) -> AsyncIterator[tuple[Container, User]]:
    async with open_with_url(settings) as (container, _):
        yield container, await load_user(container.database, user_id)


async def load_user(database: Database, user_id: str) -> User:
    try:
        async with database.system_transaction() as session:
            return await get_account(session, user_id)
    except NotFound:
        raise NotFound(
            f"there is no user {user_id!r}: `toolscout user list` lists all; `toolscout key create --user "
            f"{shlex.quote(user_id)}` creates it, and so does the first request in which a service key names it"
        ) from None


async def find_project_id(database: Database, user_id: str, given: str | None) -> str | None:
    """Return the id of the project of a `ProjectOption`. An id takes precedence over a name."""
    if given is None:
        return None
    async with database.transaction(user_id) as session:
        found = await list_all_projects(session, user_id)
    names = {project.name: project.id for project in found}
    if given in names.values():
        return given
    if given in names:
        return names[given]
    description = describe_unknown_name("project", given, names)
    advice = f": give the id or the name of a project of the user {user_id!r}"
    raise NotFound(description if description.endswith("?") else description + advice)


async def resolve_tool(container: Container, user_id: str, key: str) -> str:
    """Return the id of the tool of a `ToolArgument`, visible or not."""
    async with container.database.transaction(user_id) as session:
        return await resolve_owned_key(session, Scope(user_id, container.model.id), key)


@asynccontextmanager
async def open_with_url(settings: Settings) -> AsyncIterator[tuple[Container, str]]:
    """Open a container and yield it with the URL of its database.

    Queued index runs are left to the service, whose settings apply. If the database is embedded and no service runs,
    they are processed here.
    """
    alone = settings.uses_embedded_db and not await is_service_running(settings)
    async with (
        connect_database(settings) as url,
        open_container(settings, url, working=alone, serving=False) as container,
    ):
        yield container, url


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """Open the database without a container, because nothing else of the service is needed."""
    async with connect_database(settings) as url:
        await asyncio.to_thread(migrate, url, setting=settings.direct_database_setting)
        database = make_pool(settings, url, size=1)
        try:
            yield database
        finally:
            await database.close()


async def read_all_pages(read_page: Callable[[PageRequest], Coroutine[Any, Any, Page[T]]]) -> list[T]:
    """Return the items of all pages of a list."""
    found: list[T] = []
    page = await read_page(PageRequest(MAX_PAGE))
    while True:
        found += page.items
        if page.next_cursor is None:
            return found
        page = await read_page(PageRequest(MAX_PAGE, page.next_cursor))


def confirm(question: str, *, yes: bool, without_terminal: bool = False) -> None:
    """Ask a person before something is done that cannot be undone, unless `yes` has answered already.

    Elsewhere than on a terminal nobody can be asked: raise `InvalidInput` unless `without_terminal`.
    """
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if is_terminal and not yes:
        typer.confirm(make_printable(question), abort=True, err=True)
    elif not yes and not without_terminal:
        raise InvalidInput("this cannot be undone: add --yes to do it without being asked")

"""`toolscout discover` and `toolscout execute`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Literal

import typer

from app.auth.permissions import Caller
from app.catalog.availability import Availability, describe_availability
from app.catalog.definitions import ToolDefinitionView
from app.catalog.visibility import Scope
from app.cli.context import ACTOR, ProjectOption, UserOption, find_project_id, open_for_user, with_settings
from app.cli.group import make_group
from app.cli.output import print_lines, print_table
from app.cli.text import make_printable
from app.demo.seed import DEMO_USER
from app.discovery.discover import discover
from app.discovery.models import Discovery
from app.discovery.request import DEFAULT_LIMIT, DiscoveryRequest
from app.errors import ConfirmationRequired, InvalidInput, ToolNotFound
from app.execution.execute import execute_with_progress
from app.execution.models import ExecutionRequest, ExecutionResult
from app.search.query import parse_query
from app.settings import Settings
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, parse_json

commands = make_group()


@commands.command("discover")
@with_settings
async def discover_tools(
    settings: Settings,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message of a chat.")],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            max=50,
            help=f"The maximum number of tools; the project's, the user's or {DEFAULT_LIMIT} if left out.",
        ),
    ] = None,
    strategy: Annotated[
        Literal["hybrid", "semantic", "bm25"] | None,
        typer.Option("--strategy", help="How to search; the project's or the user's way if left out."),
    ] = None,
    *,
    fill: Annotated[
        bool, typer.Option("--fill", help="Find as many tools as the limit allows, not only those that are needed.")
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", metavar="N", min=1, help="The maximum size of the definitions together."),
    ] = None,
    project: ProjectOption = None,
    user: UserOption = DEMO_USER,
) -> int:
    """Find the tools that a message needs."""
    if not remove_hidden(message).strip():
        raise InvalidInput("the message has no text to search for")
    async with open_for_user(settings, user) as (container, owner):
        request = DiscoveryRequest(
            parse_query(message),
            await find_project_id(container.database, owner.id, project),
            strategy=strategy,
            limit=limit,
            fill=fill,
            max_tokens=max_tokens,
            interface="cli",
        )
        _print_discovery(await discover(container.discoverer, Caller("user", "cli", owner), request))
    return 0


def _print_discovery(discovery: Discovery) -> None:
    rows = [
        (
            str(rank),
            "" if tool.score is None else f"{tool.score:.3f}",
            _format_name(tool.definition),
            tool.source,
        )
        for rank, tool in enumerate(discovery.tools, start=1)
    ]
    if rows:
        print_table(
            ["", "score", "tool", "source"],
            rows,
            [f"{rank:>3}  {score:5}  {name:40}  {source}" for rank, score, name, source in rows],
        )
    print_lines(_list_not_runnable(discovery))
    print(discovery.no_match_text or discovery.confidence_text)
    if discovery.omitted_text is not None:
        print(discovery.omitted_text)
    degraded = f", degraded: {discovery.degraded_reason}" if discovery.degraded_reason else ""
    print(
        f"{discovery.searched} tools searched ({discovery.strategy or 'no search'}{degraded}), "
        f"{discovery.tokens_selected} of {discovery.tokens_all} tokens"
    )


def _format_name(tool: ToolDefinitionView) -> str:
    return ".".join(part for part in (tool.server_name, tool.name) if part)


def _list_not_runnable(discovery: Discovery) -> Iterator[str]:
    """Say of which tools `toolscout execute` would fail, and why."""
    by_availability: dict[Availability, list[str]] = {}
    for tool in discovery.tools:
        by_availability.setdefault(tool.definition.availability, []).append(_format_name(tool.definition))
    for availability, names in by_availability.items():
        if availability != "runnable":
            yield f"{describe_availability(availability)}: {', '.join(names)}"


@commands.command("execute")
@with_settings
async def execute_tool(
    settings: Settings,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool: SERVER.TOOL, or its key.")],
    arguments: Annotated[str, typer.Argument(metavar="ARGUMENTS", help="The arguments, as a JSON object.")] = "{}",
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="How long the tool may run.")
    ] = None,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm the call of a destructive tool without a question.")
    ] = False,
    user: UserOption = DEMO_USER,
) -> int:
    """Run a tool on its server.

    The exit code is 1 if the tool reports an error.
    """
    parsed = parse_json(arguments.encode(errors="surrogateescape"), "the text of the arguments")
    if not isinstance(parsed, dict):
        raise InvalidInput("the arguments must be a JSON object")
    async with open_for_user(settings, user) as (container, owner):
        scope = Scope(owner.id, container.model.id)
        call = ExecutionRequest(scope, ACTOR, parsed, tool_key=tool, timeout_s=timeout_s)
        with _explain_tool_names(tool):
            try:
                result = await execute_with_progress(container.executor, call, _print_progress)
            except ConfirmationRequired as required:
                _confirm(required, yes=yes)
                call = replace(call, confirmation_token=required.token)
                result = await execute_with_progress(container.executor, call, _print_progress)
    return _print_result(result)


def _confirm(required: ConfirmationRequired, *, yes: bool) -> None:
    """Ask whether to run a destructive tool. Raise `InvalidInput` if the answer is no, or nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("this tool says that it is destructive, and nothing was run: confirm the call with --yes")
    name = "the tool" if required.called_tool is None else ".".join(required.called_tool)
    if not typer.confirm(f"{name} says that it is destructive. Run it?"):
        raise InvalidInput("nothing was run")


@contextmanager
def _explain_tool_names(given: str) -> Iterator[None]:
    """Say in the error that a name needs its server, because several servers may have a tool of the same name."""
    try:
        yield
    except ToolNotFound as error:
        if "." in given or "did you mean" in error.message:
            raise
        raise ToolNotFound(f"{error.message}: give it as SERVER.TOOL, or by its key") from error


async def _print_progress(report: Json) -> None:
    total = "" if report["total"] is None else f"/{report['total']:g}"
    print(f"{report['progress']:g}{total}  {make_printable(report['message'] or '')}", file=sys.stderr, flush=True)


def _print_result(execution: ExecutionResult) -> int:
    result = execution.result
    print_lines(
        block["text"] if block.get("type") == "text" else json.dumps(block) for block in result.get("content", [])
    )
    if execution.truncated:
        print("(truncated: the result is larger than TOOLSCOUT_MAX_RESULT_BYTES)", file=sys.stderr)
    return 1 if result.get("isError") else 0

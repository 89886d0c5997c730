"""`toolscout discover` finds the tools for a message, `toolscout execute` runs a tool."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.auth.authentication import Caller
from app.catalog.tools import find_tools_by_name
from app.catalog.visibility import Scope
from app.cli.context import ACTOR, add_user_option, open_for_user
from app.discovery.discover import Discovery, discover
from app.discovery.request import DEFAULT_LIMIT, DiscoveryRequest
from app.errors import InvalidInput, ToolNotFound
from app.execution.execute import ExecutionRequest, ExecutionResult, execute_with_progress
from app.search.query import parse_query
from app.settings import Settings
from app.text.strict_json import Json, parse_json


def add_tool_commands(commands: Any) -> None:
    discovery = commands.add_parser("discover", help="find the tools that a message needs")
    discovery.add_argument("message")
    discovery.add_argument("--limit", type=int, choices=range(1, 51), default=DEFAULT_LIMIT, metavar="1..50")
    discovery.add_argument("--strategy", choices=["hybrid", "semantic", "bm25"], default="hybrid")
    discovery.add_argument("--project", metavar="ID", help="search only the tools of this project")
    add_user_option(discovery)
    discovery.set_defaults(deed=_discover)

    execution = commands.add_parser("execute", help="run a tool on its server")
    execution.add_argument("tool", help="SERVER.TOOL or the tool's key")
    execution.add_argument("arguments", nargs="?", default="{}", help="a JSON object (default: {})")
    execution.add_argument("--timeout", type=float, metavar="SECONDS")
    add_user_option(execution)
    execution.set_defaults(deed=_execute)


async def _discover(settings: Settings, options: argparse.Namespace) -> int:
    if not options.message.strip():
        raise InvalidInput("the message has no text to search for")
    async with open_for_user(settings, options.user) as (container, user):
        request = DiscoveryRequest(
            parse_query(options.message), project_id=options.project, strategy=options.strategy, limit=options.limit
        )
        _print_discovery(await discover(container.discoverer, Caller("user", "cli", user), request))
    return 0


def _print_discovery(discovery: Discovery) -> None:
    for position, tool in enumerate(discovery.tools, start=1):
        score = "     " if tool.score is None else f"{tool.score:.3f}"
        name = ".".join(part for part in (tool.definition.server_name, tool.definition.name) if part)
        print(f"{position:3}  {score}  {name:40}  {tool.source}")
    if discovery.no_match:
        print("no tool fits this message")
    degraded = f", degraded: {discovery.degraded_reason}" if discovery.degraded_reason else ""
    print(
        f"{discovery.searched} tools searched ({discovery.strategy}{degraded}), "
        f"{discovery.tokens_selected} of {discovery.tokens_all} tokens"
    )


async def _execute(settings: Settings, options: argparse.Namespace) -> int:
    arguments = parse_json(options.arguments.encode(errors="surrogateescape"), "the text of the arguments")
    if not isinstance(arguments, dict):
        raise InvalidInput("the arguments must be a JSON object")
    async with open_for_user(settings, options.user) as (container, user):
        async with container.database.transaction(user.id) as session:
            tool_key = await find_tools_by_name(session, user.id, options.tool) or options.tool
        scope = Scope(user.id, container.model.id)
        call = ExecutionRequest(scope, ACTOR, arguments, tool_key=tool_key, timeout_s=options.timeout)
        with _explain_tool_not_found(options.tool):
            executed = await execute_with_progress(container.executor, call, _print_progress)
    return _print_result(executed)


@contextmanager
def _explain_tool_not_found(tool: str) -> Iterator[None]:
    """Add how to name a tool: a name without its server is ambiguous, since several servers may have such a tool."""
    try:
        yield
    except ToolNotFound as error:
        if "." in tool:
            raise
        raise ToolNotFound(f"{error.message}: give it as SERVER.TOOL, or by its key") from error


async def _print_progress(report: Json) -> None:
    total = "" if report["total"] is None else f"/{report['total']:g}"
    print(f"{report['progress']:g}{total}  {printable(report['message'] or '')}", file=sys.stderr, flush=True)


def _print_result(executed: ExecutionResult) -> int:
    result = executed.result
    for block in result.get("content", []):
        print(printable(block["text"] if block.get("type") == "text" else json.dumps(block)))
    if executed.truncated:
        print("(truncated: the result is larger than TOOLSCOUT_MAX_RESULT_BYTES)", file=sys.stderr)
    return 1 if result.get("isError") else 0


def printable(text: str) -> str:
    """Replace characters that a terminal would interpret as commands."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )

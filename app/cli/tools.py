"""`toolscout discover` and `toolscout execute`: find a tool, and run it."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.catalog.projects import get_project
from app.catalog.tools import find_tool_id
from app.catalog.visibility import Scope
from app.cli.context import ACTOR, add_user_option, open_for_user
from app.discovery.discover import DEFAULT_LIMIT, Ask, Discovery, discover
from app.errors import InvalidInput, ToolNotFound
from app.execution.execute import ExecutionRequest, ExecutionResult, execute_with_progress
from app.search.query import read_query
from app.settings import Settings
from app.text.strict_json import Json, parse_json


def add_tool_commands(commands: Any) -> None:
    question = commands.add_parser("discover", help="ask which tools a message needs")
    question.add_argument("message")
    question.add_argument("--limit", type=int, choices=range(1, 51), default=DEFAULT_LIMIT, metavar="1..50")
    question.add_argument("--strategy", choices=["hybrid", "semantic", "bm25"], default="hybrid")
    question.add_argument("--project", metavar="ID", help="only what this project sees")
    add_user_option(question)
    question.set_defaults(deed=_discover)

    execution = commands.add_parser("execute", help="run a tool on its server")
    execution.add_argument("tool", help="SERVER.TOOL, or the tool's key")
    execution.add_argument("arguments", nargs="?", default="{}", help="a JSON object (default: {})")
    execution.add_argument("--timeout", type=float, metavar="SECONDS")
    add_user_option(execution)
    execution.set_defaults(deed=_execute)


async def _discover(settings: Settings, options: argparse.Namespace) -> int:
    if not options.message.strip():
        raise InvalidInput("there is no text to search for")
    async with open_for_user(settings, options.user) as (container, user):
        if options.project is not None:
            async with container.database.transaction(user.id) as session:
                await get_project(session, user.id, options.project)
        ask = Ask(
            query=read_query(options.message),
            scope=Scope(user.id, container.model.id, project_id=options.project),
            strategy=options.strategy,
            limit=options.limit,
            threshold=None,
            include_core_tools=True,
            max_tokens=None,
            keep=(),
        )
        _print_discovery(await discover(container.discoverer, user, ask))
    return 0


def _print_discovery(discovery: Discovery) -> None:
    for place, tool in enumerate(discovery.tools, start=1):
        score = "     " if tool.score is None else f"{tool.score:.3f}"
        name = ".".join(part for part in (tool.offer.server_name, tool.offer.name) if part)
        print(f"{place:3}  {score}  {name:40}  {tool.source}")
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
            tool_key = await find_tool_id(session, user.id, options.tool) or options.tool
        scope = Scope(user.id, container.model.id)
        call = ExecutionRequest(scope, ACTOR, arguments, tool_key=tool_key, timeout_s=options.timeout)
        with _names_explained(options.tool):
            executed = await execute_with_progress(container.executor, call, _tell)
    return _show(executed)


@contextmanager
def _names_explained(given: str) -> Iterator[None]:
    """A name without its server is no name here: several may have such a tool."""
    try:
        yield
    except ToolNotFound as error:
        if "." in given:
            raise
        raise ToolNotFound(f"{error.message}: give it as SERVER.TOOL, or by its key") from error


async def _tell(report: Json) -> None:
    total = "" if report["total"] is None else f"/{report['total']:g}"
    print(f"{report['progress']:g}{total}  {printable(report['message'] or '')}", file=sys.stderr, flush=True)


def _show(executed: ExecutionResult) -> int:
    result = executed.result
    for block in result.get("content", []):
        print(printable(block["text"] if block.get("type") == "text" else json.dumps(block)))
    if executed.truncated:
        print("(cut off: the result is larger than TOOLSCOUT_MAX_RESULT_BYTES)", file=sys.stderr)
    return 1 if result.get("isError") else 0


def printable(text: str) -> str:
    """Fit for a terminal, which takes some characters for commands."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )

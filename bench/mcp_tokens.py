"""Measure what a result of `tool_discovery` costs, and whether its compact form is enough: `make bench-tokens`.

The catalogue has 500 real tools of the test servers of `training/data`, which nothing was tuned on. Every message for
them is searched in full, compact, brief and without `detail`. Then a scripted client, which sees only the compact text,
calls the tool that the message is labelled with: it copies the key and fills the required arguments by the signature.
"""

import argparse
import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.catalog.definitions import ToolDefinitionView
from app.catalog.tool_keys import read_tools
from app.catalog.visibility import Scope
from app.container import Container
from app.errors import ArgumentsInvalid
from app.execution.argument_validation import check_arguments, remove_invalid_parts
from app.mcp_server.meta_tools import BASIC_TOOLS
from app.mcp_server.tool_call import ToolCall
from app.observability.logging import configure_logging
from app.text.strict_json import Json, dump_json
from bench.relevance.catalogues import make_catalogue_sets
from bench.relevance.index import IndexedSet, index_set, open_bench_container, open_data_folder
from bench.relevance.sets import BenchSet, last_user_text, separate_duplicates, take_sample
from bench.scripted_client import NeedsDefinition, ShownTool, fill_arguments
from bench.scripted_client import read_tools as read_shown_tools

TOOLS = 500
DETAILS = ("full", "compact", "brief", None)


@dataclass
class Costs:
    """Tokens of each result: of its text, and of its structured content."""

    text: list[int] = field(default_factory=list)
    structured: list[int] = field(default_factory=list)


@dataclass
class Calls:
    """What became of the client's calls."""

    found: int = 0
    """Messages with the right tool in the result."""
    named: int = 0
    """Results whose keys all name a tool."""
    unnamed: list[str] = field(default_factory=list)
    """Keys that name no tool, or several."""
    valid: int = 0
    """The arguments are valid."""
    described: int = 0
    """The signature was cut where it mattered: the client would ask for the definition."""
    refused: list[str] = field(default_factory=list)
    """Why arguments were not valid."""


def main() -> None:
    options = _parser().parse_args()
    configure_logging("WARNING")
    bench = take_sample(make_catalogue(), options.messages)
    with open_data_folder(options.data) as data:
        costs, calls = asyncio.run(_measure(bench, data))
    print(format_report(bench, costs, calls))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.mcp_tokens", description=__doc__)
    parser.add_argument("--messages", type=int, metavar="N", help="measure with about N messages instead of all")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the database, and with it the vectors")
    return parser


def make_catalogue(size: int = TOOLS) -> BenchSet:
    """Return the first tools of the test catalogues with schemas, and the messages that need one of these tools."""
    sets = make_catalogue_sets("test")
    pool = {tool.id: tool for each in sets for tool in each.tools if "inputSchema" in tool.definition}
    tools = list(pool.values())[:size]
    ids = {tool.id for tool in tools}
    items = [item for each in sets for item in each.items if item.tools and set(item.tools) <= ids]
    return BenchSet("mcp-tokens", separate_duplicates(tools), items)


async def _measure(bench: BenchSet, data: Path) -> tuple[Mapping[str | None, Costs], Calls]:
    costs = {detail: Costs() for detail in DETAILS}
    calls = Calls()
    async with open_bench_container(data) as container:
        indexed = await index_set(container, bench)
        for item in bench.items:
            message, wanted = last_user_text(item), {indexed.keys[label] for label in item.tools}
            for detail in DETAILS:
                text = await _discover(container, indexed, message, detail, costs[detail])
                if detail == "compact":
                    await _call_right_tool(container, indexed, list(read_shown_tools(text)), wanted, calls)
    return costs, calls


async def _discover(container: Container, indexed: IndexedSet, message: str, detail: str | None, costs: Costs) -> str:
    arguments: Json = {"query": [message]} | ({} if detail is None else {"detail": detail})
    result = await BASIC_TOOLS[0].run(ToolCall(container, indexed.caller, None, arguments))
    text: str = result["content"][0]["text"]
    costs.text.append(container.count_tokens(text))
    costs.structured.append(container.count_tokens(dump_json(result["structuredContent"]).decode()))
    return text


async def _call_right_tool(
    container: Container, indexed: IndexedSet, shown: Sequence[ShownTool], wanted: set[str], calls: Calls
) -> None:
    """Resolve the keys as `tool_execute` does, and check the arguments for the right tool against its true schema."""
    scope = Scope(indexed.caller.require_user().id, container.model.id)
    async with container.database.transaction(scope.user_id) as session:
        found = await read_tools(session, scope, [tool.tool_key for tool in shown])
    definitions = {key: tool for key, tool in found.items() if isinstance(tool, ToolDefinitionView)}
    calls.named += len(definitions) == len(shown)
    calls.unnamed += [tool.tool_key for tool in shown if tool.tool_key not in definitions]
    for tool in shown:
        definition = definitions.get(tool.tool_key)
        if definition is not None and definition.tool_id in wanted:
            calls.found += 1
            outcome = try_call(tool.signature, definition.input_schema)
            calls.valid += outcome == "valid"
            calls.described += outcome == "cut"
            calls.refused += [f"{tool.tool_key}: {outcome}"] if outcome not in ("valid", "cut") else []
            return


def try_call(signature: str, input_schema: str) -> str:
    """Return "valid", "cut" if the client must read the definition first, or what is wrong with its arguments."""
    try:
        check_arguments(remove_invalid_parts(input_schema), fill_arguments(signature))
    except NeedsDefinition:
        return "cut"
    except ArgumentsInvalid as error:
        return error.message
    return "valid"


def format_report(bench: BenchSet, costs: Mapping[str | None, Costs], calls: Calls) -> str:
    full = costs["full"]
    lines = [f"{len(bench.tools)} tools, {len(bench.items)} messages", ""]
    lines += ["| detail | text: mean | p50 | p95 | saved | structured: mean | saved |", "|---|---|---|---|---|---|---|"]
    for detail, cost in costs.items():
        text, structured = statistics.mean(cost.text), statistics.mean(cost.structured)
        p50, p95 = (sorted(cost.text)[int(share * (len(cost.text) - 1))] for share in (0.5, 0.95))
        saved = (1 - text / statistics.mean(full.text), 1 - structured / statistics.mean(full.structured))
        lines.append(
            f"| {detail or 'none given'} | {text:,.0f} | {p50:,} | {p95:,} | {saved[0]:.0%} "
            f"| {structured:,.0f} | {saved[1]:.0%} |"
        )
    lines += [
        "",
        f"results whose keys all name a tool: {calls.named} of {len(bench.items)}",
        *(f"  {key[:160]!r}" for key in calls.unnamed[:20]),
        f"right tool in the result: {calls.found} of {len(bench.items)}",
        f"called with valid arguments from the signature alone: {calls.valid} of {calls.found}",
        f"definition needed first: {calls.described}; arguments refused: {len(calls.refused)}",
        *(f"  {refused[:160]}" for refused in calls.refused[:20]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

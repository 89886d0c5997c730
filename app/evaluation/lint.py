"""Use case: find descriptions that keep a user's tools from being found."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.catalog.own_texts import DESCRIPTION, TITLE
from app.catalog.visibility import VISIBLE, Scope
from app.discovery.discover import Discoverer
from app.discovery.request import DiscoveryRequest, resolve_options
from app.evaluation.evaluate import FOUND_WITHIN, ProgressCallback
from app.evaluation.labelled_messages import LabelledMessage
from app.evaluation.lint_rules import DescribedTool, Problem, SimilarPair, find_problems, find_similar_pairs
from app.evaluation.run import answer_message
from app.search.query import parse_query

MAX_PAIRS = 200

_SELECT_DESCRIPTIONS = f"""
    SELECT v.tool_id, v.server_name, t.name, {TITLE}, {DESCRIPTION}, t.input_schema, v.embedding
    FROM mcp_tool_embeddings v JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id
    WHERE {VISIBLE} ORDER BY v.server_name, v.tool_name
"""


@dataclass(frozen=True)
class PoorDescription:
    tool: DescribedTool
    problems: Sequence[Problem]


@dataclass(frozen=True)
class Suggestions:
    tools: int
    probed: int
    """How many tools were also searched for by their own description and name; those with the fewest words first."""
    pairs: Sequence[SimilarPair]
    poor: Sequence[PoorDescription]
    """Tools that a search did not find come first."""


async def lint_descriptions(
    discoverer: Discoverer,
    caller: Caller,
    *,
    project_id: str | None = None,
    max_probed: int | None = None,
    on_progress: ProgressCallback = lambda _step, _done, _total: None,
) -> Suggestions:
    """Search for at most `max_probed` tools (None: all), as each takes one or two discoveries."""
    request = DiscoveryRequest(parse_query(""), project_id=project_id)
    options = await resolve_options(discoverer.searcher, caller, request)
    tools = await _load_tools(discoverer, options.scope)
    pairs = await asyncio.to_thread(find_similar_pairs, tools, MAX_PAIRS)
    can_search = options.enabled and discoverer.rollout.includes(caller.require_user())
    probed = sorted(tools, key=lambda tool: len(tool.words))[:max_probed] if can_search else []
    problems = {tool.tool_key: find_problems(tool) for tool in tools}
    for done, tool in enumerate(probed, start=1):
        problems[tool.tool_key] += await _probe(discoverer, caller, tool, project_id)
        on_progress("tools", done, len(probed))
    poor = [PoorDescription(tool, problems[tool.tool_key]) for tool in tools if problems[tool.tool_key]]
    return Suggestions(len(tools), len(probed), pairs, sorted(poor, key=_by_severity))


async def _load_tools(discoverer: Discoverer, scope: Scope) -> list[DescribedTool]:
    async with discoverer.searcher.database.snapshot(scope.user_id) as session:
        rows = await session.rows(_SELECT_DESCRIPTIONS, scope.parameters())
    return [
        DescribedTool(key, server, name, title, description, schema, None if vector is None else vector.to_numpy())
        for key, server, name, title, description, schema, vector in rows
    ]


async def _probe(discoverer: Discoverer, caller: Caller, tool: DescribedTool, project_id: str | None) -> list[Problem]:
    """Search for a tool by its own description and by its name. Return the ways in which it is not found."""
    queries: dict[Problem, str] = {
        "not_found_by_description": tool.first_sentence,
        "not_found_by_name": tool.spoken_name,
    }
    return [
        problem
        for problem, query in queries.items()
        if query and not await _is_found(discoverer, caller, tool, query, project_id)
    ]


async def _is_found(
    discoverer: Discoverer, caller: Caller, tool: DescribedTool, query: str, project_id: str | None
) -> bool:
    item = LabelledMessage(tool.tool_key, [tool.tool_key], query)
    answer = await answer_message(discoverer, caller, item, item.tools, limit=FOUND_WITHIN, project_id=project_id)
    return tool.tool_key in answer.ranked


def _by_severity(poor: PoorDescription) -> tuple[int, int, str]:
    not_found = sum(problem.startswith("not_found") for problem in poor.problems)
    return -not_found, -len(poor.problems), poor.tool.qualified_name

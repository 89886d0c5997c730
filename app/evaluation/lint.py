"""The deed: what in a user's descriptions keeps tools from being found."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.auth.permissions import Caller
from app.catalog.visibility import VISIBLE, Scope
from app.discovery.discover import Discoverer
from app.discovery.request import Wishes, resolved
from app.evaluation.evaluate import FOUND_WITHIN, ProgressCallback
from app.evaluation.labelled import Labelled
from app.evaluation.lint_rules import Alike, Described, Problem, alike, problems_of
from app.evaluation.run import answer_message
from app.search.query import read_query
from app.text.strict_json import Json

MOST_PAIRS = 200

_DESCRIBED = f"""
    SELECT v.tool_id, v.server_name, t.name, t.title, t.description, t.input_schema, v.embedding
    FROM mcp_tool_embeddings v JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id
    WHERE {VISIBLE} ORDER BY v.server_name, v.tool_name
"""


@dataclass(frozen=True)
class Poor:
    tool: Described
    problems: Sequence[Problem]


@dataclass(frozen=True)
class Suggestions:
    tools: int
    probed: int
    """So many were also asked for, by their own descriptions and names; those that say least first."""
    pairs: Sequence[Alike]
    poor: Sequence[Poor]
    """Those that were not found first."""


async def lint_descriptions(
    discoverer: Discoverer,
    caller: Caller,
    *,
    project_id: str | None = None,
    most_probed: int | None = None,
    told: ProgressCallback = lambda _what, _done, _all: None,
) -> Suggestions:
    """`most_probed`: a question or two for each tool take their time; None: all."""
    ask = await resolved(discoverer, caller, Wishes(read_query(""), project_id=project_id))
    tools = await _described(discoverer, ask.scope)
    pairs = await asyncio.to_thread(alike, tools, MOST_PAIRS)
    searches = ask.strategy is not None and caller.require_user().discovery_enabled
    probed = sorted(tools, key=lambda tool: len(tool.words))[:most_probed] if searches else []
    problems = {tool.tool_key: problems_of(tool) for tool in tools}
    for done, tool in enumerate(probed, start=1):
        problems[tool.tool_key] += await _unfound(discoverer, caller, tool, project_id)
        told("tools", done, len(probed))
    poor = [Poor(tool, problems[tool.tool_key]) for tool in tools if problems[tool.tool_key]]
    return Suggestions(len(tools), len(probed), pairs, sorted(poor, key=_severity))


async def _described(discoverer: Discoverer, scope: Scope) -> list[Described]:
    async with discoverer.database.snapshot(scope.user_id) as session:
        rows = await session.rows(_DESCRIBED, scope.parameters())
    return [_tool(*row) for row in rows]


def _tool(key: str, server: str, name: str, title: str | None, said: str, schema: Json, vector: Any) -> Described:
    return Described(key, server, name, title, said, schema, None if vector is None else vector.to_numpy())


async def _unfound(discoverer: Discoverer, caller: Caller, tool: Described, project_id: str | None) -> list[Problem]:
    questions: dict[Problem, str] = {
        "not_found_by_description": tool.first_sentence,
        "not_found_by_name": tool.spoken_name,
    }
    return [
        problem
        for problem, question in questions.items()
        if question and not await _finds(discoverer, caller, tool, question, project_id)
    ]


async def _finds(
    discoverer: Discoverer, caller: Caller, tool: Described, question: str, project_id: str | None
) -> bool:
    asked = Labelled(tool.tool_key, [tool.tool_key], question)
    answer = await answer_message(discoverer, caller, asked, asked.tools, limit=FOUND_WITHIN, project_id=project_id)
    return tool.tool_key in answer.ranked


def _severity(poor: Poor) -> tuple[int, int, str]:
    unfound = sum(problem.startswith("not_found") for problem in poor.problems)
    return -unfound, -len(poor.problems), poor.tool.called

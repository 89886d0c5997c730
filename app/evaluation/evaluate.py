"""Use case: evaluate how well labelled messages find their tools in a user's catalogue, and explain the misses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.discovery.discover import Discoverer
from app.discovery.explain import Reason, explain
from app.discovery.request import DiscoveryRequest, resolve_options
from app.evaluation.label_resolver import LabelResolver, load_resolver
from app.evaluation.labelled_messages import LabelledMessage
from app.evaluation.run import EvalAnswer, answer_message, make_request
from app.evaluation.summary import Summary, summarize
from app.search.query import parse_query

FOUND_WITHIN = 5
"""A relevant tool with a lower rank is a miss."""

ProgressCallback = Callable[[str, int, int], None]
"""Called with the name of the step, how much of it is done, and its total."""


@dataclass(frozen=True)
class EvalOptions:
    """How to evaluate. At most `max_explained` misses get a reason (None: all), as each takes another discovery."""

    limit: int
    project_id: str | None = None
    max_explained: int | None = None


@dataclass(frozen=True)
class Miss:
    item: LabelledMessage
    tool_key: str
    tool: str
    """`SERVER.TOOL`."""
    rank: int | None
    """None if the answer does not contain the tool."""
    reason: Reason | None
    """None if it was not determined."""


@dataclass(frozen=True)
class NotFirst:
    """The highest relevant tool of a message, if another tool ranks above it."""

    item: LabelledMessage
    tool_key: str
    tool: str
    """`SERVER.TOOL`."""
    rank: int
    first_key: str
    first: str
    """The tool that ranks first instead."""


@dataclass(frozen=True)
class UnknownLabel:
    item: LabelledMessage
    label: str


@dataclass(frozen=True)
class Evaluation:
    summary: Summary
    answers: Sequence[EvalAnswer]
    misses: Sequence[Miss]
    not_first: Sequence[NotFirst]
    unknown: Sequence[UnknownLabel]


async def evaluate(
    discoverer: Discoverer,
    caller: Caller,
    items: Sequence[LabelledMessage],
    options: EvalOptions,
    on_progress: ProgressCallback = lambda _step, _done, _total: None,
) -> Evaluation:
    """Raise `NotFound` if the project does not exist or the caller's key is bound to another one."""
    request = DiscoveryRequest(parse_query(""), project_id=options.project_id)
    scope = (await resolve_options(discoverer.searcher, caller, request)).scope
    resolver = await load_resolver(discoverer, caller, scope)
    answers = []
    for done, item in enumerate(items, start=1):
        relevant = resolver.resolve(item.tools)
        limit, project_id = options.limit, options.project_id
        answers.append(await answer_message(discoverer, caller, item, relevant, limit=limit, project_id=project_id))
        on_progress("messages", done, len(items))
    return Evaluation(
        summary=summarize(answers),
        answers=answers,
        misses=await _explain_misses(discoverer, caller, answers, resolver, options, on_progress),
        not_first=[found for answer in answers if (found := _find_not_first(answer, resolver)) is not None],
        unknown=[UnknownLabel(item, label) for item in items for label in resolver.find_unknown(item.tools)],
    )


async def _explain_misses(
    discoverer: Discoverer,
    caller: Caller,
    answers: Sequence[EvalAnswer],
    resolver: LabelResolver,
    options: EvalOptions,
    on_progress: ProgressCallback,
) -> list[Miss]:
    missed = [(answer, key) for answer in answers for key in _find_missed(answer, resolver)]
    explained = len(missed) if options.max_explained is None else min(options.max_explained, len(missed))
    misses = []
    for done, (answer, key) in enumerate(missed, start=1):
        reason = await _explain_miss(discoverer, caller, answer, key, options) if done <= explained else None
        rank = answer.ranked.index(key) + 1 if key in answer.ranked else None
        misses.append(Miss(answer.item, key, resolver.names[key], rank, reason))
        on_progress("misses", min(done, explained), explained)
    return misses


def _find_missed(answer: EvalAnswer, resolver: LabelResolver) -> list[str]:
    top = answer.ranked[:FOUND_WITHIN]
    relevant = resolver.resolve(answer.item.tools)
    return [key for key in relevant if key in resolver.names and key not in top]


def _find_not_first(answer: EvalAnswer, resolver: LabelResolver) -> NotFirst | None:
    """Return the highest relevant tool if it does not rank first. Ranks beyond `FOUND_WITHIN` are misses instead."""
    relevant = set(resolver.resolve(answer.item.tools))
    for rank, key in enumerate(answer.ranked[:FOUND_WITHIN], start=1):
        if key in relevant:
            if rank == 1 or key not in resolver.names:
                return None
            first = answer.ranked[0]
            return NotFirst(answer.item, key, resolver.names[key], rank, first, resolver.names.get(first, first))
    return None


async def _explain_miss(
    discoverer: Discoverer, caller: Caller, answer: EvalAnswer, key: str, options: EvalOptions
) -> Reason:
    request = make_request(answer.item, limit=options.limit, project_id=options.project_id)
    [reason] = await explain(discoverer, caller, request, key)
    return reason

"""The deed: how well a user's own messages are answered from the user's own catalogue, and why not better."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.discovery.discover import Discoverer
from app.discovery.explain import Reason, explain
from app.discovery.request import Wishes, resolved
from app.evaluation.labelled import Labelled
from app.evaluation.resolver import LabelResolver, load_resolver
from app.evaluation.run import EvalAnswer, answer_message, ask_of
from app.evaluation.summary import Summary, summarize
from app.search.query import read_query

FOUND_WITHIN = 5
"""A tool that is needed and stands further down is a miss."""

ProgressCallback = Callable[[str, int, int], None]
"""What is being done, how much of it is done, how much there is."""


@dataclass(frozen=True)
class EvalOptions:
    """How the messages are asked. `explained`: of so many misses the reason is looked for, which takes as long as the
    message itself; None: of all."""

    limit: int
    project_id: str | None = None
    explained: int | None = None


@dataclass(frozen=True)
class Miss:
    asked: Labelled
    tool_key: str
    tool: str
    """`SERVER.TOOL`."""
    place: int | None
    """In the answer, if it is there at all."""
    reason: Reason | None
    """None where it was not looked for."""


@dataclass(frozen=True)
class NotFirst:
    """A message's first right tool, where a wrong one stands before it."""

    asked: Labelled
    tool_key: str
    tool: str
    """`SERVER.TOOL`."""
    place: int
    first_key: str
    first: str
    """What stands at the first place instead."""


@dataclass(frozen=True)
class UnknownLabel:
    asked: Labelled
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
    items: Sequence[Labelled],
    course: EvalOptions,
    told: ProgressCallback = lambda _what, _done, _all: None,
) -> Evaluation:
    """Raises `NotFound` for a project that is not there, or that the caller's key is not bound to."""
    scope = (await resolved(discoverer, caller, Wishes(read_query(""), project_id=course.project_id))).scope
    meaning = await load_resolver(discoverer, caller, scope)
    answers = []
    for done, asked in enumerate(items, start=1):
        relevant = meaning.relevant(asked.tools)
        limit, project_id = course.limit, course.project_id
        answers.append(await answer_message(discoverer, caller, asked, relevant, limit=limit, project_id=project_id))
        told("messages", done, len(items))
    return Evaluation(
        summary=summarize(answers),
        answers=answers,
        misses=await _misses(discoverer, caller, answers, meaning, course, told),
        not_first=[each for answer in answers for each in _not_first(answer, meaning)],
        unknown=[UnknownLabel(asked, label) for asked in items for label in meaning.unknown(asked.tools)],
    )


async def _misses(
    discoverer: Discoverer,
    caller: Caller,
    answers: Sequence[EvalAnswer],
    meaning: LabelResolver,
    course: EvalOptions,
    told: ProgressCallback,
) -> list[Miss]:
    missed = [(answer, key) for answer in answers for key in _missed(answer, meaning)]
    explained = len(missed) if course.explained is None else min(course.explained, len(missed))
    misses = []
    for done, (answer, key) in enumerate(missed, start=1):
        reason = await _reason(discoverer, caller, answer, key, course) if done <= explained else None
        misses.append(Miss(answer.asked, key, meaning.called[key], _place(answer, key), reason))
        told("misses", min(done, explained), explained)
    return misses


def _missed(answer: EvalAnswer, meaning: LabelResolver) -> list[str]:
    first = answer.ranked[:FOUND_WITHIN]
    relevant = meaning.relevant(answer.asked.tools)
    return [key for key in relevant if key in meaning.called and key not in first]


def _not_first(answer: EvalAnswer, meaning: LabelResolver) -> list[NotFirst]:
    """At most one: who is told of the best place knows the others. Further down it is a miss."""
    relevant = set(meaning.relevant(answer.asked.tools))
    places = [(place, key) for place, key in enumerate(answer.ranked[:FOUND_WITHIN], start=1) if key in relevant]
    first = answer.ranked[0] if answer.ranked else ""
    return [
        NotFirst(answer.asked, key, meaning.called[key], place, first, meaning.called.get(first, first))
        for place, key in places[:1]
        if place > 1 and key in meaning.called
    ]


def _place(answer: EvalAnswer, key: str) -> int | None:
    return answer.ranked.index(key) + 1 if key in answer.ranked else None


async def _reason(discoverer: Discoverer, caller: Caller, answer: EvalAnswer, key: str, course: EvalOptions) -> Reason:
    ask = await ask_of(discoverer, caller, answer.asked, limit=course.limit, project_id=course.project_id)
    confined = caller.project_id is not None
    [reason] = await explain(discoverer, caller.require_user(), ask, key, confined=confined)
    return reason

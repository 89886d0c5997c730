"""REST: `POST /eval`, how well labelled messages are answered from the user's own catalogue."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, StringConstraints, model_validator

from app.api.strict_json import StrictRoute
from app.dependencies import ContainerDep, DiscoverCaller
from app.evaluation.evaluate import EvalOptions, Evaluation, Miss, NotFirst, evaluate
from app.evaluation.labelled import Labelled
from app.evaluation.lint import Suggestions, lint_descriptions
from app.evaluation.lint_rules import Alike, Likeness, Problem
from app.evaluation.run import DEFAULT_LIMIT, EvalAnswer
from app.evaluation.scores import Measures
from app.schemas.base import Identifier, Input, Output

router = APIRouter(tags=["discovery"], route_class=StrictRoute)

MAX_ITEMS = 500
MAX_EXPLAINED = 200
MAX_PROBED = 200

Label = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class ItemBody(Input):
    id: Identifier | None = Field(None, description="its place in the list, counted from 1, unless given")
    message: str | None = Field(
        None, max_length=200_000, description="what a user would say", examples=["open a bug about the login page"]
    )
    messages: list[dict[str, Any]] | None = Field(None, max_length=500, description="turns, instead of `message`")
    tools: list[Label] = Field(
        max_length=50,
        description="the right ones: `SERVER.TOOL`, name or key; `[]`: none is needed",
        examples=[["github.create_issue"]],
    )

    @model_validator(mode="after")
    def _something_to_search_for(self) -> "ItemBody":
        if (self.message is None) == (self.messages is None):
            raise ValueError("give either `message` or `messages`")
        if not self.labelled("").text:
            raise ValueError("there is no text to search for")
        return self

    def labelled(self, number: str) -> Labelled:
        return Labelled(self.id or number, list(dict.fromkeys(self.tools)), self.message, self.messages)


class EvalBody(Input):
    items: list[ItemBody] = Field(max_length=MAX_ITEMS, description="messages, each with the tools that it needs")
    limit: int = Field(DEFAULT_LIMIT, ge=1, le=50, description="of each answer")
    project_id: Identifier | None = Field(None, description="only what this project sees")
    suggest: bool = Field(False, description="also tools that read alike, and those too poorly described to be found")

    @model_validator(mode="after")
    def _something_to_do(self) -> "EvalBody":
        if not self.items and not self.suggest:
            raise ValueError("give `items`, or ask for suggestions")
        return self


class MeasuresOut(Output):
    hit_at_1: float
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    mrr: float


class AnswerOut(Output):
    id: str
    ranked: list[str] = Field(description="tool keys, the best first")
    measures: MeasuresOut | None = Field(description="null where no tool is needed")
    no_match: bool
    tokens: int
    saved_percent: float
    degraded_reason: str | None


class MissOut(Output):
    id: str
    tool: str = Field(description="`SERVER.TOOL`")
    tool_key: str
    place: int | None = Field(description="in the answer; null where it is not there")
    reason: str | None = Field(description=f"as of `/discover/why`; only of the first {MAX_EXPLAINED}")
    message: str | None


class NotFirstOut(Output):
    id: str
    tool: str = Field(description="`SERVER.TOOL`")
    tool_key: str
    place: int
    first: str = Field(description="what stands there instead")
    first_key: str


class UnknownOut(Output):
    id: str
    label: str = Field(description="names no tool of the catalogue, and counts as not found")


class PairOut(Output):
    first: str = Field(description="`SERVER.TOOL`")
    first_key: str
    second: str
    second_key: str
    by: list[Likeness]
    cosine: float | None
    shared_words: float = Field(description="of all the words of both, the share that both have")


class PoorOut(Output):
    tool: str
    tool_key: str
    problems: list[Problem]


class SuggestionsOut(Output):
    tools: int
    probed: int = Field(description=f"so many were asked for by their own text, at most {MAX_PROBED}")
    pairs: list[PairOut] = Field(description="that the search can hardly tell apart")
    poor: list[PoorOut]


class EvalOut(Output):
    messages: int
    measures: MeasuresOut | None = Field(description="means over the messages that need tools")
    abstained: float | None = Field(description="of the messages that need no tool: the share answered with `no_match`")
    lost: float | None = Field(description="of those that need tools: the same share")
    median_tokens: float | None
    median_saved_percent: float | None
    median_ms: float | None
    degraded: int = Field(description="answers that were searched by words alone, or not at all")
    answers: list[AnswerOut]
    misses: list[MissOut] = Field(description="right tools that are not among the first five")
    not_first: list[NotFirstOut] = Field(
        description="of each message whose first right tool stands at the second to fifth place: that tool"
    )
    unknown_labels: list[UnknownOut]
    suggestions: SuggestionsOut | None = None


@router.post("/eval")
async def post_eval(body: EvalBody, caller: DiscoverCaller, container: ContainerDep) -> EvalOut:
    """How well these messages are answered, what was missed and why."""
    items = [item.labelled(str(number)) for number, item in enumerate(body.items, start=1)]
    course = EvalOptions(body.limit, body.project_id, MAX_EXPLAINED)
    evaluation = await evaluate(container.discoverer, caller, items, course)
    suggestions = None
    if body.suggest:
        suggestions = await lint_descriptions(
            container.discoverer, caller, project_id=body.project_id, most_probed=MAX_PROBED
        )
    return render_evaluation(evaluation, suggestions)


def render_evaluation(evaluation: Evaluation, suggestions: Suggestions | None) -> EvalOut:
    summary = evaluation.summary
    return EvalOut(
        messages=summary.messages,
        measures=_measures(summary.measures),
        abstained=_rounded(summary.abstained),
        lost=_rounded(summary.lost),
        median_tokens=summary.median_tokens,
        median_saved_percent=_rounded(summary.median_saved_percent),
        median_ms=_rounded(summary.median_ms),
        degraded=summary.degraded,
        answers=[_answer(answer) for answer in evaluation.answers],
        misses=[_miss(miss) for miss in evaluation.misses],
        not_first=[_not_first(each) for each in evaluation.not_first],
        unknown_labels=[UnknownOut(id=each.asked.id, label=each.label) for each in evaluation.unknown],
        suggestions=None if suggestions is None else _suggestions(suggestions),
    )


def _measures(measures: Measures | None) -> MeasuresOut | None:
    if measures is None:
        return None
    figures = {name: round(value, 4) for name, value in asdict(measures).items()}
    return MeasuresOut(mrr=figures.pop("reciprocal_rank"), **figures)


def _answer(answer: EvalAnswer) -> AnswerOut:
    return AnswerOut(
        id=answer.asked.id,
        ranked=list(answer.ranked),
        measures=_measures(answer.measures),
        no_match=answer.no_match,
        tokens=answer.tokens,
        saved_percent=round(answer.saved_percent, 1),
        degraded_reason=answer.degraded_reason,
    )


def _miss(miss: Miss) -> MissOut:
    return MissOut(
        id=miss.asked.id,
        tool=miss.tool,
        tool_key=miss.tool_key,
        place=miss.place,
        reason=miss.reason and miss.reason.code,
        message=miss.reason and miss.reason.message,
    )


def _not_first(found: NotFirst) -> NotFirstOut:
    return NotFirstOut(
        id=found.asked.id,
        tool=found.tool,
        tool_key=found.tool_key,
        place=found.place,
        first=found.first,
        first_key=found.first_key,
    )


def _suggestions(suggestions: Suggestions) -> SuggestionsOut:
    return SuggestionsOut(
        tools=suggestions.tools,
        probed=suggestions.probed,
        pairs=[_pair(pair) for pair in suggestions.pairs],
        poor=[
            PoorOut(tool=poor.tool.called, tool_key=poor.tool.tool_key, problems=list(poor.problems))
            for poor in suggestions.poor
        ],
    )


def _pair(pair: Alike) -> PairOut:
    return PairOut(
        first=pair.first.called,
        first_key=pair.first.tool_key,
        second=pair.second.called,
        second_key=pair.second.tool_key,
        by=list(pair.by),
        cosine=_rounded(pair.cosine),
        shared_words=round(pair.shared_words, 4),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

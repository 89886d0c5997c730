"""Request and response models of `/eval`."""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from app.evaluation.evaluate import Evaluation, Miss, NotFirst
from app.evaluation.labelled_messages import LabelledMessage
from app.evaluation.lint import Suggestions
from app.evaluation.lint_rules import DescribedTool, Problem, SimilarityKind, SimilarPair
from app.evaluation.run import DEFAULT_LIMIT, EvalAnswer
from app.evaluation.scores import Measures
from app.schemas.base import FieldError, Identifier, Input, Output, make_synonyms
from app.search.confidence import Confidence

MAX_ITEMS = 500
MAX_EXPLAINED = 200
MAX_PROBED = 200

Label = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class ItemBody(Input):
    synonyms = make_synonyms(
        message="query text prompt",
        tools="labels expected tool_keys",
    )

    id: Identifier | None = Field(None, description="default: the position in the list, from 1")
    message: str | None = Field(
        None, max_length=200_000, description="the text of the user", examples=["open a bug about the login page"]
    )
    messages: list[dict[str, Any]] | None = Field(None, max_length=500, description="turns, instead of `message`")
    tools: list[Label] = Field(
        max_length=50,
        description="the relevant tools: `SERVER.TOOL`, name or key; `[]`: no tool is needed",
        examples=[["github.create_issue"]],
    )

    @model_validator(mode="after")
    def _check_text(self) -> "ItemBody":
        if (self.message is None) == (self.messages is None):
            raise FieldError("give either `message` or `messages`", "message")
        if not self.to_item("").text:
            field = "message" if self.messages is None else "messages"
            raise FieldError("there is no text of the user to search for", field)
        return self

    def to_item(self, number: str) -> LabelledMessage:
        return LabelledMessage(self.id or number, list(dict.fromkeys(self.tools)), self.message, self.messages)


class EvalBody(Input):
    synonyms = make_synonyms(
        items="messages labels examples",
        limit="top_k k max_results",
        project_id="project",
    )

    items: list[ItemBody] = Field(max_length=MAX_ITEMS, description="messages with the tools that they need")
    limit: int = Field(DEFAULT_LIMIT, ge=1, le=50, description="the maximum number of tools in each answer")
    project_id: Identifier | None = Field(None, description="search only the tools of this project")
    suggest: bool = Field(
        False, description="also list similar tools, and tools that are too poorly described to be found"
    )

    @model_validator(mode="after")
    def _check_not_empty(self) -> "EvalBody":
        if not self.items and not self.suggest:
            raise FieldError("give `items`, or set `suggest`", "items")
        return self


class MeasuresOut(Output):
    hit_at_1: float
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    mrr: float


class AnswerOut(Output):
    id: str
    ranked: list[str] = Field(description="tool keys, best first")
    measures: MeasuresOut | None = Field(description="null if no tool is needed")
    confidence: Confidence
    no_match: bool
    tokens: int
    saved_percent: float
    degraded_reason: str | None


class MissOut(Output):
    id: str
    tool: str = Field(description="`SERVER.TOOL`")
    tool_key: str
    place: int | None = Field(description="the rank in the answer; null if the answer does not contain the tool")
    reason: str | None = Field(description=f"as in `/discover/why`; only for the first {MAX_EXPLAINED} misses")
    message: str | None


class NotFirstOut(Output):
    id: str
    tool: str = Field(description="`SERVER.TOOL`")
    tool_key: str
    place: int
    first: str = Field(description="the tool that ranks first instead")
    first_key: str


class UnknownOut(Output):
    id: str
    label: str = Field(description="matches no tool of the catalogue, and counts as not found")


_PATH = "where to write a better description: `PATCH` this path, or open it below `/console`"


class PairOut(Output):
    first: str = Field(description="`SERVER.TOOL`")
    first_key: str
    first_path: str = Field(description=_PATH)
    second: str
    second_key: str
    second_path: str
    by: list[SimilarityKind]
    cosine: float | None
    shared_words: float = Field(description="the share of the words of both tools that both have")


class PoorOut(Output):
    tool: str
    tool_key: str
    path: str = Field(description=_PATH)
    problems: list[Problem]


class SuggestionsOut(Output):
    tools: int
    probed: int = Field(description=f"how many tools were searched for by their own text, at most {MAX_PROBED}")
    pairs: list[PairOut] = Field(description="tools that the search can hardly distinguish")
    poor: list[PoorOut]


class EvalOut(Output):
    messages: int
    measures: MeasuresOut | None = Field(description="means over the messages that need tools")
    abstained: float | None = Field(description="the share of the messages that need no tool which got `no_match`")
    lost: float | None = Field(description="the share of the messages that need tools which got `no_match`")
    low_confidence: float | None = Field(description="the share of all messages whose `confidence` is `low`")
    mean_tools: float | None = Field(description="the mean number of tools in the answers to messages that need tools")
    mean_unneeded_tools: float | None = Field(
        description="the mean number of tools in the answers to messages that need no tool"
    )
    median_tokens: float | None
    median_saved_percent: float | None
    median_ms: float | None
    degraded: int = Field(description="answers of a fallback: searched by words alone, or not searched")
    answers: list[AnswerOut]
    misses: list[MissOut] = Field(description="relevant tools that are not among the first five")
    not_first: list[NotFirstOut] = Field(
        description="the highest relevant tool of each message, if it ranks second to fifth"
    )
    unknown_labels: list[UnknownOut]
    suggestions: SuggestionsOut | None = None


def render_evaluation(evaluation: Evaluation, suggestions: Suggestions | None) -> EvalOut:
    summary = evaluation.summary
    return EvalOut(
        messages=summary.messages,
        measures=_render_measures(summary.measures),
        abstained=_round(summary.abstained),
        lost=_round(summary.lost),
        low_confidence=_round(summary.low_confidence),
        mean_tools=_round(summary.mean_tools),
        mean_unneeded_tools=_round(summary.mean_unneeded_tools),
        median_tokens=summary.median_tokens,
        median_saved_percent=_round(summary.median_saved_percent),
        median_ms=_round(summary.median_ms),
        degraded=summary.degraded,
        answers=[_render_answer(answer) for answer in evaluation.answers],
        misses=[_render_miss(miss) for miss in evaluation.misses],
        not_first=[_render_not_first(each) for each in evaluation.not_first],
        unknown_labels=[UnknownOut(id=each.item.id, label=each.label) for each in evaluation.unknown],
        suggestions=None if suggestions is None else _render_suggestions(suggestions),
    )


def _render_measures(measures: Measures | None) -> MeasuresOut | None:
    if measures is None:
        return None
    values = {name: round(value, 4) for name, value in asdict(measures).items()}
    return MeasuresOut(mrr=values.pop("reciprocal_rank"), **values)


def _render_answer(answer: EvalAnswer) -> AnswerOut:
    return AnswerOut(
        id=answer.item.id,
        ranked=list(answer.ranked),
        measures=_render_measures(answer.measures),
        confidence=answer.confidence,
        no_match=answer.no_match,
        tokens=answer.tokens,
        saved_percent=round(answer.saved_percent, 1),
        degraded_reason=answer.degraded_reason,
    )


def _render_miss(miss: Miss) -> MissOut:
    return MissOut(
        id=miss.item.id,
        tool=miss.tool,
        tool_key=miss.tool_key,
        place=miss.rank,
        reason=miss.reason and miss.reason.code,
        message=miss.reason and miss.reason.message,
    )


def _render_not_first(found: NotFirst) -> NotFirstOut:
    return NotFirstOut(
        id=found.item.id,
        tool=found.tool,
        tool_key=found.tool_key,
        place=found.rank,
        first=found.first,
        first_key=found.first_key,
    )


def _render_suggestions(suggestions: Suggestions) -> SuggestionsOut:
    return SuggestionsOut(
        tools=suggestions.tools,
        probed=suggestions.probed,
        pairs=[_render_pair(pair) for pair in suggestions.pairs],
        poor=[
            PoorOut(
                tool=poor.tool.qualified_name,
                tool_key=poor.tool.tool_key,
                path=_get_path(poor.tool),
                problems=list(poor.problems),
            )
            for poor in suggestions.poor
        ],
    )


def _get_path(tool: DescribedTool) -> str:
    return f"/tools/{tool.tool_key}"


def _render_pair(pair: SimilarPair) -> PairOut:
    return PairOut(
        first=pair.first.qualified_name,
        first_key=pair.first.tool_key,
        first_path=_get_path(pair.first),
        second=pair.second.qualified_name,
        second_key=pair.second.tool_key,
        second_path=_get_path(pair.second),
        by=list(pair.by),
        cosine=_round(pair.cosine),
        shared_words=round(pair.shared_words, 4),
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

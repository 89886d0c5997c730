"""REST: `POST /catalog/search`, over tools that come with the request."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from app.api.strict_json import StrictRoute
from app.dependencies import ContainerDep, DiscoverCaller
from app.discovery.inline.documents import SentTool
from app.discovery.inline.search import FoundTool, InlineSearchResult, search_inline
from app.schemas.base import Input, Output
from app.search.query import query_in_context

router = APIRouter(tags=["discovery"], route_class=StrictRoute)

MAX_TOOLS = 2_000
MAX_QUERIES = 10

Label = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
Phrase = Annotated[str, StringConstraints(max_length=200_000)]


class SentToolBody(Input):
    model_config = ConfigDict(alias_generator=to_camel)

    tool_key: Label = Field(description="whatever you know it by; each once")
    tool_name: str = Field(min_length=1, max_length=300)
    server_name: Label
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class SearchBody(Input):
    query: list[Phrase] = Field(
        min_length=1,
        max_length=MAX_QUERIES,
        description="a phrase for each thing to do",
        examples=[["create a calendar event"]],
    )
    context: Phrase | None = Field(None, description="what it is about")
    tools: list[SentToolBody] = Field(max_length=MAX_TOOLS, description="what is searched; none of it is stored")
    max_results: int | None = Field(None, ge=1, le=50, description="how many at most, of all queries together")

    @model_validator(mode="after")
    def _something_to_search_for(self) -> "SearchBody":
        if not all(query.strip() for query in self.query):
            raise ValueError("there is no text to search for")
        if (again := _second_of_a_key(self.tools)) is not None:
            raise ValueError(f"number {again} of `tools` has a `toolKey` that stands before it: give each once")
        return self


class FoundToolOut(Output):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    tool_key: str
    tool_name: str
    server_name: str
    description: str
    relevance: float = Field(description="0 to 1: the score of `/discover`")
    explanation: str


class RefusedOut(Output):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    tool_key: str
    reason: str


class SearchOut(Output):
    results: list[FoundToolOut]
    total_searched: int
    degraded: bool
    degraded_reason: str | None = Field(
        description="`embedding_budget` where there was no time to embed all tools, else as of `/discover`"
    )
    pending: int = Field(description="tools without a vector yet, found by their words alone; ask again for the rest")
    no_match: bool
    refused: list[RefusedOut] = Field(description="tools that were not searched, and why")


@router.post("/catalog/search")
async def post_catalog_search(body: SearchBody, caller: DiscoverCaller, container: ContainerDep) -> SearchOut:
    """The tools that these queries need, of those that are sent along. None of them is stored."""
    queries = [query_in_context(query, body.context or "") for query in body.query]
    tools = [SentTool(**vars(tool)) for tool in body.tools]
    return _shown(await search_inline(container.inline_searcher, caller, queries, tools, body.max_results))


def _second_of_a_key(tools: Sequence[SentToolBody]) -> int | None:
    """Its number, counted from 1."""
    seen: set[str] = set()
    for number, tool in enumerate(tools, start=1):
        if tool.tool_key in seen:
            return number
        seen.add(tool.tool_key)
    return None


def _shown(answer: InlineSearchResult) -> SearchOut:
    return SearchOut(
        results=[_result(found) for found in answer.results],
        total_searched=answer.searched,
        degraded=answer.degraded_reason is not None,
        degraded_reason=answer.degraded_reason,
        pending=answer.pending,
        no_match=not answer.results,
        refused=[RefusedOut(tool_key=key, reason=reason) for key, reason in answer.refused.items()],
    )


def _result(found: FoundTool) -> FoundToolOut:
    return FoundToolOut(
        tool_key=found.tool_key,
        tool_name=found.tool.name,
        server_name=found.tool.server_name,
        description=found.tool.description,
        relevance=round(found.relevance, 4),
        explanation=found.explanation,
    )

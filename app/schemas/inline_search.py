"""Request and response models of `/catalog/search`."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from app.schemas.base import CamelCaseInput, FieldError, Input, Output, make_synonyms
from app.text.invisible import remove_hidden

MAX_TOOLS = 2_000
MAX_QUERIES = 10

Label = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
Phrase = Annotated[str, StringConstraints(max_length=200_000)]


_PASSED_BACK = "not searched; the result has it again"


class SentToolBody(Input):
    model_config = ConfigDict(alias_generator=to_camel)

    synonyms = make_synonyms(
        toolKey="key id",
        toolName="name",
        serverName="server",
        inputSchema="parameters schema",
    )

    tool_key: Label = Field(description="your own key for the tool, unique in the list")
    tool_name: str = Field(min_length=1, max_length=300)
    server_name: Label
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = Field(None, description=_PASSED_BACK)
    annotations: dict[str, Any] | None = Field(None, description=_PASSED_BACK)


class SearchBody(CamelCaseInput):
    synonyms = make_synonyms(
        query="message text prompt",
        max_results="limit top_k k",
    )

    query: list[Phrase] = Field(
        min_length=1,
        max_length=MAX_QUERIES,
        description="a phrase for each thing to do",
        examples=[["create a calendar event"]],
    )
    context: Phrase | None = Field(None, description="what the queries are about")
    tools: list[SentToolBody] = Field(max_length=MAX_TOOLS, description="the tools to search; they are not stored")
    max_results: int | None = Field(
        None,
        ge=1,
        le=50,
        description="the maximum number of results of all queries; there are fewer if the queries need fewer. "
        "`maxResults` is the same",
    )

    @model_validator(mode="after")
    def _check_queries_and_keys(self) -> "SearchBody":
        for position, query in enumerate(self.query):
            if not remove_hidden(query).strip():
                raise FieldError("there is no text to search for", "query", position)
        seen: set[str] = set()
        for position, tool in enumerate(self.tools):
            if tool.tool_key in seen:
                raise FieldError("repeats an earlier `toolKey`: make each key unique", "tools", position, "toolKey")
            seen.add(tool.tool_key)
        return self


class FoundToolOut(Output):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    tool_key: str
    tool_name: str
    server_name: str
    description: str
    relevance: float = Field(description="the score of `/discover`, 0 to 1")
    explanation: str
    output_schema: dict[str, Any] | None = Field(None, description="absent unless the tool was sent with one")
    annotations: dict[str, Any] | None = Field(None, description="absent unless the tool was sent with some")


class RefusedOut(Output):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    tool_key: str
    reason: str


class SearchOut(Output):
    results: list[FoundToolOut]
    total_searched: int
    degraded: bool
    degraded_reason: str | None = Field(
        description="`embedding_budget` if there was no time to embed all tools, otherwise as in `/discover`"
    )
    pending: int = Field(
        description="the number of tools without an embedding yet, found by their words alone; repeat the request to "
        "embed the rest"
    )
    no_match: bool = Field(description="no tool fits any of the queries")
    refused: list[RefusedOut] = Field(description="tools that were not searched, and why")

"""What may be asked of a discovery."""

from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, model_validator

from app.discovery.formats import Format
from app.discovery.request import Wishes
from app.schemas.base import Identifier, Input, Tags
from app.search.query import Query, read_query
from app.search.scoring import Strategy

Ids = Annotated[list[Identifier], Field(max_length=1_000)]


class DiscoverBody(Input):
    query: str | None = Field(
        None,
        max_length=200_000,
        description="the message; beyond 4,000 characters its two ends are searched",
        examples=["search github for rust http servers"],
    )
    messages: list[dict[str, Any]] | None = Field(
        None, max_length=500, description="recent turns, OpenAI or Anthropic shaped, instead of `query`"
    )
    limit: int | None = Field(
        None, ge=1, le=50, description="the search's top k; null: the project's, the user's, or 8"
    )
    similarity_threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="the least cosine; a tool whose words match the message strongly passes too (not with `semantic`), "
        "and with `bm25` it does not count; null: the model's calibrated default",
    )
    include_core_tools: bool = Field(True, description="native tools come with every answer")
    server_ids: Ids | None = Field(None, description="only these servers; unknown ids are ignored, `[]` means none")
    tags: Tags | None = Field(None, description="only tools with at least one of them; each match adds 0.2")
    project_id: Identifier | None = Field(None, description="only what this project sees")
    strategy: Strategy | None = Field(None, description="null: the project's, the user's, or `hybrid`")
    max_tokens: int | None = Field(None, ge=1, description="bounds the size of the definitions")
    keep: Annotated[list[Identifier], Field(max_length=200)] | None = Field(
        None, description="tool keys that the model was given before: they come first, in order"
    )
    format: Format = Field("mcp", description="the shape of `definitions`")
    explain: bool = Field(False, description="adds to each tool why it ranks where it does")

    @model_validator(mode="after")
    def _something_to_search_for(self) -> "DiscoverBody":
        if (self.query is None) == (self.messages is None):
            raise ValueError("give either `query` or `messages`")
        if not self._read.said:
            where = "there is" if self.messages is None else "the user's turns in `messages` have"
            raise ValueError(f"{where} no text to search for")
        return self

    @cached_property
    def _read(self) -> Query:
        return read_query(self.query, self.messages)

    def wishes(self) -> Wishes:
        return Wishes(
            query=self._read,
            project_id=self.project_id,
            server_ids=self.server_ids,
            tags=self.tags,
            strategy=self.strategy,
            limit=self.limit,
            threshold=self.similarity_threshold,
            include_core_tools=self.include_core_tools,
            max_tokens=self.max_tokens,
            keep=self.keep,
            explain=self.explain,
        )


class WhyBody(DiscoverBody):
    tool: str = Field(
        min_length=1, max_length=300, description="its key, its name, or `SERVER.TOOL`", examples=["search_issues"]
    )

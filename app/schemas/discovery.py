"""Request and response models of `/discover` and `/discover/why`."""

from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, model_validator

from app.catalog.availability import Status
from app.discovery.cut import CalibrationSource
from app.discovery.formats import Format
from app.discovery.models import NoMatchReason
from app.discovery.request import ConversationTurn, DiscoveryRequest
from app.discovery.selection import OmissionReason, Source
from app.indexing.sanitize import Flag
from app.schemas.base import CamelCaseInput, FieldError, Identifier, Output, Tags, Visible, make_synonyms
from app.schemas.kept_tools import ConversationIn, Keep, to_given_tools
from app.search.confidence import Confidence
from app.search.query import Query, find_ages_of_calls, parse_query
from app.search.scoring import AnsweredStrategy, Strategy
from app.text.invisible import remove_hidden

Ids = Annotated[list[Identifier], Field(max_length=1_000)]


class DiscoverBody(CamelCaseInput):
    synonyms = make_synonyms(
        query="message text prompt question input q",
        messages="history conversation turns",
        limit="top_k k n max_results max_tools count",
        similarity_threshold="threshold min_score min_similarity score_threshold",
        include_core_tools="core_tools",
        server_ids="servers",
        categories="category category_ids",
        project_id="project",
        max_tokens="token_budget",
        strategy="mode",
    )

    query: str | None = Field(
        None,
        max_length=200_000,
        description="the message; if it is longer than 4,000 characters, its beginning and its end are searched",
        examples=["search github for rust http servers"],
    )
    messages: list[dict[str, Any]] | None = Field(
        None, max_length=500, description="recent turns in OpenAI's or Anthropic's format, instead of `query`"
    )
    limit: int | None = Field(
        None,
        ge=1,
        le=50,
        description="the maximum number of tools to find; null: the project's, the user's, or 8. The answer has fewer "
        "if the message needs fewer: see `fill`",
    )
    fill: bool = Field(
        False,
        description="find as many tools as `limit` allows, and not only those that the message needs; the model's "
        "minimum similarity still applies",
    )
    similarity_threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="the minimum cosine similarity; a tool that matches the message's words strongly passes too (not "
        "with `semantic`); ignored with `bm25`; a value also fills the answer, as `fill` does; null: the model's "
        "calibration",
    )
    include_core_tools: bool = Field(
        True, description="add the core tools to the answer: all of them, beside the tools that are found"
    )
    server_ids: Ids | None = Field(
        None, description="search only these servers; unknown ids are ignored, `[]` means none"
    )
    tags: Tags | None = Field(
        None, description="search only tools with at least one of these tags; each match adds 0.2"
    )
    categories: Annotated[list[Visible], Field(max_length=100)] | None = Field(
        None,
        description="search only tools of these categories, by id or name (`GET /categories`); unknown ids are "
        "ignored, an unknown name is an error, `[]` means none",
    )
    project_id: Identifier | None = Field(None, description="search only the tools of this project")
    strategy: Strategy | None = Field(None, description="null: the project's, the user's, or `hybrid`")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="the maximum size of the definitions together; core tools are included even if they exceed it, and "
        "kept and found tools share what they leave",
    )
    keep: Keep | None = Field(
        None,
        description="the tools that the model was given before, `[]` for none: those that are still visible and pass "
        "the filters come first, in the same order, and the answer says what has changed (`added`, `removed`, "
        "`changes`). Each is a tool key, or an object with `tool_key`, `alias` and `definition_hash` from the last "
        'answer, which makes the difference exact. Or `{"conversation_id": "…"}`, and Toolscout remembers them for '
        "TOOLSCOUT_CONVERSATION_TTL_HOURS",
    )
    turn: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="with a `conversation_id`: the number of the user's message in the conversation, from 1. A "
        "repeated turn starts from the same tools and replaces the answer before, so that a request whose answer was "
        "lost can be sent again; a smaller one continues from there, as after an edited message; null: each request is "
        "the next turn",
    )
    format: Format = Field("mcp", description="the format of `definitions`")
    explain: bool = Field(False, description="explain for each tool why it ranks where it does")
    connect: bool = Field(
        False, description="add `connect_url` to each tool whose server wants the user to sign in (`server_status`)"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_user(cls, body: Any) -> Any:
        for name in ("user_id", "userId"):
            if isinstance(body, dict) and name in body:
                raise FieldError("the user is named in the header `X-User-Id`, not in the body", name)
        return body

    @model_validator(mode="after")
    def _check_text(self) -> "DiscoverBody":
        if (self.query is None) == (self.messages is None):
            raise FieldError("give either `query` or `messages`", "query")
        if not remove_hidden(self._query.user_text).strip():
            field = "query" if self.messages is None else "messages"
            raise FieldError("there is no text of the user to search for", field)
        return self

    @cached_property
    def _query(self) -> Query:
        return parse_query(self.query, self.messages)

    def to_request(self) -> DiscoveryRequest:
        return DiscoveryRequest(
            query=self._query,
            project_id=self.project_id,
            server_ids=self.server_ids,
            tags=self.tags,
            categories=self.categories,
            strategy=self.strategy,
            limit=self.limit,
            fill=self.fill,
            threshold=self.similarity_threshold,
            include_core_tools=self.include_core_tools,
            max_tokens=self.max_tokens,
            keep=to_given_tools(self.keep) if isinstance(self.keep, list) else None,
            conversation=self._get_conversation(),
            api_format=self.format,
            explain=self.explain,
            connect=self.connect,
        )

    def _get_conversation(self) -> ConversationTurn | None:
        if not isinstance(self.keep, ConversationIn):
            return None
        return ConversationTurn(self.keep.conversation_id, self.turn, find_ages_of_calls(self.messages or ()))


class WhyBody(DiscoverBody):
    synonyms = {**DiscoverBody.synonyms, **make_synonyms(tool="tool_key tool_id tool_name name key")}

    tool: str = Field(
        min_length=1, max_length=300, description="its key, its name, or `SERVER.TOOL`", examples=["search_issues"]
    )


class SelectedOut(Output):
    tool: dict[str, Any] = Field(description="the tool as MCP defines it")
    tool_key: str = Field(description="its `id` in `/tools`")
    alias: str = Field(description="the tool's name in `definitions`")
    definition_hash: str = Field(description="a hash of its definition in `definitions`")
    server_id: str | None
    server_name: str | None
    similarity: float | None = Field(description="the plain cosine")
    score: float | None = Field(description="what the tools are ranked by, 0 to 1")
    source: Source = Field(description="`kept` and `core` tools were not searched for; `fallback`: the search failed")
    matched_tags: list[str]
    tokens: int = Field(description="the size of its definition")
    flags: list[Flag] = Field(description="what a person should review in its definition")
    server_status: Status | None = Field(
        description="the outcome of the last connection to its server; `push`: your backend runs the tool; "
        "`needs_authorization`: the user must sign in to the server before the tool can run"
    )
    connect_url: str | None = Field(
        None,
        description="with `connect`: a page to show to the user, for an hour, which leads to the sign-in of the tool's "
        "server; null if the server needs none, or the service does not know its own address (TOOLSCOUT_PUBLIC_URL)",
    )
    explanation: dict[str, Any] | None = Field(
        None,
        description="with `explain`: cosine, BM25, the rank by each, tag boost, action boost, prior and matched words; "
        "or `cloud`: what the cloud says",
    )


class TokensOut(Output):
    selected: int = Field(description="the size of the definitions in the answer")
    all: int = Field(description="the size of all searched tools and core tools")
    saved_percent: float


class OmittedOut(Output):
    count: int = Field(description="how many kept and found tools were left out")
    reason: OmissionReason = Field(
        description="`max_tokens`: their definitions are too large for the request's `max_tokens`; `max_tools`: "
        "there is no room for them within TOOLSCOUT_MAX_TOOLS"
    )


class DiscoverOut(Output):
    discovery_id: str
    tools: list[SelectedOut]
    definitions: list[dict[str, Any]] = Field(description="ready for the model, in the order of `tools`")
    total_searched: int = Field(
        description="the number of tools that are visible to the caller, within `tags`, `server_ids`, `categories` and "
        "the project"
    )
    search_duration_ms: float = Field(description="without the embedding of the message; with the time of a cloud")
    embedding_generated: bool = Field(description="false if the query's embedding was cached or is not needed")
    strategy: AnsweredStrategy | None = Field(
        description="what answered: `cloud` if the project's `optimization` is `cloud` and the cloud answered; null if "
        "the project's `optimization` is null"
    )
    degraded: bool = Field(description="the search was by words alone although another was requested, or failed")
    degraded_reason: str | None = Field(description="`embedder_…`, `cloud_…`, `search_failed` or `disabled`")
    confidence: Confidence = Field(
        description="how likely it is that one of the tools fits: `high`; `low`: the best few, at most 3; `none`: no "
        "tool was found, because the message seems to need none"
    )
    no_match: bool = Field(description="`confidence` is `none`: the answer has core and kept tools alone")
    no_match_reason: NoMatchReason | None = Field(
        description="why no tool was found; null if one was. `no_match`: none of the tools fits; `no_tools`: this user "
        "has none, and a misspelt `X-User-Id` looks the same; `filtered_out`: `server_ids`, `tags`, "
        "`categories`, the project, rules or switched-off servers leave none; `discovery_off`: the project's "
        "`optimization` is null"
    )
    omitted: OmittedOut | None = Field(description="what was left out for want of room; null if there was room for all")
    tokens: TokensOut
    toolset_hash: str = Field(description="a hash of the definitions: the same tools have the same hash")
    toolset_hash_before: str | None = Field(
        description="with `keep`: the `toolset_hash` of the tools that the model has; null if one of them is not known "
        "any more"
    )
    added: list[str] | None = Field(
        description="with `keep`: the keys of tools that the model does not have, or has with another definition or "
        "alias; null without `keep`, as are the other two"
    )
    removed: list[str] | None = Field(
        description="with `keep`: the keys of tools that the model must not use any more, because they are hidden, "
        "held, gone, changed or without room; a changed one is in `added`, too"
    )
    changes: dict[str, Any] | None = Field(
        description="with `keep`: what to append to the conversation instead of sending another `tools`. `anthropic`: "
        "a system message with `tool_removal` and `tool_addition` blocks, and the `betas` for the header "
        "`anthropic-beta`; `openai_responses`: an item `additional_tools`, which knows no removal; null for other "
        "formats, and if nothing has changed"
    )


class AnswerConfidenceOut(Output):
    chance: float | None = Field(description="the chance that any tool fits the message; null if it is not known")
    shift: float = Field(description="by how many logits the user's outcomes raise the chance, -1 to 1")
    outcomes: int = Field(description="how many answers with outcomes the shift is based on")
    source: CalibrationSource = Field(description="whose calibration it is: the `model`'s, or the `user`'s own")


class ReasonOut(Output):
    tool_key: str | None
    name: str | None
    server_name: str | None
    included: bool
    reason: str = Field(
        description="`included`, `not_indexed`, `server_disabled`, `not_permitted`, `switched_off`, "
        "`disabled_by_rule`, `held`, `server_failing`, `outside_project`, `disabled_by_project_rule`, "
        "`not_read_only`, `outside_filter`, `discovery_off`, `no_match`, `below_threshold`, `outranked`, `unlikely`, "
        "`not_sent` or `not_chosen` (through the cloud), or `no_room`"
    )
    message: str
    rule: int | None = Field(description="the number of the deciding rule, from 1")
    rank: int | None
    explanation: dict[str, Any] | None = None
    confidence: AnswerConfidenceOut | None = Field(
        None, description="where the chance that any tool fits the message comes from"
    )


class WhyOut(Output):
    items: list[ReasonOut] = Field(description="one for each tool with this key or name")

"""REST: `POST /discover`, the main job."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Response
from pydantic import Field, model_validator

from app.api.intake import StrictRoute
from app.api.shapes import Identifier, Input, Output, Tags
from app.catalog.aliases import aliases
from app.catalog.servers import Status
from app.dependencies import Discovering, Wired
from app.discovery import wire
from app.discovery.asking import Wishes, resolved
from app.discovery.discover import Discovery, discover
from app.discovery.selection import Selected, Source
from app.discovery.why import Reason, explain
from app.discovery.wire import Format
from app.indexing.cleaning import Flag
from app.search.hybrid import Evidence
from app.search.query import read_query
from app.search.ranking import Strategy

router = APIRouter(tags=["discovery"], route_class=StrictRoute)

Ids = Annotated[list[Identifier], Field(max_length=1_000)]


class DiscoverBody(Input):
    query: str | None = Field(None, max_length=200_000, examples=["search github for rust http servers"])
    messages: list[dict[str, Any]] | None = Field(
        None, max_length=500, description="recent turns, OpenAI or Anthropic shaped, instead of `query`"
    )
    limit: int | None = Field(None, ge=1, le=50, description="the search's top k")
    similarity_threshold: float | None = Field(
        None, ge=0, le=1, description="decides alone on the cosine; null: the model's calibrated default"
    )
    include_core_tools: bool = True
    server_ids: Ids | None = Field(None, description="only these servers; unknown ids are ignored, `[]` means none")
    tags: Tags | None = Field(None, description="only tools with at least one of them; each match adds 0.2")
    project_id: Identifier | None = None
    strategy: Strategy | None = None
    max_tokens: int | None = Field(None, ge=1, description="bounds the size of the definitions")
    keep: Annotated[list[Identifier], Field(max_length=200)] | None = Field(
        None, description="tool keys that the model was given before: they come first, in order"
    )
    format: Format = "mcp"
    explain: bool = False

    @model_validator(mode="after")
    def _something_to_search_for(self) -> "DiscoverBody":
        if (self.query is None) == (self.messages is None):
            raise ValueError("give either `query` or `messages`")
        if not read_query(self.query, self.messages).said:
            raise ValueError("there is no text to search for")
        return self


class ToolOut(Output):
    tool: dict[str, Any]
    tool_key: str
    alias: str = Field(description="the tool's name in `definitions`")
    server_id: str | None
    server_name: str | None
    similarity: float | None
    score: float | None
    source: Source
    matched_tags: list[str]
    tokens: int
    flags: list[Flag] = Field(description="what a person should know of its definition")
    server_status: Status | None = Field(description="of the last contact with its server")
    explanation: dict[str, Any] | None = Field(
        None,
        description="with `explain`: cosine, BM25, the rank by each, tag boost, prior and matched words",
    )


class TokensOut(Output):
    selected: int
    all: int
    saved_percent: float


class DiscoverOut(Output):
    discovery_id: str
    tools: list[ToolOut]
    definitions: list[dict[str, Any]] = Field(description="ready for the model, in the order of `tools`")
    total_searched: int
    search_duration_ms: float
    embedding_generated: bool
    strategy: Strategy | None = Field(description="null where the project's `optimization` is")
    degraded: bool
    degraded_reason: str | None
    no_match: bool
    tokens: TokensOut
    toolset_hash: str


class WhyBody(DiscoverBody):
    tool: str = Field(
        min_length=1, max_length=300, description="its key, its name, or `SERVER.TOOL`", examples=["search_issues"]
    )


class ReasonOut(Output):
    tool_key: str | None
    name: str | None
    server_name: str | None
    included: bool
    reason: str = Field(
        description="`included`, `not_indexed`, `server_disabled`, `not_permitted`, `switched_off`, "
        "`disabled_by_rule`, `held`, `server_failing`, `outside_project`, `disabled_by_project_rule`, "
        "`not_read_only`, `outside_filter`, `discovery_off`, `no_match`, `below_threshold`, `outranked` or `no_room`"
    )
    message: str
    rule: int | None = Field(description="counted from 1")
    rank: int | None
    explanation: dict[str, Any] | None = None


class WhyOut(Output):
    items: list[ReasonOut] = Field(description="one for each tool of that key or name")


@router.post("/discover", response_model=DiscoverOut)
async def post_discover(body: DiscoverBody, caller: Discovering, container: Wired) -> Response:
    """The few tools that this message needs, ready to be given to the model."""
    ask = await resolved(container.discoverer, caller, _wishes(body))
    discovery = await discover(container.discoverer, caller.acting_for(), ask)
    return Response(rendered(discovery, body.format), media_type="application/json")


@router.post("/discover/why")
async def post_why(body: WhyBody, caller: Discovering, container: Wired) -> WhyOut:
    """Why a tool is, or is not, in the answer to this message."""
    ask = await resolved(container.discoverer, caller, _wishes(body))
    confined = caller.project_id is not None
    reasons = await explain(container.discoverer, caller.acting_for(), ask, body.tool, confined=confined)
    return WhyOut(items=[_reason(reason) for reason in reasons])


def _wishes(body: DiscoverBody) -> Wishes:
    return Wishes(
        query=read_query(body.query, body.messages),
        project_id=body.project_id,
        server_ids=body.server_ids,
        tags=body.tags,
        strategy=body.strategy,
        limit=body.limit,
        threshold=body.similarity_threshold,
        include_core_tools=body.include_core_tools,
        max_tokens=body.max_tokens,
        keep=body.keep,
        explain=body.explain,
        logged=True,
    )


def _reason(reason: Reason) -> ReasonOut:
    facts, evidence = reason.facts, reason.evidence
    return ReasonOut(
        tool_key=facts and facts.tool_id,
        name=facts and facts.name,
        server_name=facts and facts.server_name,
        included=reason.code == "included",
        reason=reason.code,
        message=reason.message,
        rule=reason.rule,
        rank=reason.rank,
        explanation=None if evidence is None else _evidence(evidence),
    )


def rendered(discovery: Discovery, shape: Format) -> bytes:
    offers = [tool.offer for tool in discovery.tools]
    names = aliases(offers)
    definitions = wire.definitions(offers, names, shape)
    return orjson.dumps(
        {
            "discovery_id": discovery.id,
            "tools": [_tool(tool, name) for tool, name in zip(discovery.tools, names, strict=True)],
            "definitions": [orjson.Fragment(definition) for definition in definitions],
            "total_searched": discovery.searched,
            "search_duration_ms": discovery.duration_ms,
            "embedding_generated": discovery.embedding_generated,
            "strategy": discovery.strategy,
            "degraded": discovery.degraded_reason is not None,
            "degraded_reason": discovery.degraded_reason,
            "no_match": discovery.no_match,
            "tokens": _tokens(discovery.tokens_selected, discovery.tokens_all),
            "toolset_hash": wire.toolset_hash(definitions),
        }
    )


def _tool(selected: Selected, alias: str) -> dict[str, Any]:
    offer = selected.offer
    shown: dict[str, Any] = {
        "tool": wire.as_mcp(offer, offer.name),
        "tool_key": offer.tool_id,
        "alias": alias,
        "server_id": offer.server_id,
        "server_name": offer.server_name,
        "similarity": _rounded(selected.similarity),
        "score": _rounded(selected.score),
        "source": selected.source,
        "matched_tags": list(selected.matched_tags),
        "tokens": offer.tokens,
        "flags": list(offer.flags),
        "server_status": offer.server_status,
    }
    if selected.evidence is not None:
        shown["explanation"] = _evidence(selected.evidence)
    return shown


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return vars(evidence) | {
        "cosine": _rounded(evidence.cosine),
        "bm25": _rounded(evidence.bm25),
        "prior": _rounded(evidence.prior),
    }


def _tokens(selected: int, everything: int) -> dict[str, Any]:
    saved = 100 * (1 - selected / everything) if everything else 0.0
    return {"selected": selected, "all": everything, "saved_percent": round(max(saved, 0.0), 1)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

"""REST: `POST /discover`, the main job."""

from typing import Any

import orjson
from fastapi import APIRouter, Response
from pydantic import Field

from app.api.strict_json import StrictRoute
from app.catalog.servers import Status
from app.catalog.tool_names import make_aliases
from app.dependencies import ContainerDep, DiscoverCaller
from app.discovery import formats
from app.discovery.discover import Discovery, discover
from app.discovery.explain import Reason, explain
from app.discovery.formats import Format
from app.discovery.request import resolved
from app.discovery.selection import SelectedTool, Source
from app.indexing.sanitize import Flag
from app.schemas.base import Output
from app.schemas.discovery import DiscoverBody, WhyBody
from app.search.postgres import Evidence
from app.search.scoring import Strategy

router = APIRouter(tags=["discovery"], route_class=StrictRoute)


class SelectedOut(Output):
    tool: dict[str, Any] = Field(description="as MCP has it")
    tool_key: str = Field(description="its `id` in `/tools`")
    alias: str = Field(description="the tool's name in `definitions`")
    server_id: str | None
    server_name: str | None
    similarity: float | None = Field(description="the plain cosine")
    score: float | None = Field(description="what ranks, 0 to 1")
    source: Source = Field(description="`kept` and `core` were not searched for; `fallback`: the search failed")
    matched_tags: list[str]
    tokens: int = Field(description="of its definition")
    flags: list[Flag] = Field(description="what a person should know of its definition")
    server_status: Status | None = Field(description="of the last contact with its server")
    explanation: dict[str, Any] | None = Field(
        None,
        description="with `explain`: cosine, BM25, the rank by each, tag boost, action boost, prior and matched words",
    )


class TokensOut(Output):
    selected: int = Field(description="of the definitions in the answer")
    all: int = Field(description="of all that were searched, and core tools")
    saved_percent: float


class DiscoverOut(Output):
    discovery_id: str
    tools: list[SelectedOut]
    definitions: list[dict[str, Any]] = Field(description="ready for the model, in the order of `tools`")
    total_searched: int = Field(
        description="tools that this caller may see, within `tags`, `server_ids` and the project"
    )
    search_duration_ms: float
    embedding_generated: bool = Field(description="false where the question's vector was remembered, or not needed")
    strategy: Strategy | None = Field(description="null where the project's `optimization` is")
    degraded: bool = Field(description="not searched as asked: by words alone, or not at all")
    degraded_reason: str | None = Field(description="`embedder_…`, `search_failed` or `disabled`")
    no_match: bool = Field(description="nothing fits: core tools alone")
    tokens: TokensOut
    toolset_hash: str = Field(description="of the definitions: the same tools, the same hash")


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
async def post_discover(body: DiscoverBody, caller: DiscoverCaller, container: ContainerDep) -> Response:
    """The few tools that this message needs, ready to be given to the model."""
    ask = await resolved(container.discoverer, caller, body.wishes())
    discovery = await discover(container.discoverer, caller.require_user(), ask)
    return Response(render_discovery(discovery, body.format), media_type="application/json")


@router.post("/discover/why")
async def post_why(body: WhyBody, caller: DiscoverCaller, container: ContainerDep) -> WhyOut:
    """Why a tool is, or is not, in the answer to this message."""
    ask = await resolved(container.discoverer, caller, body.wishes())
    confined = caller.project_id is not None
    reasons = await explain(container.discoverer, caller.require_user(), ask, body.tool, confined=confined)
    return WhyOut(items=[_reason(reason) for reason in reasons])


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


def render_discovery(discovery: Discovery, shape: Format) -> bytes:
    offers = [tool.offer for tool in discovery.tools]
    names = make_aliases(offers)
    definitions = formats.render_definitions(offers, names, shape)
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
            "toolset_hash": formats.toolset_hash(definitions),
        }
    )


def _tool(selected: SelectedTool, alias: str) -> dict[str, Any]:
    offer = selected.offer
    shown: dict[str, Any] = {
        "tool": formats.as_mcp(offer, offer.name),
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

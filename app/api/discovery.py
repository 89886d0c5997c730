"""REST: `POST /discover`, the main job."""

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Response
from pydantic import Field, model_validator

from app.accounts.users import User
from app.api.intake import StrictRoute
from app.api.shapes import Identifier, Input, Output, Tags
from app.catalog.aliases import aliases
from app.catalog.visibility import Scope
from app.dependencies import Discovering, Wired
from app.discovery import wire
from app.discovery.discover import DEFAULT_LIMIT, Ask, Discovery, discover
from app.discovery.selection import Selected, Source
from app.discovery.wire import Format
from app.errors import NotFound
from app.search.query import search_text
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
        if not search_text(self.query, self.messages):
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
    explanation: dict[str, Any] | None = None


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
    strategy: Strategy
    degraded: bool
    degraded_reason: str | None
    no_match: bool
    tokens: TokensOut
    toolset_hash: str


@router.post("/discover", response_model=DiscoverOut)
async def post_discover(body: DiscoverBody, caller: Discovering, container: Wired) -> Response:
    """The few tools that this message needs, ready to be given to the model."""
    if body.project_id is not None:
        raise NotFound("there is no such project")
    user = caller.acting_for()
    discovery = await discover(container.discoverer, user, _ask(body, user, container.model.id))
    return Response(rendered(discovery, body.format, explain=body.explain), media_type="application/json")


def _ask(body: DiscoverBody, user: User, model: str) -> Ask:
    return Ask(
        text=search_text(body.query, body.messages),
        scope=Scope(user.id, model, body.server_ids, body.tags),
        strategy=body.strategy or user.settings.get("strategy") or "hybrid",
        limit=body.limit or user.settings.get("limit") or DEFAULT_LIMIT,
        threshold=_threshold(body, user.settings),
        include_core_tools=body.include_core_tools,
        max_tokens=body.max_tokens,
        keep=body.keep or (),
    )


def _threshold(body: DiscoverBody, settings: Mapping[str, Any]) -> float | None:
    """Zero is a threshold like any other, so `or` would not do."""
    return settings.get("similarity_threshold") if body.similarity_threshold is None else body.similarity_threshold


def rendered(discovery: Discovery, shape: Format, *, explain: bool) -> bytes:
    offers = [tool.offer for tool in discovery.tools]
    names = aliases(offers)
    definitions = wire.definitions(offers, names, shape)
    return orjson.dumps(
        {
            "discovery_id": discovery.id,
            "tools": [_tool(tool, name, explain=explain) for tool, name in zip(discovery.tools, names, strict=True)],
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


def _tool(selected: Selected, alias: str, *, explain: bool) -> dict[str, Any]:
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
    }
    if explain and selected.evidence is not None:
        shown["explanation"] = selected.evidence
    return shown


def _tokens(selected: int, everything: int) -> dict[str, Any]:
    saved = 100 * (1 - selected / everything) if everything else 0.0
    return {"selected": selected, "all": everything, "saved_percent": round(max(saved, 0.0), 1)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

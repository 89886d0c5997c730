"""REST: `POST /discover`, which finds the tools for a message, and `POST /discover/why`."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Response
from pydantic import ValidationError
from starlette.types import Scope

from app.api.strict_route import StrictRoute
from app.auth.permissions import Caller, Permission
from app.container import Container
from app.dependencies import ContainerDep, DiscoverCaller
from app.discovery.changes import RenderedTool, ToolsetChanges, hash_toolset, render_changes, render_toolset
from app.discovery.discover import discover
from app.discovery.explain import AnswerConfidence, Reason, explain
from app.discovery.formats import Format, to_mcp
from app.discovery.models import Discovery
from app.discovery.selection import SelectedTool
from app.errors import InvalidInput
from app.schemas.discovery import AnswerConfidenceOut, DiscoverBody, DiscoverOut, ReasonOut, WhyBody, WhyOut
from app.search.postgres import Evidence
from app.text.strict_json import parse_json

router = APIRouter(tags=["discovery"], route_class=StrictRoute)

_JSON = (b"application/json", b"application/json; charset=utf-8")


@router.post("/discover", name="discover", response_model=DiscoverOut)
async def post_discover(body: DiscoverBody, caller: DiscoverCaller, container: ContainerDep) -> Response:
    """Return the few tools that this message needs, ready for the model.

    Fields may also be named in camelCase: `similarityThreshold` is `similarity_threshold`. The user is named in the
    header `X-User-Id` alone.
    """
    discovery = await discover(container.discoverer, caller, body.to_request())
    return Response(render_discovery(discovery, body.format), media_type="application/json")


async def answer_discover(scope: Scope, raw_body: bytes, caller: Caller, container: Container) -> Response | None:
    """Answer `POST /discover` without the framework, which took longer than everything else in this file.

    Return None for whatever is unusual, such as query parameters, another content type or an invalid body:
    `post_discover` and the framework around it find the words for it.
    """
    if scope["query_string"] or not _has_plain_json(scope):
        return None
    try:
        body = DiscoverBody.model_validate(parse_json(raw_body))
    except (InvalidInput, ValidationError):
        return None
    caller.require_permission(Permission.DISCOVER)
    return await post_discover(body, caller, container)


def _has_plain_json(scope: Scope) -> bool:
    return any(name == b"content-type" and value.lower() in _JSON for name, value in scope["headers"])


@router.post("/discover/why")
async def explain_discovery(body: WhyBody, caller: DiscoverCaller, container: ContainerDep) -> WhyOut:
    """Explain why a tool is, or is not, in the answer to this message."""
    reasons = await explain(container.discoverer, caller, body.to_request(), body.tool)
    return WhyOut(items=[_render_reason(reason) for reason in reasons])


def _render_reason(reason: Reason) -> ReasonOut:
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
        explanation=None if evidence is None else _render_evidence(evidence),
        confidence=None if reason.confidence is None else _render_confidence(reason.confidence),
    )


def _render_confidence(confidence: AnswerConfidence) -> AnswerConfidenceOut:
    return AnswerConfidenceOut(
        chance=_round(confidence.chance),
        shift=round(confidence.shift, 2),
        outcomes=confidence.outcomes,
        source=confidence.source,
    )


def render_discovery(discovery: Discovery, api_format: Format) -> bytes:
    """Write the JSON directly: stored schemas are passed on as text, and building models would take longer."""
    rendered = discovery.rendered
    if rendered is None:
        rendered = render_toolset([tool.definition for tool in discovery.tools], api_format)
    return orjson.dumps(
        {
            "discovery_id": discovery.id,
            "tools": [
                _render_tool(tool, each, discovery.connect_urls)
                for tool, each in zip(discovery.tools, rendered, strict=True)
            ],
            "definitions": [orjson.Fragment(each.definition) for each in rendered],
            "total_searched": discovery.searched,
            "search_duration_ms": discovery.duration_ms,
            "embedding_generated": discovery.embedding_generated,
            "strategy": discovery.strategy,
            "degraded": discovery.degraded_reason is not None,
            "degraded_reason": discovery.degraded_reason,
            "confidence": discovery.confidence,
            "no_match": discovery.no_match,
            "no_match_reason": discovery.no_match_reason,
            "omitted": None if discovery.omitted is None else vars(discovery.omitted),
            "tokens": {
                "selected": discovery.tokens_selected,
                "all": discovery.tokens_all,
                "saved_percent": round(discovery.saved_percent, 1),
            },
            "toolset_hash": hash_toolset([each.definition_hash for each in rendered]),
            **_render_changes(discovery.changes, api_format),
        }
    )


def _render_changes(changes: ToolsetChanges | None, api_format: Format) -> dict[str, Any]:
    if changes is None:
        return dict.fromkeys(("toolset_hash_before", "added", "removed", "changes"))
    return {
        "toolset_hash_before": changes.hash_before,
        "added": [tool.tool_key for tool in changes.added],
        "removed": [tool.tool_key for tool in changes.removed],
        "changes": render_changes(changes, api_format),
    }


def _render_tool(selected: SelectedTool, named: RenderedTool, connect_urls: Mapping[str, str] | None) -> dict[str, Any]:
    tool = selected.definition
    rendered: dict[str, Any] = {
        "tool": to_mcp(tool, tool.name),
        "tool_key": tool.tool_id,
        "alias": named.alias,
        "definition_hash": named.definition_hash,
        "server_id": tool.server_id,
        "server_name": tool.server_name,
        "similarity": _round(selected.similarity),
        "score": _round(selected.score),
        "source": selected.source,
        "matched_tags": list(selected.matched_tags),
        "tokens": tool.tokens,
        "flags": list(tool.flags),
        "server_status": tool.server_status,
    }
    if connect_urls is not None:
        rendered["connect_url"] = connect_urls.get(tool.server_id or "")
    if selected.evidence is not None:
        rendered["explanation"] = _render_evidence(selected.evidence)
    elif selected.explanation is not None:
        rendered["explanation"] = {"cloud": selected.explanation}
    return rendered


def _render_evidence(evidence: Evidence) -> dict[str, Any]:
    return vars(evidence) | {
        "cosine": _round(evidence.cosine),
        "bm25": _round(evidence.bm25),
        "prior": _round(evidence.prior),
        "example_boost": _round(evidence.example_boost),
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

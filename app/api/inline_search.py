"""REST: `POST /catalog/search`, which searches the tools that are sent with the request."""

from typing import Any

from fastapi import APIRouter, Request

from app.api.strict_route import StrictRoute
from app.dependencies import ContainerDep, DiscoverCaller, run_while_connected
from app.discovery.inline.documents import InlineTool
from app.discovery.inline.search import FoundTool, InlineSearchResult, search_inline
from app.schemas.inline_search import FoundToolOut, RefusedOut, SearchBody, SearchOut
from app.search.query import parse_query_with_context
from app.text.strict_json import load_json

router = APIRouter(tags=["discovery"], route_class=StrictRoute)


@router.post("/catalog/search", response_model_exclude_unset=True)
async def search_catalog(
    body: SearchBody, request: Request, caller: DiscoverCaller, container: ContainerDep
) -> SearchOut:
    """Find the tools that these queries need among the tools in the request.

    The tools are not stored; their vectors are cached under a hash of the text.
    """
    queries = [parse_query_with_context(query, body.context or "") for query in body.query]
    tools = [InlineTool(**vars(tool)) for tool in body.tools]
    search = search_inline(container.inline_searcher, caller, queries, tools, body.max_results)
    result = await run_while_connected(request, search)
    return _render_result(result)


def _render_result(result: InlineSearchResult) -> SearchOut:
    return SearchOut(
        results=[_render_tool(found) for found in result.results],
        total_searched=result.searched,
        degraded=result.degraded_reason is not None,
        degraded_reason=result.degraded_reason,
        pending=result.pending,
        no_match=not result.results,
        refused=[RefusedOut(tool_key=key, reason=reason) for key, reason in result.refused.items()],
    )


def _render_tool(found: FoundTool) -> FoundToolOut:
    texts = {"output_schema": found.tool.output_schema, "annotations": found.tool.annotations}
    passed_back: dict[str, Any] = {name: load_json(text) for name, text in texts.items() if text is not None}
    return FoundToolOut(
        tool_key=found.tool_key,
        tool_name=found.tool.name,
        server_name=found.tool.server_name,
        description=found.tool.description,
        relevance=round(found.relevance, 4),
        explanation=found.explanation,
        **passed_back,
    )

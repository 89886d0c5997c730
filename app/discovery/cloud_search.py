"""Search a project's visible tools through the cloud.

No connection is held while waiting for it. What is visible is read before and after: a tool that was hidden meanwhile
is not in the answer, because definitions are read after the answer, through the same filter.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.catalog.definitions import SearchableTool, list_searchable
from app.cloud.client import CloudClient
from app.cloud.wire import MAX_TOOLS, MAX_TOOLS_BYTES, CloudMatch, encode_request
from app.errors import CloudFailed
from app.search.confidence import Confidence
from app.search.query import Query
from app.search.searcher import QueryEmbedding, Searcher, SearchOptions

HIGH_RELEVANCE = 0.3
"""The relevance of the best tool from which on the confidence is high."""


@dataclass(frozen=True)
class CloudAnswer:
    matches: Sequence[CloudMatch]
    """Best first."""
    sent: frozenset[str]
    """The ids of the tools that the cloud has searched."""
    tags: Mapping[str, Sequence[str]]
    """Of the tools that were sent, by id."""

    def match_tags(self, tool_id: str, requested: Sequence[str]) -> Sequence[str]:
        """Return those of the requested tags that a tool has."""
        return sorted(set(self.tags.get(tool_id, ())).intersection(requested))


def judge_matches(matches: Sequence[CloudMatch]) -> Confidence:
    """Return the confidence in matches, which are ordered best first."""
    if not matches:
        return "none"
    return "high" if matches[0].relevance >= HIGH_RELEVANCE else "low"


@dataclass(frozen=True)
class CloudSearch:
    searcher: Searcher
    client: CloudClient | None
    """None: TOOLSCOUT_CLOUD_URL is not set."""

    async def find(self, query: Query, options: SearchOptions) -> CloudAnswer:
        """Return what the cloud finds among the visible tools, or raise `CloudFailed`."""
        if self.client is None:
            raise CloudFailed("not_configured", "set TOOLSCOUT_CLOUD_URL")
        self.client.check_breaker()
        async with self.searcher.scheduler.slot(options.scope.user_id):
            tools = await self._read_tools(query, options)
        request = await asyncio.to_thread(encode_request, query.search_text, query.context, tools, options.limit)
        matches = await self.client.search(request) if request.tool_keys else []
        return CloudAnswer(matches, request.tool_keys, {tool.tool_id: tool.tags for tool in tools})

    async def _read_tools(self, query: Query, options: SearchOptions) -> Sequence[SearchableTool]:
        """Return the visible tools; if they are more than the cloud takes, those with the message's words first."""
        async with self.searcher.database.snapshot(options.scope.user_id) as session:
            tools = await list_searchable(session, options.scope, MAX_TOOLS + 1)
            if len(tools) <= MAX_TOOLS and sum(map(_estimate_bytes, tools)) <= MAX_TOOLS_BYTES:
                return tools
            by_words = QueryEmbedding("bm25")
            result = await self.searcher.find(session, query, options, by_words, limit=MAX_TOOLS)
            first = [hit.tool_id for hit in result.ranking.hits]
            return await list_searchable(session, options.scope, MAX_TOOLS, first)


def _estimate_bytes(tool: SearchableTool) -> int:
    """Estimate the size of a tool in a request, rather too high: twice its longest texts."""
    return 1_000 + 2 * len(tool.description) + 2 * len(tool.input_schema)

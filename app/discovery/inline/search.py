"""The deed: of tools that come with the request, those that its queries need. Nothing is kept of who asked for what.

The same ranking as `discover()`, and the same ladder: without the embedder it searches by words alone. What the
embedder had no time for is found by its words, until a later request has embedded it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.auth.permissions import Caller
from app.discovery.discover import Ask, Discoverer, QueryEmbedding, embed_query, make_scoring_params
from app.discovery.inline.documents import Reader, ReadTool, SentTool
from app.discovery.inline.vectors import VectorSource
from app.discovery.request import Wishes, resolved
from app.embeddings.base import Vector
from app.embeddings.models import LoadedModel
from app.indexing.parsing import Refusal
from app.search.in_memory import IndexedTool, ScoredTool, TenantIndex
from app.search.interleave import interleave
from app.search.query import Query
from app.search.scoring import ScoringParams

_WORDS_SHOWN = 8


@dataclass(frozen=True)
class ListSearcher:
    """What the deed needs, built once."""

    discoverer: Discoverer
    reader: Reader
    budget_s: float
    """How long a request may wait for the vectors of its tools."""

    def vectors(self, kept: LoadedModel) -> VectorSource:
        return VectorSource(self.discoverer.database, kept.embedder, self.discoverer.metrics)


@dataclass(frozen=True)
class FoundTool:
    tool_key: str
    tool: ReadTool
    relevance: float
    explanation: str


@dataclass(frozen=True)
class InlineSearchResult:
    results: Sequence[FoundTool]
    refused: Mapping[str, str]
    """Why, by key."""
    searched: int
    degraded_reason: str | None
    pending: int
    """Tools that have no vector yet, and are found by their words alone."""


@dataclass(frozen=True)
class ToolSet:
    """The tools that can be searched, by their keys, with the vectors that could be had."""

    read: Mapping[str, ReadTool]
    refused: Mapping[str, str]
    tools: TenantIndex
    pending: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class _Asked:
    """A query, as far down the ladder as it had to go."""

    question: ScoringParams
    rung: QueryEmbedding

    def by_words(self) -> "_Asked":
        return _Asked(replace(self.question, strategy="bm25"), replace(self.rung, embedded=None))


async def search_inline(
    searcher: ListSearcher, caller: Caller, queries: Sequence[Query], tools: Sequence[SentTool], limit: int | None
) -> InlineSearchResult:
    ask = await resolved(searcher.discoverer, caller, Wishes(queries[0], limit=limit, include_core_tools=False))
    asked = [await _asked(searcher.discoverer, caller, replace(ask, query=query)) for query in queries]
    kept = searcher.discoverer.models.named(ask.scope.model)
    held = await _held(searcher, kept, tools)
    if any(each.rung.vectors is not None for each in asked):
        held = await _with_vectors(searcher.vectors(kept), held, [each.question for each in asked], searcher.budget_s)
    if held.pending == len(held.read):
        asked = [each.by_words() for each in asked]
    found = await asyncio.to_thread(_found, held, asked, ask.limit)
    reason = next((each.rung.reason for each in asked if each.rung.reason), held.reason)
    if reason is not None:
        searcher.discoverer.metrics.fallbacks.labels(reason).inc()
    return InlineSearchResult(found, held.refused, len(held.read), reason, held.pending)


async def _asked(discoverer: Discoverer, caller: Caller, ask: Ask) -> _Asked:
    """A project's choice not to search, and a user's switch, are about a catalogue: they say nothing of these tools."""
    user = replace(caller.require_user(), discovery_enabled=True)
    rung = await embed_query(discoverer, user, ask)
    return _Asked(make_scoring_params(discoverer, ask, rung), rung)


async def load_tool_set(searcher: ListSearcher, tools: Sequence[SentTool]) -> ToolSet:
    """With all that the embedder can make of them, however long it takes."""
    kept = searcher.discoverer.models.serving
    return await _with_vectors(searcher.vectors(kept), await _held(searcher, kept, tools), (), None)


async def _held(searcher: ListSearcher, kept: LoadedModel, tools: Sequence[SentTool]) -> ToolSet:
    outcomes = await searcher.reader.read(tools, kept.model.dimension)
    keyed = [(tool.tool_key, outcome) for tool, outcome in zip(tools, outcomes, strict=True)]
    read = {key: tool for key, tool in keyed if isinstance(tool, ReadTool)}
    refused = {key: refusal.reason for key, refusal in keyed if isinstance(refusal, Refusal)}
    held = [IndexedTool(key, tool.server_name, tool.name, tool.lexical, tool.action) for key, tool in read.items()]
    return ToolSet(read, refused, await asyncio.to_thread(TenantIndex.of, held))


async def _with_vectors(
    source: VectorSource, held: ToolSet, questions: Sequence[ScoringParams], budget_s: float | None
) -> ToolSet:
    """Those first that share words with a question: where there is no time for all, it goes to the likely ones."""
    hashes = [tool.text_hash for tool in held.read.values()]
    known = await source.cached(hashes)
    reason = None
    if missing := {tool.text_hash: tool.text for tool in held.read.values() if tool.text_hash not in known}:
        likely = await asyncio.to_thread(_likely_first, held, questions)
        made = await source.embed({key: missing[key] for key in likely if key in missing}, budget_s)
        known, reason = {**known, **made.known}, made.reason
    vectors: list[Vector | None] = [known.get(key) for key in hashes]
    tools = await asyncio.to_thread(held.tools.with_vectors, vectors)
    return replace(held, tools=tools, pending=sum(vector is None for vector in vectors), reason=reason)


def _likely_first(held: ToolSet, questions: Sequence[ScoringParams]) -> list[bytes]:
    hashes = [tool.text_hash for tool in held.read.values()]
    if not questions:
        return hashes
    scored = zip(held.tools.by_words(questions), hashes, strict=True)
    return [key for _, key in sorted(scored, key=lambda each: -each[0])]


def _found(held: ToolSet, asked: Sequence[_Asked], limit: int) -> list[FoundTool]:
    rankings = [held.tools.find(each.question, each.rung.vectors, limit) for each in asked]
    taken = interleave(rankings, limit, lambda match: match.hit.tool_id, lambda match: match.hit.score)
    return [_tool(held, match) for match in taken]


def _tool(held: ToolSet, match: ScoredTool) -> FoundTool:
    key = match.hit.tool_id
    return FoundTool(key, held.read[key], match.hit.score, explain_match(match))


def explain_match(match: ScoredTool) -> str:
    """In words, for whoever reads the answer: a person or a model."""
    words = ", ".join(f"“{word}”" for word in match.words[:_WORDS_SHOWN])
    reasons = [
        "named in the query" if match.named else "",
        f"matches {words}" if words else "",
        "" if match.similarity is None else f"close in meaning ({match.similarity:.2f})",
    ]
    return "; ".join(reason for reason in reasons if reason)

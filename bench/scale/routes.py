"""Measure a search on each route: in memory, exactly in Postgres, and through the indexes of a large user."""

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from app.catalog.visibility import Scope
from app.container import Container
from app.search.query import Query, parse_query
from app.search.ranking import Ranking
from app.search.scoring import ScoringParams
from app.search.searcher import QueryEmbedding, SearchOptions
from app.search.snapshots import Snapshot, read_snapshot
from bench.load.cpu import read_cpu_time

LIMIT = 8
IN_MEMORY, EXACT, INDEXED = "in memory", "exact", "indexes"

Search = Callable[["Question"], Awaitable[Ranking | None]]


@dataclass(frozen=True)
class Question:
    query: Query
    embedding: QueryEmbedding


@dataclass(frozen=True)
class RouteResult:
    """`new_p50_ms` is for questions whose words have not been counted before. CPU is of a repeated question."""

    route: str
    tools: int
    p50_ms: float
    p95_ms: float
    new_p50_ms: float
    app_cpu_ms: float
    postgres_cpu_ms: float
    recall: float | None = None
    first_same: float | None = None
    """The share of questions with the same best tool as in the exact search."""
    memory_mb: float | None = None


class Routes:
    """The routes of one user."""

    def __init__(self, container: Container, user_id: str, tools: int, postmaster: int) -> None:
        self._container, self._tools, self._postmaster = container, tools, postmaster
        self.scope = Scope(user_id, container.model.id)
        self._options = SearchOptions(self.scope, "hybrid", None, LIMIT)

    async def embed(self, messages: Sequence[str]) -> list[Question]:
        queries = [parse_query(message) for message in messages]
        searcher = self._container.searcher
        return [Question(query, await searcher.embed_query(query, self._options)) for query in queries]

    async def measure_all(self, questions: Sequence[Question], *, indexed: bool) -> list[RouteResult]:
        exact, expected = await self._measure(EXACT, self._search_exactly, questions)
        results = [exact]
        if indexed:
            results.append(_compare(*await self._measure(INDEXED, self._search_indexes, questions), expected))
        snapshot = await self._load_snapshot()
        if snapshot is not None:

            async def search(question: Question) -> Ranking:
                return snapshot.find(self._make_params(question), question.embedding.vectors, LIMIT)

            measured = await self._measure(IN_MEMORY, search, questions, snapshot.memory_bytes / 1e6)
            results.append(_compare(*measured, expected))
        return results

    async def _load_snapshot(self) -> Snapshot | None:
        max_bytes = self._container.settings.snapshot_mb * 1_000_000
        async with self._container.database.snapshot(self.scope.user_id) as session:
            return await read_snapshot(session, self.scope, max_bytes)

    async def _measure(
        self, route: str, search: Search, questions: Sequence[Question], memory_mb: float | None = None
    ) -> tuple[RouteResult, list[Ranking]]:
        new_ms, _ = await _time_each(search, questions)
        before = read_cpu_time([os.getpid()], self._postmaster)
        times_ms, rankings = await _time_each(search, questions)
        cpu = read_cpu_time([os.getpid()], self._postmaster).since(before)
        result = RouteResult(
            route,
            self._tools,
            p50_ms=statistics.median(times_ms),
            p95_ms=sorted(times_ms)[int(0.95 * len(times_ms))],
            new_p50_ms=statistics.median(new_ms),
            app_cpu_ms=cpu.app * 1000 / len(questions),
            postgres_cpu_ms=cpu.postgres * 1000 / len(questions),
            memory_mb=memory_mb,
        )
        return result, rankings

    async def _search_exactly(self, question: Question) -> Ranking:
        async with self._container.database.snapshot(self.scope.user_id) as session:
            searcher = self._container.searcher
            found = await searcher.find(session, question.query, self._options, question.embedding, limit=LIMIT)
        return found.ranking

    async def _search_indexes(self, question: Question) -> Ranking | None:
        """Search as a large user is searched. None: the indexes have not found enough, and the exact search answers."""
        search = self._container.searcher.large_tenant_search
        async with self._container.database.snapshot(self.scope.user_id) as session:
            params, vectors = self._make_params(question), question.embedding.vectors
            found = await search.find(session, self.scope, params, vectors, limit=LIMIT)
        return None if found is None else found.ranking

    def _make_params(self, question: Question) -> ScoringParams:
        return self._container.searcher.make_params(question.query, self._options, question.embedding)


async def _time_each(search: Search, questions: Sequence[Question]) -> tuple[list[float], list[Ranking]]:
    times_ms, rankings = [], []
    for question in questions:
        started = time.perf_counter()
        ranking = await search(question)
        times_ms.append((time.perf_counter() - started) * 1000)
        if ranking is None:
            raise RuntimeError("a search through the indexes has found too few tools")
        rankings.append(ranking)
    return times_ms, rankings


def _compare(result: RouteResult, found: Sequence[Ranking], expected: Sequence[Ranking]) -> RouteResult:
    pairs = [(one, other) for one, other in zip(found, expected, strict=True) if other.hits]
    same = sum(bool(one.hits) and one.hits[0].tool_id == other.hits[0].tool_id for one, other in pairs)
    recall = statistics.mean(measure_recall(one, other) for one, other in pairs)
    return replace(result, recall=recall, first_same=same / len(pairs))


def measure_recall(found: Ranking, expected: Ranking) -> float:
    """Return the share of the expected hits that were found."""
    wanted = {hit.tool_id for hit in expected.hits}
    return len(wanted.intersection(hit.tool_id for hit in found.hits)) / len(wanted)

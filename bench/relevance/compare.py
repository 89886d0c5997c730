"""Compare Toolscout and the baselines on the same messages, in the same run.

The baselines always return ten tools. So Toolscout is measured twice: without abstention, with a threshold of zero,
where it returns ten tools, too; and as shipped, where an answer ends before tools that are unlikely, and may be empty.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.container import Container
from app.discovery.request import DEFAULT_LIMIT
from app.evaluation.run import EvalAnswer, answer_message
from app.evaluation.scores import Interval, Measures, mean_measures, paired_interval, score_ranking
from app.evaluation.summary import Summary, summarize
from bench.relevance.baselines import DEPTH, Dense, PlainBm25, fuse
from bench.relevance.fastmcp_baseline import FastMcpSearch
from bench.relevance.index import IndexedSet, index_set
from bench.relevance.messages import (
    Change,
    MessageResult,
    Quality,
    Results,
    compare_results,
    score_answer,
    summarize_results,
)
from bench.relevance.sets import BenchSet, is_tuned_on, last_user_text

OURS = "toolscout"


@dataclass(frozen=True)
class Ranking:
    name: str
    measures: Measures
    interval: Interval | None
    """The difference of nDCG@10 to Toolscout; None for Toolscout itself."""


@dataclass(frozen=True)
class Versions:
    """Some messages as this version answers them, and as the version before did."""

    now: Quality
    change: Change | None
    """None if the results of the version before are not known."""


@dataclass(frozen=True)
class Comparison:
    name: str
    is_tuned_on: bool
    tools: int
    refused: Mapping[str, str]
    """Tools that Toolscout rejects, with the reason: they count as not found."""
    summary: Summary
    """The cost of the answers as shipped."""
    rankings: Sequence[Ranking]
    """Toolscout without abstention, and the baselines."""
    versions: Versions
    kinds: Mapping[str, Versions]
    """By kind of message, if messages that need tools have kinds."""
    results: Results


async def compare(
    container: Container, bench: BenchSet, before: Results | None = None, *, baselines: bool = True
) -> Comparison:
    """Measure a set; `before` are the results of the version before on the same set."""
    index = await index_set(container, bench)
    needing = replace(bench, items=[item for item in bench.items if item.tools])
    shipped = await _answer_messages(container, bench, index, limit=DEFAULT_LIMIT)
    ranked = await _answer_messages(container, needing, index, limit=DEPTH, threshold=0.0)
    measures = {OURS: [answer.measures for answer in ranked if answer.measures is not None]}
    measures |= await _rank_baselines(container, needing, index) if baselines else {}
    results = _make_results(index, shipped, ranked)
    return Comparison(
        name=bench.name,
        is_tuned_on=is_tuned_on(bench.name),
        tools=len(bench.tools),
        refused=index.refused,
        summary=summarize(shipped),
        rankings=[_make_ranking(name, each, measures[OURS]) for name, each in measures.items()],
        versions=_compare_versions(results, before or {}),
        kinds=_compare_kinds(bench, results, before or {}),
        results=results,
    )


async def _answer_messages(
    container: Container, bench: BenchSet, index: IndexedSet, *, limit: int, threshold: float | None = None
) -> list[EvalAnswer]:
    started, answers = time.monotonic(), []
    for item in bench.items:
        relevant = _find_relevant(index, item.tools)
        answers.append(
            await answer_message(container.discoverer, index.caller, item, relevant, limit=limit, threshold=threshold)
        )
    print(f"{bench.name}: {len(answers)} messages in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return answers


def _find_relevant(index: IndexedSet, labels: Sequence[str]) -> set[str]:
    """Return the keys of the labelled tools. A rejected tool has none: its label stays, and is never found."""
    return {index.keys.get(label, label) for label in labels}


def _make_results(
    index: IndexedSet, shipped: Sequence[EvalAnswer], ranked: Sequence[EvalAnswer]
) -> dict[str, MessageResult]:
    rankings = {answer.item.id: answer.ranked for answer in ranked}
    results = {}
    for answer in shipped:
        relevant = _find_relevant(index, answer.item.tools)
        scored = (
            [score_answer(each, relevant) for each in (answer.ranked, rankings[answer.item.id])] if relevant else []
        )
        results[answer.item.id] = MessageResult(len(answer.ranked), answer.confidence, *(scored or (None, None)))
    return results


def _compare_versions(now: Results, before: Results) -> Versions:
    return Versions(summarize_results(list(now.values())), compare_results(now, before))


def _compare_kinds(bench: BenchSet, now: Results, before: Results) -> dict[str, Versions]:
    """Compare by the kinds of the messages that need tools. Messages of the same kind that need none are included."""
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for item in bench.items:
        if item.kind is not None:
            ids[item.kind].append(item.id)
    kinds = dict.fromkeys(item.kind for item in bench.items if item.tools and item.kind is not None)
    return {kind: _compare_versions({key: now[key] for key in ids[kind]}, before) for kind in kinds}


async def _rank_baselines(container: Container, bench: BenchSet, index: IndexedSet) -> dict[str, list[Measures]]:
    """Rank the tools for messages that need some."""
    bm25, dense, fastmcp = PlainBm25(bench.tools), Dense(index.vectors), FastMcpSearch(bench.tools)
    scored: dict[str, list[Measures]] = {"plain BM25": [], "dense alone": [], "reciprocal rank": [], "FastMCP BM25": []}
    for item in bench.items:
        text = last_user_text(item)
        vector = (await container.models.current.queries.embed(index.caller.require_user().id, (text,))).vectors[0]
        rankings = (
            bm25.rank(text),
            dense.rank(vector),
            fuse(bm25, dense, text, vector),
            await fastmcp.rank(text),
        )
        for measures, ranked in zip(scored.values(), rankings, strict=True):
            measures.append(score_ranking(ranked, item.tools))
    return scored


def _make_ranking(name: str, measures: Sequence[Measures], ours: Sequence[Measures]) -> Ranking:
    means = mean_measures(measures) or Measures(0, 0, 0, 0, 0)
    if name == OURS:
        return Ranking(name, means, None)
    gains, our_gains = ([each.ndcg_at_10 for each in group] for group in (measures, ours))
    return Ranking(name, means, paired_interval(our_gains, gains) if gains else None)

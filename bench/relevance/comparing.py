"""Ours and the floors on the same messages, in the same run.

The floors always answer, so ours is compared with a threshold of zero, where it does, too; and as it ships, where it
may say that nothing fits.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.container import Container
from app.evaluation.run import EvalAnswer, answer_message
from app.evaluation.scores import Interval, Measures, mean, measure, paired_interval
from app.evaluation.summary import Summary, summarize
from bench.relevance.fastmcp_floor import FastMcpSearch
from bench.relevance.floors import Dense, PlainBm25, fused
from bench.relevance.index import Indexed, indexed
from bench.relevance.sets import BenchSet, last_said

OURS = "toolscout"
SHIPPED = "with no_match"


@dataclass(frozen=True)
class Ranking:
    name: str
    measures: Measures
    interval: Interval | None
    """Of nDCG@10, of its difference to ours; ours has none."""


@dataclass(frozen=True)
class Comparison:
    name: str
    tools: int
    refused: Mapping[str, str]
    """Tools that the product does not take, and why: they count as not found."""
    needing: int
    not_needing: int
    summary: Summary
    lost: float
    """Of the messages that need tools: the share with one among the first ten that `no_match` then took away."""
    rankings: Sequence[Ranking]
    kinds: Mapping[str, float]
    """Our nDCG@10 by kind of message, where the set tells kinds apart."""


async def compared(container: Container, bench: BenchSet, *, floors: bool = True) -> Comparison:
    index = await indexed(container, bench)
    answers = await _answers(container, bench, index)
    needing = [answer for answer in answers if answer.asked.tools]
    ranked = await _answers(container, replace(bench, asked=[each for each in bench.asked if each.tools]), index, 0.0)
    measures = {OURS: _measures(ranked), SHIPPED: _measures(needing)}
    measures |= await _floors(container, bench, index) if floors else {}
    return Comparison(
        name=bench.name,
        tools=len(bench.tools),
        refused=index.refused,
        needing=len(needing),
        not_needing=len(answers) - len(needing),
        summary=summarize(answers),
        lost=_lost(ranked, needing),
        rankings=[_ranking(name, each, measures[OURS]) for name, each in measures.items()],
        kinds=_kinds(ranked),
    )


def _lost(ranked: Sequence[EvalAnswer], shipped: Sequence[EvalAnswer]) -> float:
    pairs = list(zip(_measures(ranked), shipped, strict=True))
    return sum(found.recall_at_10 > 0 and answer.no_match for found, answer in pairs) / max(len(pairs), 1)


def _measures(answers: Sequence[EvalAnswer]) -> list[Measures]:
    return [answer.measures for answer in answers if answer.measures is not None]


async def _answers(
    container: Container, bench: BenchSet, index: Indexed, threshold: float | None = None
) -> list[EvalAnswer]:
    started, answers = time.monotonic(), []
    for asked in bench.asked:
        relevant = {index.keys.get(label, label) for label in asked.tools}
        answers.append(await answer_message(container.discoverer, index.caller, asked, relevant, threshold=threshold))
    print(f"{bench.name}: {len(answers)} messages in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return answers


async def _floors(container: Container, bench: BenchSet, index: Indexed) -> dict[str, list[Measures]]:
    bm25, dense, fast = PlainBm25(bench.tools), Dense(index.vectors), FastMcpSearch(bench.tools)
    found: dict[str, list[Measures]] = {"plain BM25": [], "dense alone": [], "reciprocal rank": [], "FastMCP BM25": []}
    for asked in bench.asked:
        if not asked.tools:
            continue
        text = last_said(asked)
        vector = (await container.discoverer.queries.embed(index.caller.require_user().id, (text,))).vectors[0]
        rankings = (
            bm25.ranked(text),
            dense.ranked(vector),
            fused(bm25, dense, text, vector),
            await fast.ranked(text),
        )
        for measures, ranked in zip(found.values(), rankings, strict=True):
            measures.append(measure(ranked, asked.tools))
    return found


def _kinds(answers: Sequence[EvalAnswer]) -> dict[str, float]:
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for answer in answers:
        if answer.asked.kind is not None and answer.measures is not None:
            gains[answer.asked.kind].append(answer.measures.ndcg_at_10)
    return {kind: statistics.fmean(its) for kind, its in gains.items()}


def _ranking(name: str, measures: Sequence[Measures], ours: Sequence[Measures]) -> Ranking:
    means = mean(measures) or Measures(0, 0, 0, 0, 0)
    if name == OURS:
        return Ranking(name, means, None)
    gains, our_gains = ([each.ndcg_at_10 for each in of] for of in (measures, ours))
    return Ranking(name, means, paired_interval(our_gains, gains) if gains else None)

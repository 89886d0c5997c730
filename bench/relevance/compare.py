"""Compare Toolscout and the baselines on the same messages, in the same run.

The baselines always return tools. So Toolscout is compared twice: with a threshold of zero, where it always returns
tools, too, and as it ships, where it may answer `no_match`.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.container import Container
from app.evaluation.run import EvalAnswer, answer_message
from app.evaluation.scores import Interval, Measures, mean_measures, paired_interval, score_ranking
from app.evaluation.summary import Summary, summarize
from bench.relevance.baselines import Dense, PlainBm25, fuse
from bench.relevance.fastmcp_baseline import FastMcpSearch
from bench.relevance.index import IndexedSet, index_set
from bench.relevance.sets import BenchSet, last_user_text

OURS = "toolscout"
SHIPPED = "with no_match"


@dataclass(frozen=True)
class Ranking:
    name: str
    measures: Measures
    interval: Interval | None
    """The difference of nDCG@10 to Toolscout; None for Toolscout itself."""


@dataclass(frozen=True)
class Comparison:
    name: str
    tools: int
    refused: Mapping[str, str]
    """Tools that Toolscout rejects, with the reason: they count as not found."""
    needing: int
    not_needing: int
    summary: Summary
    lost: float
    """The share of the messages that need tools which lost a tool of the first ten to a `no_match`."""
    rankings: Sequence[Ranking]
    kinds: Mapping[str, float]
    """The nDCG@10 of Toolscout by kind of message, if the set has kinds."""


async def compare(container: Container, bench: BenchSet, *, baselines: bool = True) -> Comparison:
    index = await index_set(container, bench)
    answers = await _answer_messages(container, bench, index)
    needing = [answer for answer in answers if answer.item.tools]
    ranked = await _answer_messages(
        container, replace(bench, items=[each for each in bench.items if each.tools]), index, 0.0
    )
    measures = {OURS: _get_measures(ranked), SHIPPED: _get_measures(needing)}
    measures |= await _rank_baselines(container, bench, index) if baselines else {}
    return Comparison(
        name=bench.name,
        tools=len(bench.tools),
        refused=index.refused,
        needing=len(needing),
        not_needing=len(answers) - len(needing),
        summary=summarize(answers),
        lost=_lost_share(ranked, needing),
        rankings=[_make_ranking(name, each, measures[OURS]) for name, each in measures.items()],
        kinds=_score_kinds(ranked),
    )


def _lost_share(ranked: Sequence[EvalAnswer], shipped: Sequence[EvalAnswer]) -> float:
    pairs = list(zip(_get_measures(ranked), shipped, strict=True))
    return sum(measures.recall_at_10 > 0 and answer.no_match for measures, answer in pairs) / max(len(pairs), 1)


def _get_measures(answers: Sequence[EvalAnswer]) -> list[Measures]:
    return [answer.measures for answer in answers if answer.measures is not None]


async def _answer_messages(
    container: Container, bench: BenchSet, index: IndexedSet, threshold: float | None = None
) -> list[EvalAnswer]:
    started, answers = time.monotonic(), []
    for item in bench.items:
        relevant = {index.keys.get(label, label) for label in item.tools}
        answers.append(await answer_message(container.discoverer, index.caller, item, relevant, threshold=threshold))
    print(f"{bench.name}: {len(answers)} messages in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return answers


async def _rank_baselines(container: Container, bench: BenchSet, index: IndexedSet) -> dict[str, list[Measures]]:
    bm25, dense, fastmcp = PlainBm25(bench.tools), Dense(index.vectors), FastMcpSearch(bench.tools)
    scored: dict[str, list[Measures]] = {"plain BM25": [], "dense alone": [], "reciprocal rank": [], "FastMCP BM25": []}
    for item in bench.items:
        if not item.tools:
            continue
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


def _score_kinds(answers: Sequence[EvalAnswer]) -> dict[str, float]:
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for answer in answers:
        if answer.item.kind is not None and answer.measures is not None:
            gains[answer.item.kind].append(answer.measures.ndcg_at_10)
    return {kind: statistics.fmean(values) for kind, values in gains.items()}


def _make_ranking(name: str, measures: Sequence[Measures], ours: Sequence[Measures]) -> Ranking:
    means = mean_measures(measures) or Measures(0, 0, 0, 0, 0)
    if name == OURS:
        return Ranking(name, means, None)
    gains, our_gains = ([each.ndcg_at_10 for each in group] for group in (measures, ours))
    return Ranking(name, means, paired_interval(our_gains, gains) if gains else None)

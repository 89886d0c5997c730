"""The figures of a set as a table for people, and of all sets as JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict

from app.evaluation.scores import Interval
from app.evaluation.summary import Summary
from app.text.strict_json import Json
from bench.relevance.comparing import Comparison, Ranking

_HEAD = f"{'':17}{'hit@1':>7}{'R@5':>7}{'R@10':>7}{'nDCG@10':>9}{'  [95% of the difference to ours]':33}{'MRR':>7}"


def table(comparison: Comparison) -> str:
    title = f"{comparison.name}: {comparison.tools} tools, {comparison.needing} messages that need some"
    lines = [title, _HEAD, *(_line(ranking) for ranking in comparison.rankings), *_below(comparison)]
    return "\n".join(lines)


def as_json(comparisons: Sequence[Comparison]) -> Json:
    return {"sets": [asdict(comparison) for comparison in comparisons]}


def _line(ranking: Ranking) -> str:
    means = ranking.measures
    first = "".join(f"{value:7.3f}" for value in (means.hit_at_1, means.recall_at_5, means.recall_at_10))
    return f"{ranking.name:17}{first}{means.ndcg_at_10:9.3f}{_shown(ranking.interval):33}{means.reciprocal_rank:7.3f}"


def _shown(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"  {interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _below(comparison: Comparison) -> list[str]:
    summary = comparison.summary
    lines = [_abstention(comparison), _cost(summary)]
    if len(comparison.kinds) > 1:
        lines.append("nDCG@10 by kind: " + ", ".join(f"{kind} {gain:.3f}" for kind, gain in comparison.kinds.items()))
    lines += [f"refused, and so never found: {tool}: {reason}" for tool, reason in comparison.refused.items()]
    if summary.degraded:
        lines.append(f"DEGRADED: {summary.degraded} answers, so these are not the product's figures")
    return lines


def _abstention(comparison: Comparison) -> str:
    lost, abstained = comparison.summary.lost, comparison.summary.abstained
    told = [] if lost is None else [f"`no_match` for {lost:.1%} of them, {comparison.lost:.1%} lost a tool by it"]
    told += [] if abstained is None else [f"{abstained:.1%} of {comparison.not_needing} that need none got none"]
    return "; ".join(told)


def _cost(summary: Summary) -> str:
    return (
        f"median: {summary.median_tokens or 0:.0f} tokens an answer, {summary.median_saved_percent or 0:.1f} % saved, "
        f"{summary.median_ms or 0:.1f} ms a message with its embedding"
    )

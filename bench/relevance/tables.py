"""Format the results of a set as a table, and of all sets as JSON."""

from collections.abc import Sequence
from dataclasses import asdict

from app.evaluation.scores import Interval
from app.evaluation.summary import Summary
from app.text.strict_json import Json
from bench.relevance.compare import Comparison, Ranking

_HEAD = f"{'':17}{'hit@1':>7}{'R@5':>7}{'R@10':>7}{'nDCG@10':>9}{'  [95% of the difference to ours]':33}{'MRR':>7}"


def format_table(comparison: Comparison) -> str:
    title = f"{comparison.name}: {comparison.tools} tools, {comparison.needing} messages that need tools"
    lines = [title, _HEAD, *(_format_ranking(ranking) for ranking in comparison.rankings), *_format_details(comparison)]
    return "\n".join(lines)


def to_json(comparisons: Sequence[Comparison]) -> Json:
    return {"sets": [asdict(comparison) for comparison in comparisons]}


def _format_ranking(ranking: Ranking) -> str:
    means = ranking.measures
    first = "".join(f"{value:7.3f}" for value in (means.hit_at_1, means.recall_at_5, means.recall_at_10))
    interval = _format_interval(ranking.interval)
    return f"{ranking.name:17}{first}{means.ndcg_at_10:9.3f}{interval:33}{means.reciprocal_rank:7.3f}"


def _format_interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"  {interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _format_details(comparison: Comparison) -> list[str]:
    summary = comparison.summary
    lines = [_format_abstention(comparison), _format_cost(summary)]
    if len(comparison.kinds) > 1:
        lines.append("nDCG@10 by kind: " + ", ".join(f"{kind} {gain:.3f}" for kind, gain in comparison.kinds.items()))
    lines += [f"rejected, so never found: {tool}: {reason}" for tool, reason in comparison.refused.items()]
    if summary.degraded:
        lines.append(f"DEGRADED: {summary.degraded} answers; these results do not represent the product")
    return lines


def _format_abstention(comparison: Comparison) -> str:
    lost, abstained = comparison.summary.lost, comparison.summary.abstained
    parts = [] if lost is None else [f"`no_match` for {lost:.1%} of them, {comparison.lost:.1%} lost a tool by it"]
    parts += [] if abstained is None else [f"`no_match` for {abstained:.1%} of {comparison.not_needing} that need none"]
    return "; ".join(parts)


def _format_cost(summary: Summary) -> str:
    return (
        f"median: {summary.median_tokens or 0:.0f} tokens per answer, {summary.median_saved_percent or 0:.1f} % saved, "
        f"{summary.median_ms or 0:.1f} ms per message including its embedding"
    )

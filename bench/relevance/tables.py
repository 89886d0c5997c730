"""Format the results of a set and of all sets as tables, and of all sets as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from app.evaluation.scores import Interval
from app.evaluation.summary import Summary
from app.text.strict_json import Json
from bench.relevance.compare import Comparison, Ranking, Versions
from bench.relevance.messages import Quality, Scores

TUNED_MARK = "*"
TUNED_NOTE = f"{TUNED_MARK} the ranking or its calibration was tuned on this set"

_RANKING_HEAD = (
    f"{'without abstention':32}{'hit@1':>7}{'R@5':>7}{'R@10':>7}{'nDCG@10':>9}"
    f"{'  [95% of the difference to ours]':33}{'MRR':>7}"
)
_QUALITY_HEAD = "".join(
    f"{name:>9}" for name in ("hit@1", "hit@8", "R@5", "nDCG@10", "size", "empty", "low", "tools", "empty")
)
_CHANGES = {
    "hit_at_1": "hit@1",
    "hit_at_8": "hit@8",
    "recall_at_5": "R@5",
    "ndcg_at_10": "nDCG@10",
    "size": "size",
    "empty": "empty",
    "ranking_hit_at_8": "hit@8 without abstention",
    "ranking_ndcg_at_10": "nDCG@10 without abstention",
    "toolless_size": "tools for messages that need none",
    "toolless_empty": "empty for messages that need none",
}
_NO_SCORES = Scores(0, 0, 0, 0)


def format_table(comparison: Comparison) -> str:
    now = comparison.versions.now
    title = f"{_mark(comparison)}: {comparison.tools} tools, {now.needing} messages that need tools"
    lines = [
        f"{title}, {now.not_needing} that need none",
        _RANKING_HEAD,
        *(_format_ranking(ranking) for ranking in comparison.rankings),
        f"{'as shipped':32}{_QUALITY_HEAD}",
        *_format_versions("toolscout", comparison.versions),
        *_format_changes(comparison.versions),
        *_format_kinds(comparison),
        *_format_details(comparison),
    ]
    return "\n".join(lines)


def format_summary(comparisons: Sequence[Comparison]) -> str:
    """Format all sets as shipped, one line for each version of a set."""
    lines = [
        f"{'as shipped':32}{_QUALITY_HEAD}  {'nDCG@10 without abstention':>26}",
        f"{'':32}{'messages that need tools':>63}{'that need none':>18}",
    ]
    for comparison in comparisons:
        change = comparison.versions.change
        if change is not None:
            lines.append(_format_summary_line(f"{comparison.name}, before", change.before))
        lines.append(_format_summary_line(_mark(comparison), comparison.versions.now))
    return "\n".join([*lines, TUNED_NOTE])


def format_intervals(comparisons: Sequence[Comparison]) -> str:
    """Format the differences to the version before that matter most."""
    names = ("ndcg_at_10", "hit_at_8", "empty", "ranking_ndcg_at_10", "toolless_size")
    lines = [f"{'now minus before':32}" + "".join(f"{_short_name(name):>26}" for name in names)]
    for comparison in comparisons:
        if comparison.versions.change is not None:
            intervals = comparison.versions.change.intervals
            cells = (format_interval(intervals[name]) if name in intervals else "–" for name in names)
            lines.append(f"{_mark(comparison):32}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines) if len(lines) > 1 else ""


def format_interval(interval: Interval) -> str:
    return f"{interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def to_json(comparisons: Sequence[Comparison]) -> Json:
    """Leave out the results of each message, which have a file of their own."""
    return {"sets": [asdict(replace(comparison, results={})) for comparison in comparisons]}


def _mark(comparison: Comparison) -> str:
    return f"{comparison.name}{TUNED_MARK if comparison.is_tuned_on else ''}"


def _format_ranking(ranking: Ranking) -> str:
    means = ranking.measures
    first = "".join(f"{value:7.3f}" for value in (means.hit_at_1, means.recall_at_5, means.recall_at_10))
    interval = "" if ranking.interval is None else f"  {format_interval(ranking.interval)}"
    return f"{ranking.name:32}{first}{means.ndcg_at_10:9.3f}{interval:33}{means.reciprocal_rank:7.3f}"


def _format_versions(name: str, versions: Versions) -> list[str]:
    before = [] if versions.change is None else [f"{f'{name}, before':32}{_format_quality(versions.change.before)}"]
    return [*before, f"{name:32}{_format_quality(versions.now)}"]


def _format_quality(quality: Quality) -> str:
    scores = quality.shipped or _NO_SCORES
    cells = [f"{value:9.3f}" for value in (scores.hit_at_1, scores.hit_at_8, scores.recall_at_5, scores.ndcg_at_10)]
    cells += [_format_mean(quality.size), _format_share(quality.empty), _format_share(quality.low)]
    return "".join([*cells, _format_mean(quality.toolless_size), _format_share(quality.toolless_empty)])


def _format_summary_line(name: str, quality: Quality) -> str:
    return f"{name:32}{_format_quality(quality)}  {(quality.ranking or _NO_SCORES).ndcg_at_10:26.3f}"


def _format_mean(value: float | None) -> str:
    return f"{'–':>9}" if value is None else f"{value:9.1f}"


def _format_share(value: float | None) -> str:
    return f"{'–':>9}" if value is None else f"{value:9.1%}"


def _format_changes(versions: Versions) -> list[str]:
    if versions.change is None:
        return []
    intervals = versions.change.intervals
    parts = [f"{label} {format_interval(intervals[name])}" for name, label in _CHANGES.items() if name in intervals]
    return ["now minus before, with 95% intervals:", *(f"  {part}" for part in parts)]


def _format_kinds(comparison: Comparison) -> list[str]:
    if len(comparison.kinds) < 2:
        return []
    return [line for kind, versions in comparison.kinds.items() for line in _format_versions(f"  {kind}", versions)]


def _format_details(comparison: Comparison) -> list[str]:
    lines = [_format_cost(comparison.summary)]
    lines += [f"rejected, so never found: {tool}: {reason}" for tool, reason in comparison.refused.items()]
    if comparison.summary.degraded:
        lines.append(f"DEGRADED: {comparison.summary.degraded} answers; these results do not represent the product")
    return lines


def _format_cost(summary: Summary) -> str:
    return (
        f"median: {summary.median_tokens or 0:.0f} tokens per answer, {summary.median_saved_percent or 0:.1f} % saved, "
        f"{summary.median_ms or 0:.1f} ms per message including its embedding"
    )


def _short_name(name: str) -> str:
    return {"ranking_ndcg_at_10": "nDCG w/o abstention", "toolless_size": "tools, need none"}.get(name, _CHANGES[name])

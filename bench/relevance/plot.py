"""Plot the nDCG@10 of every ranking on every set as bars."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.relevance.compare import Comparison, Ranking

_COLOURS = {
    "toolscout": "#1f4e79",
    "plain BM25": "#c9c9c9",
    "dense alone": "#a8b8a0",
    "reciprocal rank": "#d8c7a0",
    "FastMCP BM25": "#c4a3a0",
}
_NOTE = "whiskers: 95 % of the paired bootstrap of the difference to Toolscout, over the same messages"
_GROUP_WIDTH = 0.84


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(max(8.0, 2.2 * len(comparisons) + 1.5), 4.6), layout="constrained")
    for position, comparison in enumerate(comparisons):
        _draw_set(axes, position, comparison)
    axes.set_xticks(range(len(comparisons)), [_make_label(comparison) for comparison in comparisons], fontsize=9)
    axes.set_ylim(0, 1)
    axes.set_ylabel("nDCG@10")
    axes.yaxis.grid(True, color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
    figure.legend(handles, _COLOURS, loc="outside upper center", ncols=len(_COLOURS), frameon=False, fontsize=9)
    figure.supxlabel(_NOTE, fontsize=8, color="#666666")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_set(axes: plt.Axes, position: int, comparison: Comparison) -> None:
    rankings = [ranking for ranking in comparison.rankings if ranking.name in _COLOURS]
    width = _GROUP_WIDTH / len(rankings)
    ours = rankings[0].measures.ndcg_at_10
    for number, ranking in enumerate(rankings):
        left = position + (number - (len(rankings) - 1) / 2) * width
        value = ranking.measures.ndcg_at_10
        axes.bar(
            left, value, width * 0.92, color=_COLOURS[ranking.name], yerr=_whiskers(ranking, ours), ecolor="#555555"
        )
        axes.text(left, 0.015, f"{value:.2f}".lstrip("0"), ha="center", fontsize=7, color=_text_colour(ranking))


def _whiskers(ranking: Ranking, ours: float) -> list[list[float]] | None:
    """Return the error bars of a baseline: the interval of its difference to Toolscout, around its own value."""
    if ranking.interval is None:
        return None
    value = ranking.measures.ndcg_at_10
    return [[value - ours - ranking.interval.low], [ours + ranking.interval.high - value]]


def _text_colour(ranking: Ranking) -> str:
    return "white" if ranking.interval is None else "#333333"


def _make_label(comparison: Comparison) -> str:
    return f"{comparison.name.replace('+', chr(10) + '+ ')}\n{comparison.tools} tools, {comparison.needing} messages"

"""Plot the results: each ranking on each set as bars, and this version as shipped beside the version before."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.relevance.compare import Comparison, Ranking
from bench.relevance.messages import Quality
from bench.relevance.sets import DEVELOPMENT, HELD_OUT_SUFFIX
from bench.relevance.tables import TUNED_MARK, TUNED_NOTE

_COLOURS = {
    "toolscout": "#1f4e79",
    "plain BM25": "#c9c9c9",
    "dense alone": "#a8b8a0",
    "reciprocal rank": "#d8c7a0",
    "FastMCP BM25": "#c4a3a0",
}
_VERSION_COLOURS = {"0.2.0": "#c9c9c9", "now": "#1f4e79"}
_NOTE = "whiskers: 95 % of the paired bootstrap of the difference to Toolscout, over the same messages"
_GROUP_WIDTH = 0.84
_SETS_IN_A_ROW = 5


def draw_rankings(comparisons: Sequence[Comparison], path: Path) -> None:
    """Plot the nDCG@10 without abstention. A development set is left out if its held-out twin is there."""
    mpl.use("Agg")
    names = {comparison.name for comparison in comparisons}
    chosen = [each for each in comparisons if f"{each.name}{HELD_OUT_SUFFIX}" not in names]
    rows = [chosen[start : start + _SETS_IN_A_ROW] for start in range(0, len(chosen), _SETS_IN_A_ROW)]
    width = max(8.0, 2.2 * max(map(len, rows), default=0) + 1.5)
    figure, grid = plt.subplots(len(rows), figsize=(width, 3.4 * len(rows) + 1.0), layout="constrained", squeeze=False)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        for position, comparison in enumerate(row):
            _draw_set(axes, position, comparison)
        axes.set_xlim(-0.5, max(map(len, rows)) - 0.5)
        axes.set_ylabel("nDCG@10 without abstention")
        axes.set_ylim(0, 1)
        _label_sets(axes, [_make_label(comparison) for comparison in row])
    _add_legend(figure, _COLOURS)
    figure.supxlabel(f"{_NOTE}; {TUNED_NOTE}", fontsize=8, color="#666666")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_versions(comparisons: Sequence[Comparison], path: Path) -> None:
    """Plot hit@8 and wrongly empty answers as shipped, before and now, for the sets in `bench/sets`."""
    mpl.use("Agg")
    names = {f"{name}{suffix}" for name in DEVELOPMENT for suffix in ("", HELD_OUT_SUFFIX)}
    chosen = [each for each in comparisons if each.name in names and each.versions.change is not None]
    if not chosen:
        return
    figure, panels = plt.subplots(1, 2, figsize=(max(7.0, 2.0 * len(chosen)), 3.8), layout="constrained")
    for axes, title in zip(panels, ("hit@8", "wrongly empty"), strict=True):
        for position, comparison in enumerate(chosen):
            _draw_versions_of_set(axes, position, comparison, title)
        axes.set_title(title, fontsize=10)
        _label_sets(axes, [_make_name(comparison) for comparison in chosen])
    panels[0].set_ylim(0, 1)
    panels[1].yaxis.set_major_locator(mpl.ticker.MultipleLocator(0.05))
    panels[1].yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, decimals=0))
    _add_legend(figure, _VERSION_COLOURS)
    figure.supxlabel(f"as shipped; {TUNED_NOTE}", fontsize=8, color="#666666")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_versions_of_set(axes: plt.Axes, position: int, comparison: Comparison, title: str) -> None:
    change = comparison.versions.change
    qualities = [comparison.versions.now] if change is None else [change.before, comparison.versions.now]
    for number, (quality, colour) in enumerate(zip(qualities, _VERSION_COLOURS.values(), strict=True)):
        value = _get_hit_at_8(quality) if title == "hit@8" else quality.empty or 0.0
        left = position + (number - 0.5) * 0.4
        axes.bar(left, value, 0.37, color=colour)
        text = f"{value:.2f}".lstrip("0") if title == "hit@8" else f"{value:.1%}"
        axes.annotate(text, (left, value), (0, 2), textcoords="offset points", ha="center", fontsize=7)


def _get_hit_at_8(quality: Quality) -> float:
    return 0.0 if quality.shipped is None else quality.shipped.hit_at_8


def _label_sets(axes: plt.Axes, labels: Sequence[str]) -> None:
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.yaxis.grid(True, color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _add_legend(figure: plt.Figure, colours: dict[str, str]) -> None:
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="outside upper center", ncols=len(colours), frameon=False, fontsize=9)


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
    return f"{_make_name(comparison)}\n{comparison.tools} tools, {comparison.versions.now.needing} messages"


def _make_name(comparison: Comparison) -> str:
    name = comparison.name.replace("+", "\n+ ").replace(HELD_OUT_SUFFIX, "\nheld out")
    return f"{name}{TUNED_MARK if comparison.is_tuned_on else ''}"

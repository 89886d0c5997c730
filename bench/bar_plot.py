"""Plot groups of horizontal bars on a logarithmic axis, for figures that differ by orders of magnitude."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

_GROUP_HEIGHT = 0.8


@dataclass(frozen=True)
class Group:
    """Bars of one label, by series. `notes` are written behind the value of a bar."""

    label: str
    values: Mapping[str, float]
    notes: Mapping[str, str] = field(default_factory=dict)


def draw_bars(groups: Sequence[Group], colours: Mapping[str, str], axis: str, note: str, path: Path) -> None:
    """`colours` names the series in the order in which their bars stand."""
    mpl.use("Agg")
    height = 0.2 + 0.17 * len(groups) * max(2, len(colours))
    figure, axes = plt.subplots(figsize=(9.0, height + 1.2), layout="constrained")
    for position, group in enumerate(groups):
        _draw_group(axes, position, group, colours)
    axes.set_xscale("log")
    axes.set_yticks(range(len(groups)), [group.label for group in groups], fontsize=8)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.margins(x=0.15)
    axes.set_xlabel(axis, fontsize=9)
    axes.xaxis.grid(True, color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.xaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="outside upper center", ncols=len(colours), frameon=False, fontsize=9)
    figure.supxlabel(note, fontsize=8, color="#666666")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_group(axes: plt.Axes, position: int, group: Group, colours: Mapping[str, str]) -> None:
    series = [name for name in colours if name in group.values]
    height = _GROUP_HEIGHT / max(len(series), 1)
    for number, name in enumerate(series):
        value, middle = group.values[name], position + (number - (len(series) - 1) / 2) * height
        axes.barh(middle, value, height * 0.9, color=colours[name])
        text = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        text += f", {group.notes[name]}" if name in group.notes else ""
        axes.annotate(text, (value, middle), (3, 0), textcoords="offset points", va="center", fontsize=7)

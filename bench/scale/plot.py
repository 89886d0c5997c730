"""Plot the time of a search by the number of the user's tools, on each route."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.scale.results import get_p50s
from bench.scale.routes import EXACT, IN_MEMORY, INDEXED

_COLOURS = {EXACT: "#c9c9c9", INDEXED: "#1f4e79", IN_MEMORY: "#a8b8a0"}
_LABELS = {EXACT: "exact, in Postgres", INDEXED: "indexes of a large user", IN_MEMORY: "in memory"}


def draw_scale(results: dict[str, Any], path: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(7.0, 4.0), layout="constrained")
    for route, colour in _COLOURS.items():
        if points := get_p50s(results, route):
            axes.plot(*zip(*sorted(points), strict=True), marker="o", color=colour, label=_LABELS[route])
    axes.set(xscale="log", yscale="log", xlabel="tools of the user", ylabel="p50 of a search in ms")
    axes.yaxis.grid(True, color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)

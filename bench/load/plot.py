"""Plot the CPU time of a request: of the references, of the peers, and of Toolscout now and before."""

from pathlib import Path
from typing import Any

from bench.bar_plot import Group, draw_bars

_COLOURS = {"others": "#c9c9c9", "Toolscout before": "#a8b8a0", "Toolscout": "#1f4e79"}
_OURS = "discover"
_LABELS = {16: "16 clients", 1: "1 client"}


def draw_load(results: dict[str, Any], before: dict[str, Any] | None, path: Path) -> None:
    """`before` is the result of another version, or None."""
    earlier = {(row["name"], row["clients"]): row for row in (before or {"rows": []})["rows"]}
    groups = []
    for row in results["rows"]:
        is_ours = row["name"].startswith(_OURS)
        if row["clients"] != 1 and "users" not in row["name"]:
            continue
        values = {"Toolscout" if is_ours else "others": row["cpu_ms"]}
        if is_ours and (old := earlier.get((row["name"], row["clients"]))) is not None:
            values["Toolscout before"] = old["cpu_ms"]
        groups.append(Group(f"{row['name']}, {_LABELS[row['clients']]}", values))
    colours = {name: colour for name, colour in _COLOURS.items() if earlier or name != "Toolscout before"}
    note = f"{results['tools']} tools a user unless said otherwise; median of {results['rounds']} rounds in one run"
    draw_bars(groups, colours, "CPU time of one request in ms, app and Postgres together", note, path)

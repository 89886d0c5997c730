"""Plot the victim's p95: quiet, and under each attack now and before."""

from pathlib import Path
from typing import Any

from bench.bar_plot import Group, draw_bars

_QUIET, _BEFORE, _NOW = "quiet", "attacked, before", "attacked"
_COLOURS = {_QUIET: "#c9c9c9", _BEFORE: "#c4a3a0", _NOW: "#1f4e79"}


def draw_fairness(results: dict[str, Any], before: dict[str, Any] | None, path: Path) -> None:
    """`before` is the result of another version, or None."""
    earlier = {each["name"]: each for each in (before or {"attacks": []})["attacks"]}
    groups = []
    for each in results["attacks"]:
        if each["attack_p95_ms"] is None:
            continue
        bars = {_NOW: each} | ({_BEFORE: earlier[each["name"]]} if each["name"] in earlier else {})
        values = {_QUIET: each["quiet_p95_ms"]} | {name: bar["attack_p95_ms"] for name, bar in bars.items()}
        failed = {name: sum(bar["errors"].values()) for name, bar in bars.items()}
        notes = {name: f"{count} of {bars[name]['requests']} failed" for name, count in failed.items() if count}
        groups.append(Group(each["name"], values, notes))
    colours = {name: colour for name, colour in _COLOURS.items() if earlier or name != _BEFORE}
    draw_bars(
        groups, colours, "p95 of another user's requests in ms", "service, attacker and victim on two cores", path
    )

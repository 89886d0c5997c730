"""The tables of a simulation and of its check, for a terminal and for the documentation."""

from collections.abc import Sequence

from bench.simulate.capacity import Capacity
from bench.simulate.check import FIGURES, Comparison, median_error
from bench.simulate.costs import Costs

_CAPACITY_HEAD = (
    "deployment",
    "messages/s",
    "active users",
    "users",
    "tools",
    "indexed/s",
    "in memory",
    "rows in Postgres",
    "p50, p95 ms",
    "bottleneck",
)
_COSTS_HEAD = ("processor time in ms", "process", "Postgres")
_CHECK_HEAD = ("questions", "replicas", "clients", "requests/s", "", "p50 ms", "", "p95 ms", "")


def list_cost_rows(costs: Costs) -> list[Sequence[str]]:
    embedding = costs.embedding
    rows = [
        ("message whose tools are in memory, without its embedding", costs.hit.loop_s, costs.hit.postgres_s),
        ("message that Postgres searches, without its embedding", costs.miss.loop_s, costs.miss.postgres_s),
        ("embedding of a message alone", embedding.alone_s, 0.0),
        (f"embedding of a message, {embedding.batch} at once", embedding.batched_s, 0.0),
        (f"loading the {costs.tools} tools of a user into memory", costs.load.loop_s, costs.load.postgres_s),
        ("indexing a new tool", costs.index.loop_s, costs.index.postgres_s),
    ]
    return [(name, *(f"{seconds * 1000:.1f}" if seconds else "–" for seconds in times)) for name, *times in rows]


def list_capacity_rows(capacities: Sequence[Capacity]) -> list[Sequence[str]]:
    return [
        (
            each.name,
            format_count(each.rate),
            format_count(each.active_users),
            format_count(each.users),
            format_count(each.tools),
            format_count(each.indexed),
            format_percent(each.in_memory),
            f"{each.postgres_gb:.0f} GB",
            f"{each.p50_ms:.0f}, {each.p95_ms:.0f}",
            f"{each.bottleneck} ({format_percent(each.use)})",
        )
        for each in capacities
    ]


def list_check_rows(comparisons: Sequence[Comparison]) -> list[Sequence[str]]:
    return [(each.name.split()[0], str(each.replicas), str(each.clients), *_list_figures(each)) for each in comparisons]


def _list_figures(comparison: Comparison) -> list[str]:
    """Return each figure as measured and predicted, and then how far the prediction is off."""
    cells = []
    for figure in FIGURES:
        measured, predicted = comparison.measured[figure], comparison.predicted[figure]
        cells += [f"{measured:.3g} → {predicted:.3g}", format_percent(comparison.get_error(figure), "+")]
    return cells


def describe_errors(comparisons: Sequence[Comparison]) -> str:
    errors = [format_percent(median_error(comparisons, figure, replicas=2)) for figure in FIGURES]
    return "median error for two replicas: {} of the rate, {} of the p50, {} of the p95".format(*errors)


def format_count(value: float) -> str:
    """Return the count with two significant digits: more would look exact."""
    rounded = float(f"{value:.1e}")
    return f"{rounded / 1e6:g} million" if rounded >= 1e6 else f"{rounded:,.0f}"


def format_percent(share: float, sign: str = "") -> str:
    return f"{share * 100:{sign}.0f} %"


def format_capacities(capacities: Sequence[Capacity]) -> str:
    return _format_text(_CAPACITY_HEAD, list_capacity_rows(capacities))


def format_costs(costs: Costs) -> str:
    return _format_text(_COSTS_HEAD, list_cost_rows(costs))


def format_check(comparisons: Sequence[Comparison]) -> str:
    return f"{_format_text(_CHECK_HEAD, list_check_rows(comparisons))}\n{describe_errors(comparisons)}"


def render_capacities(capacities: Sequence[Capacity]) -> str:
    return _render_markdown(_CAPACITY_HEAD, list_capacity_rows(capacities))


def render_costs(costs: Costs) -> str:
    return _render_markdown(_COSTS_HEAD, list_cost_rows(costs))


def render_check(comparisons: Sequence[Comparison]) -> str:
    return _render_markdown(_CHECK_HEAD, list_check_rows(comparisons))


def _format_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )


def _render_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))

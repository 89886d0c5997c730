"""The table of the attacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """What an attack did to the victim; a probe has no latencies, and its own figures instead."""

    name: str
    summary: str
    passed: bool
    quiet_p50_ms: float | None = None
    quiet_p95_ms: float | None = None
    attack_p50_ms: float | None = None
    attack_p95_ms: float | None = None
    requests: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    memory_growth_mb: float | None = None
    attacker: Mapping[str, int] = field(default_factory=dict)
    """How the attacker's requests were answered."""
    figures: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if self.quiet_p95_ms is None or self.attack_p95_ms is None:
            return None
        return self.attack_p95_ms / self.quiet_p95_ms


def format_table(results: Sequence[Result]) -> str:
    width = max(len(result.name) for result in results) + 2
    names = ["quiet p95", "attacked", "ratio", "errors", "RSS MB"]
    lines = [" " * width + "".join(f"{name:>11}" for name in names) + "  verdict, and what is held afterwards"]
    for result in results:
        errors = f"{sum(result.errors.values())}/{result.requests}" if result.requests else "–"
        figures = [_format(result.quiet_p95_ms), _format(result.attack_p95_ms), _format(result.ratio)]
        figures += [errors, _format(result.memory_growth_mb, "+.0f")]
        notes = ["ok" if result.passed else "FAILED", *_describe(result)]
        lines.append(f"{result.name:{width}}" + "".join(f"{each:>11}" for each in figures) + f"  {', '.join(notes)}")
    return "\n".join(lines)


def _format(value: float | None, form: str = ".1f") -> str:
    return "–" if value is None else f"{value:{form}}"


def _describe(result: Result) -> list[str]:
    errors = [f"{count} {name}" for name, count in result.errors.items()]
    held = [f"{value:.0f} {name} held" for name, value in result.held.items()]
    figures = [f"{name.replace('_', ' ')} {value}" for name, value in result.figures.items()]
    return [*errors, *held, *figures]


def to_json(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "summary": result.summary,
        "passed": result.passed,
        "quiet_p50_ms": _round(result.quiet_p50_ms),
        "quiet_p95_ms": _round(result.quiet_p95_ms),
        "attack_p50_ms": _round(result.attack_p50_ms),
        "attack_p95_ms": _round(result.attack_p95_ms),
        "ratio": _round(result.ratio),
        "requests": result.requests,
        "errors": dict(result.errors),
        "held": dict(result.held),
        "memory_growth_mb": _round(result.memory_growth_mb),
        "attacker": dict(result.attacker),
        "figures": dict(result.figures),
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)

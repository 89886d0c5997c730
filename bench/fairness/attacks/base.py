"""What an attack and a probe are."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from bench.fairness.stage import Stage
from bench.fairness.victim import Kind


def prepare_nothing(_stage: Stage) -> None:
    pass


@dataclass(frozen=True)
class Attack:
    """Something that one caller does to all others. A victim sends requests before, during and after it."""

    name: str
    summary: str
    run: Callable[[Stage], Awaitable[None]]
    """Attacks until it is cancelled; then it hangs up."""
    prepare: Callable[[Stage], None] = prepare_nothing
    """Registers what the attack needs."""
    settings: Mapping[str, str] = field(default_factory=dict)
    victim: Kind = "discover"
    module: str = "app"
    """The module that starts the service."""
    max_ratio: float = 2.0
    """How many times the quiet p95 of the victim its p95 may be."""
    max_growth_mb: float = 100.0
    """How much the memory of the service may grow."""
    must_refuse: bool = False
    """Whether some of the attacker's requests must be answered with 429."""


@dataclass(frozen=True)
class Finding:
    figures: Mapping[str, float | str]
    passed: bool


@dataclass(frozen=True)
class Probe:
    """Something that is tried without a victim."""

    name: str
    summary: str
    run: Callable[[Stage], Finding]
    settings: Mapping[str, str] = field(default_factory=dict)

"""The options of a simulation, and the deployments that they describe."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.settings import Settings
from bench.simulate.capacity import Capacity, Target, find_capacity
from bench.simulate.costs import Costs
from bench.simulate.deployments import Deployment, Workload

_DEFAULTS = Settings.model_fields


@dataclass(frozen=True)
class Scenario:
    """Each field is an option of the command line. The help texts say what they mean."""

    tools: int = 200
    new_share: float = 0.9
    messages_a_minute: float = 2.0
    active_share: float = 0.1
    changed_a_day: float = 0.01
    target_ms: float = 50.0
    cores: float = 8.0
    app_cores: float = 2.0
    processes: int = 10
    postgres_gb: float = 64.0
    snapshot_mb: float = float(_DEFAULTS["snapshot_mb"].default)
    large_snapshot_mb: float = 4_096.0
    pool_size: int = _DEFAULTS["database_pool_size"].default
    network_ms: float = 0.3
    citus_nodes: int = 4
    messages: int = 30_000
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what would divide by zero, or make no sense."""
        may_be_zero = {"new_share", "changed_a_day", "snapshot_mb", "large_snapshot_mb", "network_ms", "seed"}
        for name, value in asdict(self).items():
            if value < 0 or (value == 0 and name not in may_be_zero):
                raise ValueError(f"--{_option(name)} must not be {value:g}")
            if name.endswith("_share") and value > 1:
                raise ValueError(f"--{_option(name)} must be at most 1")

    @property
    def workload(self) -> Workload:
        return Workload(
            self.messages_a_minute,
            self.active_share,
            self.new_share,
            self.changed_a_day,
            _DEFAULTS["reindex_every_s"].default,
        )

    @property
    def target(self) -> Target:
        return Target(self.target_ms, self.messages, self.seed)

    def list_deployments(self) -> Sequence[Deployment]:
        apart: dict[str, Any] = {
            "postgres_cores": self.cores,
            "app_cores": self.app_cores,
            "postgres_gb": self.postgres_gb,
            "snapshot_mb": self.snapshot_mb,
            "pool_size": self.pool_size,
            "network_s": self.network_ms / 1_000,
        }
        together = apart | {"app_cores": None}
        large = apart | {"snapshot_mb": self.large_snapshot_mb, "by_user": True}
        count, machine = self.processes, max(1, int(self.cores))
        return [
            Deployment("one process and Postgres on one machine", 1, **together),
            Deployment(f"{machine} processes and Postgres on one machine", machine, **together),
            Deployment(f"{count} processes, Postgres apart", count, **apart),
            Deployment(f"{count} processes, a read replica", count, **apart, read_replicas=1),
            Deployment(f"{count} processes, by user, large snapshots", count, **large),
            Deployment(f"{2 * count} processes, by user, large snapshots", 2 * count, **large),
            Deployment(f"{2 * count} processes, a read replica", 2 * count, **apart, read_replicas=1),
            Deployment(
                f"{count} processes, Citus with {self.citus_nodes} nodes",
                count,
                **apart,
                citus_nodes=self.citus_nodes,
            ),
        ]


_HELP = {
    "tools": "tools of a user",
    "new_share": "share of messages that were not asked in the last five minutes, and need the embedder",
    "messages_a_minute": "messages that an active user sends a minute",
    "active_share": "share of all users who are active in the busiest minutes",
    "changed_a_day": "share of all tools that are new or change in a day",
    "target_ms": "95th percentile of the time of a message, beyond that of the embedder for one message",
    "cores": "cores of a machine of Postgres, and of the one machine that has everything",
    "app_cores": "cores of the machine of one process, if Postgres is apart",
    "processes": "processes of the larger deployments",
    "postgres_gb": "memory of a machine of Postgres, in GB",
    "snapshot_mb": "TOOLSCOUT_SNAPSHOT_MB",
    "large_snapshot_mb": "TOOLSCOUT_SNAPSHOT_MB of the deployments with large snapshots",
    "pool_size": "TOOLSCOUT_DATABASE_POOL_SIZE",
    "network_ms": "a round trip between two machines",
    "citus_nodes": "nodes of Citus that hold tools, beside the coordinator",
    "messages": "messages that are simulated for each rate that is tried",
    "seed": "of the random numbers",
}


def add_scenario_options(parser: argparse.ArgumentParser) -> None:
    for name, value in asdict(Scenario()).items():
        parser.add_argument(
            f"--{_option(name)}", type=type(value), default=value, help=f"{_HELP[name]} (default: %(default)s)"
        )


def read_scenario(options: argparse.Namespace) -> Scenario:
    return Scenario(**{name: getattr(options, name) for name in _HELP})


def _option(field: str) -> str:
    return field.replace("_", "-")


def find_capacities(scenario: Scenario, costs: Costs) -> list[Capacity]:
    return [
        find_capacity(deployment, costs, scenario.workload, scenario.target)
        for deployment in scenario.list_deployments()
    ]

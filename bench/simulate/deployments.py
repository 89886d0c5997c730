"""The deployments of the guide, as networks of stations."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.simulate.costs import Costs, Shares, Work
from bench.simulate.network import Kind, Machine, Network, Route, Station, Step

_MAX_SHARE_OF_A_USER = 0.75
"""Of the memory for tools, as in `app/search/snapshot_cache.py`: a user who takes more is searched in Postgres."""
_MAX_NOTED = 10_000
"""How many users without a snapshot a process remembers, in the same file."""
_LEAST_CORES = 0.01
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Workload:
    """What users do. Each active user sends `messages_a_minute`, in the busiest minutes of a day."""

    messages_a_minute: float
    active_share: float
    new_share: float
    changed_a_day: float
    reindex_every_s: float

    def count_active(self, rate: float) -> float:
        return rate * 60 / self.messages_a_minute

    def count_users(self, rate: float) -> float:
        return self.count_active(rate) / self.active_share


@dataclass(frozen=True)
class Deployment:
    name: str
    processes: int
    postgres_cores: float
    app_cores: float | None = None
    """Of the machine that each process has for itself. None: all processes run on the machine of Postgres."""
    postgres_gb: float = 0.0
    """Memory of each machine of Postgres that holds tools."""
    snapshot_mb: float = 0.0
    by_user: bool = False
    """Whether the load balancer sends a user to the same process each time."""
    read_replicas: int = 0
    citus_nodes: int = 0
    """Beside the coordinator. 0: one Postgres."""
    pool_size: int = 10
    network_s: float = 0.0
    """A round trip between two machines."""

    @property
    def nodes(self) -> int:
        return max(1, self.citus_nodes)

    @property
    def trip_s(self) -> float:
        return 0.0 if self.app_cores is None else self.network_s


def count_held_users(deployment: Deployment, costs: Costs) -> float:
    """Return how many users have their tools in the memory of a process."""
    memory = deployment.snapshot_mb * 1e6
    return memory / costs.snapshot_bytes if costs.snapshot_bytes <= memory * _MAX_SHARE_OF_A_USER else 0.0


def count_hits(deployment: Deployment, costs: Costs, workload: Workload, rate: float) -> float:
    """Return the share of messages whose tools are in memory.

    If all users are equally active, that is the share of the users whose tools fit, whatever gives way to what.
    """
    return min(1.0, count_held_users(deployment, costs) / _count_users_of_a_process(deployment, workload, rate))


def count_loads(deployment: Deployment, costs: Costs, workload: Workload, rate: float) -> float:
    """Return the share of misses that load the user's tools: every second one of a user, if the first is remembered.

    A process remembers so many users. Of the others who come meanwhile, each makes it forget one.
    """
    if not count_held_users(deployment, costs):
        return 0.0
    remembered = 1 - math.exp(-_MAX_NOTED / _count_users_of_a_process(deployment, workload, rate))
    return remembered / (1 + remembered)


def count_searched_users(deployment: Deployment, costs: Costs, workload: Workload, rate: float) -> float:
    """Return how many active users Postgres searches. Any process may get a user's message, unless it goes by user."""
    active, held = workload.count_active(rate), count_held_users(deployment, costs)
    if deployment.by_user:
        return max(0.0, active - held * deployment.processes)
    return active if active > held else 0.0


def _count_users_of_a_process(deployment: Deployment, workload: Workload, rate: float) -> float:
    return workload.count_active(rate) / (deployment.processes if deployment.by_user else 1)


def build_network(deployment: Deployment, costs: Costs, workload: Workload, rate: float) -> Network:
    """Return the network with the mix of messages that it gets at this rate."""
    return _Builder(deployment, costs, workload, rate).build()


@dataclass
class _Builder:
    deployment: Deployment
    costs: Costs
    workload: Workload
    rate: float
    machines: list[Machine] = field(default_factory=list)
    stations: list[Station] = field(default_factory=list)

    def build(self) -> Network:
        hits, new = count_hits(self.deployment, self.costs, self.workload, self.rate), self.workload.new_share
        self._add_postgres()
        processes = [self._add_process(number) for number in range(self.deployment.processes)]
        misses = 1 - hits
        shares = {(True, True): hits * new, (True, False): hits * (1 - new)}
        shares |= {(False, True): misses * new, (False, False): misses * (1 - new)}
        kinds = [
            Kind(
                f"{'in memory' if is_hit else 'in Postgres'}, {'new' if is_new else 'cached'}",
                share,
                [route for each in processes for route in each.list_routes(is_hit=is_hit, is_new=is_new)],
            )
            for (is_hit, is_new), share in shares.items()
            if share
        ]
        if loads := count_loads(self.deployment, self.costs, self.workload, self.rate) * misses:
            routes = [route for each in processes for route in each.list_load_routes()]
            kinds.append(Kind("load", loads, routes, is_background=True))
        return Network(self.machines, self.stations, kinds, self.costs.cv)

    def _add_postgres(self) -> None:
        deployment, index = self.deployment, self._count_index_work()
        app_s = index.loop_s if deployment.app_cores is None else 0.0
        shares = self.costs.citus.index
        primary_s = index.postgres_s * (shares.coordinator if deployment.citus_nodes else 1) + app_s
        name = "cores of the machine" if deployment.app_cores is None else "cores of Postgres"
        self.primary = self._add_machine("cores of the coordinator" if deployment.citus_nodes else name, primary_s)
        self.readers = [
            self._add_machine(f"cores of read replica {number + 1}", index.postgres_s)  # it repeats what is written
            for number in range(deployment.read_replicas)
        ]
        self.nodes = [
            self._add_machine(f"cores of node {number + 1}", index.postgres_s * shares.nodes / deployment.nodes)
            for number in range(deployment.citus_nodes)
        ]

    def _add_machine(self, name: str, taken: float) -> int:
        self.machines.append(Machine(name, max(_LEAST_CORES, self.deployment.postgres_cores - taken)))
        return len(self.machines) - 1

    def _count_index_work(self) -> Work:
        """Return how many cores indexing takes, of the processes and of Postgres. It has the lowest priority, so that
        it makes machines smaller, and no message wait for a single tool."""
        tools = self.workload.count_users(self.rate) * self.costs.tools
        changed = tools * self.workload.changed_a_day / _DAY_S
        unchanged = tools / self.workload.reindex_every_s if self.workload.reindex_every_s else 0.0
        return Work(
            changed * self.costs.index.loop_s + unchanged * self.costs.unchanged_s,
            changed * self.costs.index.postgres_s,
        )

    def _add_process(self, number: int) -> "_Process":
        deployment = self.deployment
        machine = self.primary
        if deployment.app_cores is not None:
            taken = self._count_index_work().loop_s / deployment.processes
            cores = max(_LEAST_CORES, deployment.app_cores - taken)
            self.machines.append(Machine(f"cores of process {number + 1}", cores))
            machine = len(self.machines) - 1
        loop = self._add_station(f"event loop {number + 1}", machine)
        batch = self.costs.embedding.batch
        embedder = self._add_station(f"embedder {number + 1}", machine, batch=batch)
        pools = [
            self._add_station(f"connections {number + 1} to {self.machines[each].name}", each, deployment.pool_size)
            for each in (self.primary, *self.readers, *self.nodes)
        ]
        others = pools[1:]
        return _Process(self, loop, embedder, pools[0], others[: len(self.readers)], others[len(self.readers) :])

    def _add_station(self, name: str, machine: int, servers: int = 1, batch: int = 1) -> int:
        self.stations.append(Station(name, machine, servers, batch))
        return len(self.stations) - 1


@dataclass(frozen=True)
class _Process:
    builder: _Builder
    loop: int
    embedder: int
    primary: int
    readers: Sequence[int]
    nodes: Sequence[int]

    def list_routes(self, *, is_hit: bool, is_new: bool) -> Iterator[Route]:
        """Yield the ways of a message. Half of the loop's work comes before the answer of Postgres, half after."""
        costs = self.builder.costs
        work, trips = (costs.hit, costs.hit_trips) if is_hit else (costs.miss, costs.miss_trips)
        loop, embed = (
            Step(self.loop, work.loop_s / 2),
            Step(self.embedder, costs.embedding.fixed_s, costs.embedding.each_s),
        )
        # of a message that Postgres searches, a read replica answers all but the authentication
        searching_s = max(0.0, work.postgres_s - costs.hit.postgres_s)
        shares = costs.citus.hit if is_hit else costs.citus.miss
        for queries in self._list_queries(costs.hit.postgres_s, searching_s, trips, shares):
            yield [loop, *queries, *([embed] if is_new else []), loop]

    def list_load_routes(self) -> Iterator[Route]:
        load, shares = self.builder.costs.load, self.builder.costs.citus.miss
        for queries in self._list_queries(0.0, load.postgres_s, 1, shares):
            yield [*queries, Step(self.loop, load.loop_s)]

    def _list_queries(
        self, primary_s: float, anywhere_s: float, trips: int, shares: Shares
    ) -> Iterator[Sequence[Step]]:
        """Yield the ways through Postgres with work that only the primary can do, and work that a read replica can."""
        deployment = self.builder.deployment
        delay_s, whole_s = trips * deployment.trip_s, primary_s + anywhere_s
        if self.readers and anywhere_s:
            first = [Step(self.primary, primary_s, delay_s=delay_s)] if primary_s else []
            for reader in self.readers:
                yield [*first, Step(reader, anywhere_s, delay_s=0.0 if first else delay_s)]
        elif self.nodes:
            coordinate = Step(self.primary, whole_s * shares.coordinator, delay_s=delay_s)
            for node in self.nodes:
                yield [coordinate, Step(node, whole_s * shares.nodes, delay_s=delay_s)]
        else:
            yield [Step(self.primary, whole_s, delay_s=delay_s)]

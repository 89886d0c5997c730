"""A discrete-event simulation of messages that pass through processes on machines.

A *machine* has cores, which all that runs on it share equally, each at most one. A *station* is something that works at
a limited number of messages at a time and lets the others wait in the order of their arrival: an event loop (one), the
embedder's thread (one batch), or the connections of a process (as many as its pool has; each is a process of Postgres,
and runs on the machine of Postgres). A message takes one of the *routes* of its kind from station to station.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_WARM_UP = 0.1
"""The share of the messages that come before the measurement."""
_DRAWN_AT_ONCE = 4_096


@dataclass(frozen=True)
class Machine:
    name: str
    cores: float
    others: float = 0.0
    """How many other programs want to run on it, on average. Their number changes at random, and quickly (Poisson)."""

    def get_speed(self, wanting: int) -> float:
        """Return how much of a core each of so many gets."""
        chance = speed = total = 0.0
        for others in range(1 + int(self.others + 10 * math.sqrt(self.others))):
            chance = chance * self.others / others if others else 1.0
            speed += chance * min(1.0, self.cores / max(1, wanting + others))
            total += chance
        return speed / total


@dataclass(frozen=True)
class Station:
    name: str
    machine: int
    servers: int = 1
    batch: int = 1
    """How many waiting messages are worked at together."""


@dataclass(frozen=True)
class Step:
    """Work at a station after a delay, such as that of the network. `each_s` is added for each message of a batch."""

    station: int
    work_s: float
    each_s: float = 0.0
    delay_s: float = 0.0


Route = Sequence[Step]


@dataclass(frozen=True)
class Kind:
    """How many of these come for each message, by any of the routes. Background work comes beside the messages."""

    name: str
    share: float
    routes: Sequence[Route]
    is_background: bool = False


@dataclass(frozen=True)
class Network:
    machines: Sequence[Machine]
    stations: Sequence[Station]
    kinds: Sequence[Kind]
    cv: float = 0.0
    """The coefficient of variation of the work of a message, which has a gamma distribution; 0: all are equal."""

    def count_use(self, rate: float) -> dict[str, float]:
        """Return how busy each station and each machine is with so many messages a second: 1 is all of it.

        A full batch is the least that a station can do. More than 1 cannot be carried, however long messages wait.
        """
        stations, machines = [0.0] * len(self.stations), [0.0] * len(self.machines)
        for kind in self.kinds:
            for route in kind.routes:
                for step in route:
                    station = self.stations[step.station]
                    busy = rate * kind.share / len(kind.routes) * (step.work_s / station.batch + step.each_s)
                    stations[step.station] += busy / station.servers
                    machines[station.machine] += busy / self.machines[station.machine].cores
        return {each.name: use for each, use in zip(self.stations, stations, strict=True)} | {
            each.name: use for each, use in zip(self.machines, machines, strict=True)
        }


@dataclass(frozen=True)
class Simulated:
    """What the messages after the warm-up met."""

    rate: float
    """Messages a second that were answered, without background work."""
    times_s: Floats
    machine_use: dict[str, float]
    """The share of the cores of each machine that was busy."""

    def quantile_ms(self, share: float) -> float:
        return float(np.quantile(self.times_s, share)) * 1000

    @property
    def mean_ms(self) -> float:
        return float(self.times_s.mean()) * 1000


def simulate_open(network: Network, rate: float, messages: int, seed: int = 1) -> Simulated:
    """Let messages arrive at random (Poisson), so many a second, whether or not earlier ones were answered."""
    return _Run(network, seed).run_open(rate, messages)


def simulate_closed(network: Network, clients: int, messages: int, seed: int = 1) -> Simulated:
    """Let each client send its next message when its last one is answered. Client n takes the n-th route."""
    return _Run(network, seed).run_closed(clients, messages)


@dataclass(eq=False)
class _Message:
    kind: Kind
    route: Route
    started: float
    factor: float
    """How much more work it is than the mean one."""
    client: int = -1
    position: int = 0


@dataclass(eq=False)
class _Job:
    """What a server of a station works at: one message, or a batch."""

    station: "_Station"
    messages: Sequence[_Message]


@dataclass(eq=False)
class _Machine:
    """Shares its cores. All jobs advance equally, so that one clock of their common progress is enough."""

    machine: Machine
    running: list[tuple[float, int, _Job]] = field(default_factory=list)
    progress: float = 0.0
    updated: float = 0.0
    worked: float = 0.0
    version: int = 0
    speeds: dict[int, float] = field(default_factory=dict)

    def advance(self, now: float) -> None:
        done = (now - self.updated) * self._speed()
        self.progress += done
        self.worked += done * len(self.running)
        self.updated = now

    def next_end(self) -> float:
        return self.updated + max(self.running[0][0] - self.progress, 0.0) / self._speed()

    def _speed(self) -> float:
        wanting = len(self.running)
        if wanting not in self.speeds:
            self.speeds[wanting] = self.machine.get_speed(wanting)
        return self.speeds[wanting]


@dataclass(eq=False)
class _Station:
    machine: _Machine
    free: int
    batch: int
    waiting: deque[_Message] = field(default_factory=deque)


class _Run:
    def __init__(self, network: Network, seed: int) -> None:
        self._network = network
        self._random = np.random.default_rng(seed)
        self._machines = [_Machine(each) for each in network.machines]
        self._stations = [_Station(self._machines[each.machine], each.servers, each.batch) for each in network.stations]
        self._events: list[tuple[float, int, _Machine | _Message, int]] = []
        self._numbers = itertools.count()
        self._factors = self._draw_factors()
        self._answered: list[tuple[float, float]] = []
        """When each message was answered, and how long it took."""

    def run_open(self, rate: float, messages: int) -> Simulated:
        kinds = self._network.kinds
        all_rate = rate * sum(kind.share for kind in kinds)
        arrivals = np.cumsum(self._random.exponential(1 / all_rate, messages))
        for kind, number, arrival in zip(*self._draw_routes(messages), arrivals.tolist(), strict=True):
            route = kind.routes[number % len(kind.routes)]
            self._schedule(arrival, _Message(kind, route, arrival, next(self._factors)))
        self._run(until=math.inf)
        return self._summarize(float(arrivals[int(messages * _WARM_UP)]), float(arrivals[-1]))

    def run_closed(self, clients: int, messages: int) -> Simulated:
        [kind] = self._network.kinds
        for client in range(clients):
            route = kind.routes[client % len(kind.routes)]
            self._schedule(0.0, _Message(kind, route, 0.0, next(self._factors), client))
        self._run(until=messages)
        ends = [end for end, _ in self._answered]
        return self._summarize(ends[int(len(ends) * _WARM_UP)], ends[-1])

    def _draw_routes(self, messages: int) -> tuple[list[Kind], list[int]]:
        kinds = self._network.kinds
        shares = np.array([kind.share for kind in kinds])
        drawn = self._random.choice(len(kinds), messages, p=shares / shares.sum())
        numbers = self._random.integers(1 << 30, size=messages)
        return [kinds[number] for number in drawn], numbers.tolist()

    def _draw_factors(self) -> Iterator[float]:
        shape = None if self._network.cv == 0 else self._network.cv**-2
        while True:
            if shape is None:
                yield 1.0
            else:
                yield from (self._random.standard_gamma(shape, _DRAWN_AT_ONCE) / shape).tolist()

    def _schedule(self, when: float, what: _Machine | _Message, version: int = 0) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what, version))

    def _run(self, until: float) -> None:
        """Work until there are no events, or so many messages are answered."""
        while self._events and len(self._answered) < until:
            now, _, what, version = heapq.heappop(self._events)
            if isinstance(what, _Message):
                self._arrive(what, now)
            elif what.version == version:
                self._finish_job(what, now)

    def _arrive(self, message: _Message, now: float) -> None:
        station = self._stations[message.route[message.position].station]
        station.waiting.append(message)
        self._start_jobs(station, now)

    def _start_jobs(self, station: _Station, now: float) -> None:
        if not (station.free and station.waiting):
            return
        machine = station.machine
        machine.advance(now)
        while station.free and station.waiting:
            count = min(station.batch, len(station.waiting))
            messages = [station.waiting.popleft() for _ in range(count)]
            work = messages[0].route[messages[0].position].work_s * messages[0].factor
            work += sum(each.route[each.position].each_s * each.factor for each in messages)
            station.free -= 1
            heapq.heappush(machine.running, (machine.progress + work, next(self._numbers), _Job(station, messages)))
        self._schedule_end(machine)

    def _finish_job(self, machine: _Machine, now: float) -> None:
        machine.advance(now)
        _, _, job = heapq.heappop(machine.running)
        job.station.free += 1
        self._start_jobs(job.station, now)
        self._schedule_end(machine)
        for message in job.messages:
            self._go_on(message, now)

    def _schedule_end(self, machine: _Machine) -> None:
        machine.version += 1
        if machine.running:
            self._schedule(machine.next_end(), machine, machine.version)

    def _go_on(self, message: _Message, now: float) -> None:
        message.position += 1
        if message.position == len(message.route):
            self._end(message, now)
        elif delay := message.route[message.position].delay_s:
            self._schedule(now + delay, message)
        else:
            self._arrive(message, now)

    def _end(self, message: _Message, now: float) -> None:
        if not message.kind.is_background:
            self._answered.append((now, now - message.started))
        if message.client >= 0:
            self._schedule(now, _Message(message.kind, message.route, now, next(self._factors), message.client))

    def _summarize(self, start: float, end: float) -> Simulated:
        ended = np.array(self._answered)
        times = ended[(ended[:, 0] - ended[:, 1] >= start) & (ended[:, 0] >= start), 1]
        seconds = end - start
        in_time = np.count_nonzero((ended[:, 0] > start) & (ended[:, 0] <= end))
        use = {
            each.machine.name: each.worked / (each.machine.cores * max(each.updated, end)) for each in self._machines
        }
        return Simulated(float(in_time / seconds), times, use)

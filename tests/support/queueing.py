"""Queues whose waiting times have a formula, which a simulation must reproduce."""

import math


def erlang_c(servers: int, load: float) -> float:
    """Return the share of requests that wait in a queue with Poisson arrivals and exponential times (M/M/c).

    `load` is the number of servers that are busy on average: the arrivals a second times the seconds of one.
    """
    if load >= servers:
        return 1.0
    blocked = 1.0  # Erlang B, by its recursion, which does not overflow
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def mean_response_mmc(servers: int, rate: float, service_s: float) -> float:
    """Return the mean time in an M/M/c queue, with its own service."""
    load = rate * service_s
    if load >= servers:
        return math.inf
    return service_s * (1 + erlang_c(servers, load) / (servers - load))


def mean_response_mg1(rate: float, service_s: float, cv: float) -> float:
    """Return the mean time in a queue of one server in the order of arrival (M/G/1), by Pollaczek and Khinchine.

    `cv` is the coefficient of variation of the service times.
    """
    busy = rate * service_s
    if busy >= 1:
        return math.inf
    return service_s * (1 + busy / (1 - busy) * (1 + cv**2) / 2)


def mean_response_ps(rate: float, service_s: float) -> float:
    """Return the mean time on a core that all share equally (M/G/1-PS): only the mean of the service times matters."""
    busy = rate * service_s
    return math.inf if busy >= 1 else service_s / (1 - busy)

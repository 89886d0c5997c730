"""The simulation of queues, against formulas that are exact."""

import math

import numpy as np
import pytest

from bench.simulate.network import Kind, Machine, Network, Simulated, Station, Step, simulate_closed, simulate_open
from tests.support.queueing import erlang_c, mean_response_mg1, mean_response_mmc, mean_response_ps

SERVICE_S = 0.01


def make_queue(servers: int, cores: float, cv: float, others: float = 0.0) -> Network:
    station = Station("server", 0, servers)
    return Network([Machine("machine", cores, others)], [station], [Kind("any", 1.0, [[Step(0, SERVICE_S)]])], cv)


def test_the_formula_of_erlang_has_its_known_values() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(3, 2.0) == pytest.approx(4 / 9)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=1e-4)
    assert 0 < erlang_c(2_000, 1_900.0) < erlang_c(2_000, 1_990.0) < 1
    assert erlang_c(2, 2.0) == 1.0
    assert math.isinf(mean_response_mmc(2, 200, SERVICE_S))
    assert math.isinf(mean_response_mg1(100, SERVICE_S, 1.0))
    assert math.isinf(mean_response_ps(100, SERVICE_S))


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.7), (4, 0.8)])
def test_the_simulation_reproduces_erlangs_formula(servers: int, busy: float) -> None:
    rate = busy * servers / SERVICE_S
    simulated = simulate_open(make_queue(servers, servers, cv=1.0), rate, 40_000)
    assert simulated.mean_ms == pytest.approx(mean_response_mmc(servers, rate, SERVICE_S) * 1000, rel=0.05)
    assert simulated.machine_use["machine"] == pytest.approx(busy, rel=0.03)


@pytest.mark.parametrize(
    ("servers", "cv", "expected_s"),
    [
        (1, 0.0, mean_response_mg1(70, SERVICE_S, 0.0)),
        (1, 0.5, mean_response_mg1(70, SERVICE_S, 0.5)),
        (1_000, 0.5, mean_response_ps(70, SERVICE_S)),
    ],
    ids=["in order, all equal", "in order, varied", "all share a core"],
)
def test_the_simulation_reproduces_the_formulas_of_one_core(servers: int, cv: float, expected_s: float) -> None:
    simulated = simulate_open(make_queue(servers, 1, cv), 70, 30_000)
    assert simulated.mean_ms == pytest.approx(expected_s * 1000, rel=0.05)


def test_the_same_seed_gives_the_same_times_and_another_one_does_not() -> None:
    network = make_queue(2, 2, cv=1.0)
    first, again, other = (simulate_open(network, 100, 500, seed).times_s for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_clients_that_wait_for_answers_keep_one_server_busy() -> None:
    simulated = simulate_closed(make_queue(1, 1, cv=0.0), clients=4, messages=400)
    assert simulated.rate == pytest.approx(1 / SERVICE_S, rel=0.01)
    assert simulated.mean_ms == pytest.approx(4 * SERVICE_S * 1000, rel=0.01)


def answer_with_embedder(batch: int) -> Simulated:
    machine, station = Machine("machine", 1), Station("embedder", 0, batch=batch)
    kind = Kind("any", 1.0, [[Step(0, work_s=0.008, each_s=0.002)]])
    return simulate_closed(Network([machine], [station], [kind]), clients=8, messages=400)


def test_messages_of_a_batch_share_what_does_not_depend_on_their_number() -> None:
    assert answer_with_embedder(batch=1).rate == pytest.approx(1 / 0.010, rel=0.02)
    assert answer_with_embedder(batch=4).rate == pytest.approx(4 / 0.016, rel=0.02)


def test_work_waits_for_a_free_connection_even_if_cores_are_idle() -> None:
    few, enough = (simulate_closed(make_queue(servers, 8, 0.0), 8, 400).rate for servers in (2, 8))
    assert few == pytest.approx(2 / SERVICE_S, rel=0.02)
    assert enough == pytest.approx(8 / SERVICE_S, rel=0.02)


def test_other_programs_slow_a_machine_down() -> None:
    quiet = Machine("quiet", 2)
    assert [quiet.get_speed(wanting) for wanting in (1, 2, 4)] == [1.0, 1.0, 0.5]
    speeds = [Machine("busy", 2, others).get_speed(1) for others in (0.0, 0.5, 3.0)]
    assert speeds == sorted(speeds, reverse=True)
    assert 0.4 < speeds[-1] < 0.7
    slow, fast = (simulate_closed(make_queue(1, 2, 0.0, others), 1, 100).rate for others in (3.0, 0.0))
    assert slow == pytest.approx(fast * speeds[-1], rel=0.02)


def test_background_work_takes_cores_and_is_not_counted_as_a_message() -> None:
    step = Step(0, SERVICE_S)
    kinds = [Kind("message", 1.0, [[step]]), Kind("load", 0.5, [[step]], is_background=True)]
    network = Network([Machine("machine", 1)], [Station("server", 0)], kinds)
    assert network.count_use(40)["machine"] == pytest.approx(0.6)
    simulated = simulate_open(network, 40, 6_000)
    assert simulated.rate == pytest.approx(40, rel=0.06)
    assert simulated.machine_use["machine"] == pytest.approx(0.6, rel=0.06)


def test_a_delay_takes_time_and_no_core() -> None:
    route = [Step(0, SERVICE_S), Step(0, SERVICE_S, delay_s=0.1)]
    network = Network([Machine("machine", 1)], [Station("server", 0)], [Kind("any", 1.0, [route])])
    simulated = simulate_open(network, 1, 200)
    assert simulated.quantile_ms(0.5) == pytest.approx(120, rel=0.01)
    assert network.count_use(1)["machine"] == pytest.approx(0.02)

"""The feedback simulation: of two equal tools, the successful one comes first, within the bounds of the prior."""

from app.container import Container
from app.evaluation.labelled_messages import LabelledMessage
from app.usage.priors import MAX_PRIOR, MIN_OUTCOMES
from bench.relevance.feedback import format_simulation, simulate
from bench.relevance.sets import BenchSet, BenchTool

FORECAST = {"name": "get_forecast", "description": "The weather forecast for a city."}
TOOLS = [BenchTool(f"{server}/get_forecast", server, FORECAST) for server in ("north", "south")]
MESSAGE = "weather forecast for the city"


def make_set(count: int) -> BenchSet:
    """Make a set with `count` messages in each half; the relevant tool ranks second without priors."""
    return BenchSet(
        "twins", TOOLS, [LabelledMessage(str(n), ["south/get_forecast"], MESSAGE) for n in range(2 * count)]
    )


async def test_successes_of_one_half_improve_the_other_within_bounds(container: Container) -> None:
    simulation = await simulate(container, make_set(MIN_OUTCOMES))
    assert (simulation.successes, simulation.measured) == (MIN_OUTCOMES, MIN_OUTCOMES)
    assert (simulation.without.hit_at_1, simulation.with_priors.hit_at_1) == (0, 1)
    assert 0 < simulation.largest_change <= MAX_PRIOR + 1e-6
    assert simulation.within_bounds
    assert simulation.moved == MIN_OUTCOMES
    assert f"within {MAX_PRIOR:g}" in format_simulation(simulation)


async def test_too_few_successes_change_nothing(container: Container) -> None:
    simulation = await simulate(container, make_set(MIN_OUTCOMES - 1))
    assert simulation.without == simulation.with_priors
    assert (simulation.moved, simulation.largest_change) == (0, 0)

"""The simulation of feedback: of two tools that fit alike, the one that went well comes first, by what it may gain."""

from app.container import Container
from app.evaluation.labelled import LabelledMessage
from app.usage.priors import MAX_PRIOR, MIN_OUTCOMES
from bench.relevance.feedback import shown, simulated
from bench.relevance.sets import BenchSet, BenchTool

FORECAST = {"name": "get_forecast", "description": "The weather forecast for a city."}
TOOLS = [BenchTool(f"{server}/get_forecast", server, FORECAST) for server in ("north", "south")]
SAME = "weather forecast for the city"


def make_twins(count: int) -> BenchSet:
    """Two of each, one for either half; the right tool is the one that stands second when nothing is known."""
    return BenchSet("twins", TOOLS, [LabelledMessage(str(n), ["south/get_forecast"], SAME) for n in range(2 * count)])


async def test_successes_of_one_half_help_the_other_within_bounds(container: Container) -> None:
    simulation = await simulated(container, make_twins(MIN_OUTCOMES))
    assert (simulation.successes, simulation.measured) == (MIN_OUTCOMES, MIN_OUTCOMES)
    assert (simulation.without.hit_at_1, simulation.with_priors.hit_at_1) == (0, 1)
    assert 0 < simulation.largest_change <= MAX_PRIOR + 1e-6
    assert simulation.within_bounds
    assert simulation.moved == MIN_OUTCOMES
    assert f"within {MAX_PRIOR:g}" in shown(simulation)


async def test_too_few_successes_change_nothing(container: Container) -> None:
    simulation = await simulated(container, make_twins(MIN_OUTCOMES - 1))
    assert simulation.without == simulation.with_priors
    assert (simulation.moved, simulation.largest_change) == (0, 0)

"""The simulation of learning: lived messages help other messages of the same user, and only those."""

from app.container import Container
from app.evaluation.labelled_messages import LabelledMessage
from bench.relevance.feedback import Simulation, format_simulation, make_life, simulate
from bench.relevance.sets import BenchSet, BenchTool

TOOLS = [
    BenchTool("a", "north", {"name": "kb_ops_17", "description": "Proxy for backend 17."}),
    BenchTool("b", "north", {"name": "create_ticket", "description": "Open a ticket for the support team."}),
    BenchTool("c", "south", {"name": "get_forecast", "description": "Weather forecast for a city."}),
    BenchTool("d", "south", {"name": "list_backends", "description": "All backends and their proxies."}),
]
VACATION = [
    "days off that proxy 17 says I have left",
    "ask backend 17 for my vacation balance",
    "backend 17: leftover holidays please",
    "how much annual leave does backend 17 show",
    "proxy 17, vacation that I have not taken yet",
    "holidays left according to backend 17",
]
SMALL_TALK = ["good morning", "you are funny"]


def make_set() -> BenchSet:
    needing = [LabelledMessage(f"v{n}", ["a"], text) for n, text in enumerate(VACATION)]
    return BenchSet("vacation", TOOLS, [*needing, *(LabelledMessage(text, [], text) for text in SMALL_TALK)])


def read_hits(simulation: Simulation, stage: int) -> float:
    return sum(each.hit_at_1 for each in simulation.stages[stage].scores)


def test_a_user_lives_through_one_half_of_the_messages_and_never_sends_the_other() -> None:
    life = make_life(make_set(), seed=1)
    assert life is not None
    lived, other = ({item.id for item in items} for items in (life.lived, life.other))
    assert (len(lived), len(other), lived & other) == (3, 3, set())
    assert {item.id for item in life.toolless} == set(SMALL_TALK)
    assert make_life(BenchSet("empty", TOOLS, []), seed=1) is None


async def test_lived_messages_become_examples_and_the_others_are_measured(container: Container) -> None:
    simulation = await simulate(container, make_set(), users=2, stages=(3, 6), wrong=0.0)
    assert [simulation.stages[stage].examples for stage in (0, 3, 6)] == [0, 6, 6]
    assert read_hits(simulation, 6) >= read_hits(simulation, 0)
    assert [len(each.scores) for each in simulation.stages.values()] == [6, 6, 6]
    table = format_simulation(simulation)
    assert "vacation: 2 users, 6 other messages, 4 that need no tool" in table
    assert len(table.splitlines()) == 5


async def test_wrong_feedback_teaches_a_wrong_tool(container: Container) -> None:
    right, wrong = [await simulate(container, make_set(), users=1, stages=(3,), wrong=share) for share in (0.0, 1.0)]
    assert read_hits(wrong, 3) <= read_hits(right, 3)
    assert wrong.stages[3].examples > 0

"""Several rankings in one answer."""

import pytest

from app.catalog.definitions import ToolDefinitionView
from app.discovery.selection import SelectedTool, take_turns


def found(name: str, score: float | None = None) -> SelectedTool:
    offer = ToolDefinitionView(
        tool_id=name,
        server_id="s",
        server_name="files",
        name=name,
        title=None,
        description="",
        input_schema="{}",
        output_schema=None,
        annotations=None,
        tokens=1,
        has_shared_name=False,
    )
    return SelectedTool(offer, "semantic" if score is not None else "fallback", score, score)


def ranking(**scores: float) -> list[SelectedTool]:
    return [found(name, score) for name, score in scores.items()]


def names(tools: list[SelectedTool]) -> list[str]:
    return [tool.offer.tool_id for tool in tools]


STRONG = ranking(a=1.0, b=0.9, c=0.8)
WEAK = ranking(x=0.3, y=0.2, z=0.1)


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, ""), (1, "a"), (2, "a x"), (3, "a b x"), (4, "a b x y"), (6, "a b c x y z"), (50, "a b c x y z")],
)
def test_each_ranking_gives_its_best_before_any_gives_its_second(most: int, expected: str) -> None:
    assert names(take_turns([STRONG, WEAK], most)) == expected.split()


def test_what_was_taken_is_ordered_by_score_whichever_ranking_it_is_of() -> None:
    assert names(take_turns([WEAK, STRONG], 4)) == ["a", "b", "x", "y"]


def test_a_tool_that_several_rankings_hold_is_taken_once_and_leaves_its_place_to_the_next() -> None:
    assert names(take_turns([ranking(a=0.9, b=0.8), ranking(a=0.9, c=0.7)], 3)) == ["a", "b", "c"]
    assert names(take_turns([ranking(a=0.9), ranking(a=0.9), ranking(a=0.9)], 3)) == ["a"]


def test_a_tool_that_several_rankings_hold_is_shown_as_the_one_shows_it_that_likes_it_best() -> None:
    taken = take_turns([ranking(a=0.9, b=0.85, c=0.8), ranking(c=0.3)], 3)
    assert [(tool.offer.tool_id, tool.score) for tool in taken] == [("a", 0.9), ("b", 0.85), ("c", 0.8)]


def test_a_single_ranking_keeps_its_order_and_its_length() -> None:
    assert names(take_turns([STRONG], 2)) == ["a", "b"]
    assert names(take_turns([STRONG], 3)) == ["a", "b", "c"]


def test_rankings_of_unequal_length_are_taken_to_their_ends() -> None:
    assert names(take_turns([ranking(a=0.9), [], ranking(b=0.8, c=0.7, d=0.6)], 10)) == ["a", "b", "c", "d"]
    assert take_turns([[], []], 5) == []
    assert take_turns([], 5) == []


def test_tools_without_a_score_come_last_in_the_order_that_they_came_in() -> None:
    assert names(take_turns([[found("p"), found("q")], ranking(a=0.1)], 3)) == ["a", "p", "q"]

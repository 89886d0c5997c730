"""Selection of the tools of an answer, and interleaving of several rankings."""

from collections.abc import Sequence

import pytest

from app.catalog.definitions import ToolDefinitionView
from app.discovery.selection import (
    Omission,
    SelectedTool,
    ToolSelection,
    interleave_selections,
    select_tools,
    summarize_omitted,
)


def make_tool(name: str, score: float | None = None, tokens: int = 1) -> SelectedTool:
    definition = ToolDefinitionView(
        tool_id=name,
        server_id="s",
        server_name="files",
        name=name,
        title=None,
        description="",
        input_schema="{}",
        output_schema=None,
        annotations=None,
        tokens=tokens,
        has_shared_name=False,
    )
    return SelectedTool(definition, "semantic" if score is not None else "fallback", score, score)


def make_ranking(**scores: float) -> list[SelectedTool]:
    return [make_tool(name, score) for name, score in scores.items()]


def names(tools: Sequence[SelectedTool]) -> list[str]:
    return [tool.definition.tool_id for tool in tools]


STRONG = make_ranking(a=1.0, b=0.9, c=0.8)
WEAK = make_ranking(x=0.3, y=0.2, z=0.1)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, ""), (1, "a"), (2, "a x"), (3, "a b x"), (4, "a b x y"), (6, "a b c x y z"), (50, "a b c x y z")],
)
def test_the_best_of_each_ranking_comes_before_the_second_of_any(limit: int, expected: str) -> None:
    assert names(interleave_selections([STRONG, WEAK], limit)) == expected.split()


def test_the_result_is_sorted_by_score() -> None:
    assert names(interleave_selections([WEAK, STRONG], 4)) == ["a", "b", "x", "y"]


def test_a_tool_in_several_rankings_is_taken_once_and_makes_room_for_the_next() -> None:
    assert names(interleave_selections([make_ranking(a=0.9, b=0.8), make_ranking(a=0.9, c=0.7)], 3)) == ["a", "b", "c"]
    assert names(interleave_selections([make_ranking(a=0.9), make_ranking(a=0.9), make_ranking(a=0.9)], 3)) == ["a"]


def test_a_tool_in_several_rankings_has_its_highest_score() -> None:
    taken = interleave_selections([make_ranking(a=0.9, b=0.85, c=0.8), make_ranking(c=0.3)], 3)
    assert [(tool.definition.tool_id, tool.score) for tool in taken] == [("a", 0.9), ("b", 0.85), ("c", 0.8)]


def test_a_single_ranking_keeps_its_order_and_its_length() -> None:
    assert names(interleave_selections([STRONG], 2)) == ["a", "b"]
    assert names(interleave_selections([STRONG], 3)) == ["a", "b", "c"]


def test_rankings_of_different_length_are_used_completely() -> None:
    assert names(interleave_selections([make_ranking(a=0.9), [], make_ranking(b=0.8, c=0.7, d=0.6)], 10)) == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert interleave_selections([[], []], 5) == []
    assert interleave_selections([], 5) == []


def test_tools_without_a_score_come_last_in_their_original_order() -> None:
    assert names(interleave_selections([[make_tool("p"), make_tool("q")], make_ranking(a=0.1)], 3)) == ["a", "p", "q"]


def select(
    kept: Sequence[SelectedTool] = (),
    core: Sequence[SelectedTool] = (),
    found: Sequence[SelectedTool] = (),
    *,
    max_tools: int = 10,
    max_tokens: int | None = None,
) -> ToolSelection:
    return select_tools(kept, core, found, max_tools=max_tools, max_tokens=max_tokens)


def test_kept_tools_come_first_then_core_tools_then_found_tools_each_once() -> None:
    kept, core, found = [make_tool("k")], [make_tool("c"), make_tool("k")], [make_tool("f", 0.9), make_tool("c", 0.8)]
    assert names(select(kept, core, found).tools) == ["k", "c", "f"]


def test_max_tools_never_drops_kept_tools_and_leaves_room_for_five_new_ones() -> None:
    kept = [make_tool(f"k{n}") for n in range(4)]
    found = [make_tool(f"f{n}", 0.9) for n in range(9)]
    selection = select(kept, [], found, max_tools=2)
    assert names(selection.tools) == names([*kept, *found[:5]])
    assert selection.omitted == dict.fromkeys(names(found[5:]), "max_tools")
    for max_tools in (7, 3):
        assert names(select([], [], found, max_tools=max_tools).tools) == names(found[:max_tools])


def test_core_tools_do_not_count_for_max_tools_even_if_they_are_kept() -> None:
    core = [make_tool(f"c{n}") for n in range(30)]
    found = [make_tool(f"f{n}", 0.9) for n in range(8)]
    for kept in ([], core[:2], core):
        selection = select(kept, core, found, max_tools=8)
        assert (names(selection.tools), selection.omitted) == (names([*core, *found]), {})


def test_a_tool_beyond_max_tokens_is_skipped_and_a_smaller_one_after_it_fits() -> None:
    tools = [make_tool("a", tokens=5), make_tool("large", tokens=9), make_tool("b", tokens=3)]
    selection = select(found=tools, max_tokens=8)
    assert (names(selection.tools), selection.omitted) == (["a", "b"], {"large": "max_tokens"})
    assert select(found=tools, max_tokens=17) == ToolSelection(tools)


def test_core_tools_are_never_dropped_and_the_others_share_what_they_leave_of_max_tokens() -> None:
    kept, found = [make_tool("k", tokens=4)], [make_tool("f", 0.9, tokens=2)]
    core = [make_tool("c", tokens=6), make_tool("d", tokens=6)]
    assert names(select(kept, core, found, max_tokens=18).tools) == ["k", "c", "d", "f"]
    assert names(select(kept, core, found, max_tokens=16).tools) == ["k", "c", "d"]
    assert names(select(kept, core, found, max_tokens=14).tools) == ["c", "d", "f"]
    assert names(select(kept, core, found, max_tokens=5).tools) == ["c", "d"]
    assert select(kept, core, found, max_tokens=5).omitted == {"k": "max_tokens", "f": "max_tokens"}


def test_the_summary_counts_all_omitted_tools_and_names_the_reason_that_leaves_out_better_ones() -> None:
    assert summarize_omitted({}) is None
    assert summarize_omitted({"a": "max_tools"}) == Omission(1, "max_tools")
    assert summarize_omitted({"a": "max_tools", "b": "max_tokens"}) == Omission(2, "max_tokens")

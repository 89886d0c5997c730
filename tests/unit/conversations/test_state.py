"""The tools of a conversation, turn by turn: repeated turns, edited messages, and tools that are no longer used."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalog.definitions import ToolDefinitionView
from app.conversations import state as state_module
from app.conversations.state import ConversationState, ConversationTool
from app.discovery.changes import GivenTool, RenderedTool, ToolsetChanges, compare_toolsets
from app.discovery.selection import Retirement, SelectedTool

MAX_TOOLS, IDLE_TURNS = 4, 3


def make_tool(key: str, version: int = 0) -> ConversationTool:
    return ConversationTool(key, f"alias-{key}", f"hash-{version}")


def converse(*turns: str) -> ConversationState:
    """Return the state after turns that each have these tools."""
    state = ConversationState()
    for number, keys in enumerate(turns, start=1):
        state = state.rewind(number).apply(number, [make_tool(key) for key in keys.split()])
    return state


def keys(state: ConversationState) -> list[str]:
    return [tool.tool_key for tool in state.tools]


def test_a_turn_replaces_the_tools_and_the_old_ones_stay_first() -> None:
    assert keys(converse("a b", "a b c", "a c d")) == ["a", "c", "d"]


def test_a_turn_can_be_repeated() -> None:
    state = converse("a b", "b c")
    assert keys(state.rewind(2)) == ["a", "b"]
    assert state.rewind(2).apply(2, state.tools) == state
    assert keys(state.rewind(3)) == ["b", "c"], "the next turn begins with the tools of the last one"


def test_an_edited_message_continues_from_where_it_stands() -> None:
    state = converse("a", "a b", "b c", "b c d")
    assert [keys(state.rewind(turn)) for turn in (1, 2, 3, 4, 5)] == [
        [],
        ["a"],
        ["a", "b"],
        ["b", "c"],
        ["b", "c", "d"],
    ]
    edited = state.rewind(3).apply(3, [make_tool("a"), make_tool("x")])
    assert (edited.turn, keys(edited)) == (3, ["a", "x"])
    assert keys(edited.rewind(3)) == ["a", "b"]


def test_a_tool_that_returns_has_a_new_place() -> None:
    state = converse("a b", "b", "b a")
    assert keys(state) == ["b", "a"]
    assert keys(state.rewind(2)) == ["a", "b"]


def test_another_definition_is_another_tool_of_the_conversation() -> None:
    state = converse("a b").apply(2, [make_tool("b"), make_tool("a", version=1)])
    assert [tool.definition_hash for tool in state.tools] == ["hash-0", "hash-1"]
    assert [tool.definition_hash for tool in state.rewind(2).tools] == ["hash-0", "hash-0"]


def test_a_tool_is_idle_once_it_was_not_called_for_so_many_turns() -> None:
    state = converse("a b", "a b", "a b c")
    assert state.find_idle(4, 4) == set()
    assert state.find_idle(5, 4) == {"a", "b"}
    assert state.add_calls({"alias-a": 3}).find_idle(5, 4) == {"b"}
    assert state.find_idle(7, 4) == {"a", "b", "c"}


def test_a_call_counts_in_the_last_turn_that_is_left_after_a_rewind() -> None:
    state = converse("a", "a", "a", "a").add_calls({"alias-a": 4, "alias-of-nobody": 4})
    assert state.calls == {"a": 4}
    assert state.rewind(3).calls == {"a": 2}
    assert state.add_calls({"alias-a": 2}).calls == {"a": 4}, "an older call does not count"


def test_a_very_long_conversation_forgets_its_oldest_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MAX_ENDED_SPANS", 3)
    state = converse("a", "b", "c", "d", "e", "f")
    assert len(state.spans) == 4
    assert [keys(state.rewind(turn)) for turn in (7, 6, 5, 4, 3)] == [["f"], ["e"], ["d"], ["c"], []]
    assert state.rewind(3) == ConversationState(), "it is too long ago: the conversation begins again"


@dataclass(frozen=True)
class Step:
    """One request: the turn that it is about, what is visible in which version, and what the search finds."""

    turn: int | None
    visible: dict[str, int]
    found: list[str]
    called: list[str]


@dataclass
class Backend:
    """A chat backend that appends the changes of each turn to its messages, and drops those of turns it repeats."""

    changes: dict[int, ToolsetChanges] = field(default_factory=dict)

    def fold(self) -> list[tuple[str, str, str]]:
        """Return what the model has: the changes of all turns over nothing."""
        tools: dict[str, tuple[str, str, str]] = {}
        for _, changes in sorted(self.changes.items()):
            for removed in changes.removed:
                del tools[removed.tool_key]
            for added in changes.added:
                assert added.tool_key not in tools, "nothing is added twice"
                tools[added.tool_key] = (added.tool_key, added.alias, added.definition_hash)
        return list(tools.values())

    def receive(self, turn: int, changes: ToolsetChanges) -> None:
        self.changes = {number: each for number, each in self.changes.items() if number < turn} | {turn: changes}


def select(key: str) -> SelectedTool:
    view = ToolDefinitionView(
        tool_id=key,
        server_id="s",
        server_name="s",
        name=key,
        title=None,
        description="",
        input_schema="{}",
        output_schema=None,
        annotations=None,
        tokens=1,
        has_shared_name=False,
    )
    return SelectedTool(view, "kept")


def answer(before: ConversationState, turn: int, step: Step) -> list[RenderedTool]:
    """Return the tools of an answer: what is visible of the kept tools and in use, then what is found."""
    found = [select(key) for key in step.found if key in step.visible]
    kept = [select(tool.tool_key) for tool in before.tools if tool.tool_key in step.visible]
    retired = Retirement(MAX_TOOLS, before.find_idle(turn, IDLE_TURNS)).find_retired([*kept, *found], found)
    chosen = [tool for tool in kept if tool.definition.tool_id not in retired] + found
    unique = dict.fromkeys(tool.definition.tool_id for tool in chosen)
    return [RenderedTool(key, f"alias-{key}", b"", f"hash-{step.visible[key]}") for key in unique]


tool_keys = st.sampled_from([f"tool-{number}" for number in range(8)])
steps = st.builds(
    Step,
    turn=st.none() | st.integers(1, 12),
    visible=st.dictionaries(tool_keys, st.integers(0, 1), min_size=2),
    found=st.lists(tool_keys, max_size=3, unique=True),
    called=st.lists(tool_keys, max_size=2),
)


def take_turn(
    state: ConversationState, step: Step
) -> tuple[int, ToolsetChanges, list[RenderedTool], ConversationState]:
    turn = step.turn or state.turn + 1
    before = state.rewind(turn).add_calls({f"alias-{key}": turn - 1 for key in step.called})
    given_before = [GivenTool(tool.tool_key, tool.alias, tool.definition_hash) for tool in before.tools]
    rendered = answer(before, turn, step)
    changes = compare_toolsets(given_before, rendered)
    added = {tool.tool_key for tool in changes.added}
    rendered.sort(key=lambda tool: tool.tool_key in added)
    after = before.apply(turn, [ConversationTool(t.tool_key, t.alias, t.definition_hash) for t in rendered])
    return turn, changes, rendered, after


def describe(tools: Sequence[RenderedTool]) -> list[tuple[str, str, str]]:
    return [(tool.tool_key, tool.alias, tool.definition_hash) for tool in tools]


@settings(deadline=None)
@given(st.lists(steps, max_size=14))
def test_the_changes_of_all_turns_give_exactly_the_tools_of_the_last_answer(history: list[Step]) -> None:
    """However turns are repeated or edited, and tools appear, change, are hidden and are retired."""
    state, backend = ConversationState(), Backend()
    for step in history:
        turn, changes, rendered, state = take_turn(state, step)
        backend.receive(turn, changes)
        assert backend.fold() == describe(rendered)
        assert state.turn == turn


@settings(deadline=None)
@given(st.lists(steps, max_size=10), steps)
def test_a_repeated_turn_has_the_same_changes(history: list[Step], last: Step) -> None:
    state = ConversationState()
    for step in history:
        state = take_turn(state, step)[-1]
    turn, changes, _, after = take_turn(state, last)
    again = take_turn(after, Step(turn, last.visible, last.found, last.called))
    assert (again[1], again[3]) == (changes, after)


@settings(deadline=None)
@given(st.lists(steps, max_size=10))
def test_a_conversation_above_its_size_has_no_idle_tools(history: list[Step]) -> None:
    state = ConversationState()
    for step in history:
        turn, _, rendered, after = take_turn(state, step)
        before = state.rewind(turn).add_calls({f"alias-{key}": turn - 1 for key in step.called})
        idle = before.find_idle(turn, IDLE_TURNS) - set(step.found)
        if len(rendered) > MAX_TOOLS:
            assert not idle & {tool.tool_key for tool in rendered}
        state = after

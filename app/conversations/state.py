"""Which tools a conversation has, and since when: a pure state machine.

A tool's time in a conversation is a span from the turn in which it was added to the turn in which it was removed. Spans
are kept after they end, so that the tools after any earlier turn are known: a repeated turn gets the same answer, and
an edited message continues from where it stands.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

MAX_ENDED_SPANS = 300
"""How many are kept, the newest. A turn before the end of an older one cannot be rebuilt."""


@dataclass(frozen=True)
class ConversationTool:
    """A tool as the model has it."""

    tool_key: str
    alias: str
    definition_hash: str


@dataclass(frozen=True)
class Span:
    tool: ConversationTool
    added: int
    removed: int | None = None


@dataclass(frozen=True)
class ConversationState:
    """The state after the turn `turn`; 0: before the first one."""

    turn: int = 0
    spans: Sequence[Span] = ()
    """In the order in which the tools were given to the model."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """The turn of the last call of a tool, by key."""
    oldest_turn: int = 0
    """The oldest turn after which the tools are still known."""

    @property
    def tools(self) -> list[ConversationTool]:
        return [span.tool for span in self.spans if span.removed is None]

    def rewind(self, turn: int) -> "ConversationState":
        """Return the state before `turn`: as it is now, unless the turn is repeated or an earlier message was edited.

        A turn that is too old to be known begins a new conversation.
        """
        if turn > self.turn:
            return self
        if turn <= self.oldest_turn:
            return ConversationState()
        spans = [
            replace(span, removed=None) if span.removed is not None and span.removed >= turn else span
            for span in self.spans
            if span.added < turn
        ]
        calls = {key: min(called, turn - 1) for key, called in self.calls.items()}
        return ConversationState(turn - 1, spans, calls, self.oldest_turn)

    def add_calls(self, turns_by_alias: Mapping[str, int]) -> "ConversationState":
        """Return the state with calls of its tools, by alias, in the turns in which they were made."""
        calls = dict(self.calls)
        for tool in self.tools:
            if tool.alias in turns_by_alias:
                calls[tool.tool_key] = max(calls.get(tool.tool_key, 0), turns_by_alias[tool.alias])
        return replace(self, calls=calls)

    def find_idle(self, turn: int, idle_turns: int) -> set[str]:
        """Return the keys of the tools that were neither added nor called in the last turns before `turn`."""
        return {
            span.tool.tool_key
            for span in self.spans
            if span.removed is None and turn - max(span.added, self.calls.get(span.tool.tool_key, 0)) >= idle_turns
        }

    def apply(self, turn: int, tools: Collection[ConversationTool]) -> "ConversationState":
        """Return the state after `turn`, in which the model got exactly these tools. `self` is the state before it."""
        given = set(tools)
        ended = [
            replace(span, removed=turn) if span.removed is None and span.tool not in given else span
            for span in self.spans
        ]
        had = set(self.tools)
        spans = [*ended, *(Span(tool, turn) for tool in tools if tool not in had)]
        return _forget_old_spans(ConversationState(turn, spans, self.calls, self.oldest_turn))


def _forget_old_spans(state: ConversationState) -> ConversationState:
    ends = sorted(span.removed for span in state.spans if span.removed is not None)
    oldest_turn = state.oldest_turn
    if len(ends) > MAX_ENDED_SPANS:
        oldest_turn = ends[-MAX_ENDED_SPANS - 1]
    spans = [span for span in state.spans if span.removed is None or span.removed > oldest_turn]
    keys = {span.tool.tool_key for span in spans}
    calls = {key: turn for key, turn in state.calls.items() if key in keys}
    return ConversationState(state.turn, spans, calls, oldest_turn)

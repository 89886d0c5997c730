"""LangGraph: Toolscout in place of the retriever and the registry of `langgraph-bigtool`.

    agent = create_agent(model, ToolscoutRegistry(ToolscoutTools(Toolscout(url, key)))).compile(checkpointer=…)

The agent starts with one tool, `retrieve_tools`. What it finds is bound to the model from then on, and Toolscout runs
it. The state is that of `langgraph_bigtool.create_agent`: `messages` and `selected_tool_ids`, which are tool keys. The
tools are those of the config's user, so that one graph serves all users.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from toolscout_client.adapters._discovery import SEARCH_DESCRIPTION, describe_found
from toolscout_client.adapters._extras import missing_extra
from toolscout_client.errors import ConfirmationRequired
from toolscout_client.models import Json

try:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
    from langchain_core.runnables import RunnableLambda
    from langchain_core.tools import BaseTool, StructuredTool
    from langgraph.graph import END, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command, Send, interrupt

    from toolscout_client.adapters._langchain_tools import (
        Confirm,
        ToolscoutTool,
        ToolscoutTools,
        unknown_tool,
        user_from_config,
    )
except ImportError as error:
    raise missing_extra("langgraph", error) from error

__all__ = [
    "Confirm",
    "ToolscoutRegistry",
    "ToolscoutTool",
    "ToolscoutTools",
    "confirm_by_interrupt",
    "create_agent",
    "user_from_config",
]

_MAX_HELD = 2_000
_FRESH_S = 300.0
"""How long a definition is used before Toolscout is asked again."""
ToolResult = ToolMessage | Command[Any]


def confirm_by_interrupt(name: str, arguments: Json, error: ConfirmationRequired) -> bool:
    """Interrupt the graph until the user has decided; for `ToolscoutTools(…, confirm=confirm_by_interrupt)`.

    The graph needs a checkpointer. The interrupt has the form of LangChain's `HumanInTheLoopMiddleware`, so that user
    interfaces know it; resume with `Command(resume={"decisions": [{"type": "approve"}]})` or `"reject"`.
    """
    request = {
        "action_requests": [{"name": name, "args": arguments, "description": error.message}],
        "review_configs": [{"action_name": name, "allowed_decisions": ["approve", "reject"]}],
    }
    decisions = interrupt(request)["decisions"]
    return all(decision["type"] == "approve" for decision in decisions)


class ToolscoutRegistry(Mapping[str, ToolscoutTool]):
    """The tools of a user by their keys: those that were found, and any other one that Toolscout knows.

    It is a `tool_registry` for `langgraph_bigtool.create_agent`, with the `retrieve_tools_function` and the
    `retrieve_tools_coroutine` to it. Iterating yields the tools that it holds for the user of the current run.
    """

    def __init__(self, tools: ToolscoutTools) -> None:
        self._tools = tools
        self._held: OrderedDict[tuple[str | None, str], tuple[ToolscoutTool, float]] = OrderedDict()

    def retrieve_tools(self, query: str) -> list[str]:
        """Find tools for a task. Call it when you have no suitable tool; describe the task in one sentence."""
        return self._hold(self._tools.for_message(query))

    async def aretrieve_tools(self, query: str) -> list[str]:
        """Find tools for a task. Call it when you have no suitable tool; describe the task in one sentence."""
        return self._hold(await self._tools.afor_message(query))

    def get_tools(self, tool_keys: Sequence[str]) -> list[ToolscoutTool]:
        """Return these tools in this order, without those that the user cannot see."""
        if missing := self._find_missing(tool_keys):
            self._hold(self._tools.for_message(_name_keys(missing), keep=missing))
        return self._list_held(tool_keys)

    async def aget_tools(self, tool_keys: Sequence[str]) -> list[ToolscoutTool]:
        """The same for asyncio."""
        if missing := self._find_missing(tool_keys):
            self._hold(await self._tools.afor_message(_name_keys(missing), keep=missing))
        return self._list_held(tool_keys)

    def __getitem__(self, tool_key: str) -> ToolscoutTool:
        # any age will do: bigtool looks tools up where it must not wait
        if (held := self._held.get((self._tools.client(None).user_id, tool_key))) is not None:
            return held[0]
        if tools := self.get_tools([tool_key]):
            return tools[0]
        raise KeyError(tool_key)

    def __iter__(self) -> Iterator[str]:
        user_id = self._tools.client(None).user_id
        return iter([key for user, key in self._held if user == user_id])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _find_missing(self, tool_keys: Sequence[str]) -> list[ToolscoutTool | str]:
        """Return the keys of tools that it does not hold, and tools whose definitions may be outdated."""
        user_id = self._tools.client(None).user_id
        fresh = {tool.tool_key for tool in self._list_held(tool_keys)}
        held = {key: self._held[user_id, key][0] for key in tool_keys if (user_id, key) in self._held}
        return [held.get(key, key) for key in tool_keys if key not in fresh]

    def _list_held(self, tool_keys: Sequence[str]) -> list[ToolscoutTool]:
        user_id, oldest = self._tools.client(None).user_id, time.monotonic() - _FRESH_S
        held = [found for key in tool_keys if (found := self._held.get((user_id, key))) is not None]
        return [tool for tool, since in held if since > oldest]

    def _hold(self, tools: Sequence[ToolscoutTool]) -> list[str]:
        user_id = self._tools.client(None).user_id
        for tool in tools:
            self._held[user_id, tool.tool_key] = tool, time.monotonic()
            self._held.move_to_end((user_id, tool.tool_key))
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)
        return [tool.tool_key for tool in tools]


def _name_keys(tools: Sequence[ToolscoutTool | str]) -> str:
    """Return a text to search with where only the kept tools matter."""
    return " ".join(tool if isinstance(tool, str) else tool.tool_key for tool in tools)


def _add_new(selected: list[str], found: list[str]) -> list[str]:
    return list(dict.fromkeys([*selected, *found]))


class State(MessagesState):
    selected_tool_ids: Annotated[list[str], _add_new]


def create_agent(
    llm: BaseChatModel, tool_registry: ToolscoutRegistry, *, tools: Sequence[BaseTool] = ()
) -> "StateGraph[State]":
    """Return the graph of an agent that searches for its tools, to be compiled.

    It does what `langgraph_bigtool.create_agent` does; that one, of the release 0.0.3, cannot run tools with LangGraph
    1.0 or later. `tools` are the application's own: the model always has them.
    """
    agent = _Agent(llm, tool_registry, tools)
    tool_node = ToolNode(tools, wrap_tool_call=agent.run_tool, awrap_tool_call=agent.arun_tool)
    graph = StateGraph(State)
    graph.add_node("agent", RunnableLambda(agent.call_model, agent.acall_model))
    graph.add_node("select_tools", RunnableLambda(agent.select_tools, agent.aselect_tools))
    graph.add_node("tools", tool_node)
    graph.set_entry_point("agent")
    graph.add_conditional_edges("agent", agent.route, path_map=["select_tools", "tools", END])
    graph.add_edge("tools", "agent")
    graph.add_edge("select_tools", "agent")
    return graph


class _Agent:
    """The nodes of the graph."""

    def __init__(self, llm: BaseChatModel, registry: ToolscoutRegistry, tools: Sequence[BaseTool]) -> None:
        self._llm = llm
        self._registry = registry
        self._search = StructuredTool.from_function(
            registry.retrieve_tools, registry.aretrieve_tools, description=SEARCH_DESCRIPTION
        )
        self._search.handle_validation_error = True
        self._own_tools = [self._search, *tools]

    def call_model(self, state: State) -> Json:
        found = self._registry.get_tools(state.get("selected_tool_ids", []))
        return {"messages": [self._llm.bind_tools([*self._own_tools, *found]).invoke(state["messages"])]}

    async def acall_model(self, state: State) -> Json:
        found = await self._registry.aget_tools(state.get("selected_tool_ids", []))
        return {"messages": [await self._llm.bind_tools([*self._own_tools, *found]).ainvoke(state["messages"])]}

    def select_tools(self, call: ToolCall) -> Json:
        found = self._search.invoke(call["args"])
        return _answer_search(call, found, [] if isinstance(found, str) else self._registry.get_tools(found))

    async def aselect_tools(self, call: ToolCall) -> Json:
        found = await self._search.ainvoke(call["args"])
        return _answer_search(call, found, [] if isinstance(found, str) else await self._registry.aget_tools(found))

    def route(self, state: State) -> list[Send] | str:
        last: BaseMessage = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        searches = [Send("select_tools", call) for call in calls if call["name"] == self._search.name]
        others = [Send("tools", [call]) for call in calls if call["name"] != self._search.name]
        return [*searches, *others] or END

    def run_tool(self, request: ToolCallRequest, run: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        resolved = self._resolve(request, self._registry.get_tools(request.state["selected_tool_ids"]))
        return resolved if isinstance(resolved, ToolMessage) else run(resolved)

    async def arun_tool(
        self, request: ToolCallRequest, run: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        resolved = self._resolve(request, await self._registry.aget_tools(request.state["selected_tool_ids"]))
        return resolved if isinstance(resolved, ToolMessage) else await run(resolved)

    def _resolve(self, request: ToolCallRequest, found: Sequence[BaseTool]) -> ToolCallRequest | ToolMessage:
        """Add the tool that is called by this name, or return the answer that there is none."""
        by_name = {tool.name: tool for tool in [*found, *self._own_tools]}
        tool = by_name.get(request.tool_call["name"])
        return unknown_tool(request.tool_call, by_name) if tool is None else request.override(tool=tool)


def _answer_search(call: ToolCall, found: list[str] | str, tools: Sequence[BaseTool]) -> Json:
    """Return the update of the state. `found` is a text if the arguments of the search are invalid."""
    text = found if isinstance(found, str) else describe_found([tool.name for tool in tools])
    message = ToolMessage(text, name=call["name"], tool_call_id=call["id"])
    return {"messages": [message], "selected_tool_ids": [] if isinstance(found, str) else found}

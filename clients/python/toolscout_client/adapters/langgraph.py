"""LangGraph: Toolscout in place of the retriever and the registry of `langgraph-bigtool`.

    agent = create_agent(model, ToolscoutRegistry(ToolscoutTools(Toolscout(url, key)))).compile(checkpointer=…)

The agent starts with one tool, `retrieve_tools`. What it finds is bound to the model from then on, and Toolscout runs
it. The state is that of `langgraph_bigtool.create_agent`: `messages` and `selected_tool_ids`, which are tool keys. The
tools are those of the config's user, so that one graph serves all users.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict

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
        get_key,
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
_GONE_S = 30.0
"""How long Toolscout is not asked again for a tool that it did not know, or could not be asked for."""
ToolResult = ToolMessage | Command[Any]


def confirm_by_interrupt(name: str, arguments: Json, error: ConfirmationRequired) -> bool:
    """Interrupt the graph until the user has decided; for `ToolscoutTools(…, confirm=confirm_by_interrupt)`.

    The graph needs a checkpointer. The interrupt has the form of LangChain's `HumanInTheLoopMiddleware`, so that user
    interfaces know it; resume with `Command(resume={"decisions": [{"type": "approve"}]})` or `"reject"`. If several
    calls wait, `resume` is a dict of such answers, by the id of each interrupt.
    """
    request = {
        "action_requests": [{"name": name, "args": arguments, "description": error.message}],
        "review_configs": [{"action_name": name, "allowed_decisions": ["approve", "reject"]}],
    }
    return [decision["type"] for decision in interrupt(request)["decisions"]] == ["approve"]


class ToolscoutRegistry(Mapping[str, ToolscoutTool]):
    """The tools of a user by their keys: those that were found, and any other one that Toolscout knows.

    It is a `tool_registry` for `langgraph_bigtool.create_agent`, with the `retrieve_tools_function` and the
    `retrieve_tools_coroutine` to it. Iterating yields the tools that it holds for the user of the current run.
    """

    def __init__(self, tools: ToolscoutTools) -> None:
        self._tools = tools
        self._held: OrderedDict[tuple[str | None, str], tuple[ToolscoutTool | None, float]] = OrderedDict()
        """By user and key: the tool, None if there is none, and until when it is used."""

    def retrieve_tools(self, query: str) -> list[str]:
        """Find tools for a task. Call it when you have no suitable tool; describe the task in one sentence."""
        return self._hold(self._tools.for_message(query))

    async def aretrieve_tools(self, query: str) -> list[str]:
        """Find tools for a task. Call it when you have no suitable tool; describe the task in one sentence."""
        return self._hold(await self._tools.afor_message(query))

    def get_tools(self, tool_keys: Sequence[str]) -> list[ToolscoutTool]:
        """Return these tools in this order, without those that the user cannot see."""
        if missing := self._find_missing(tool_keys):
            self._hold(self._tools.refresh(missing), missing)
        return self._list_held(tool_keys)

    async def aget_tools(self, tool_keys: Sequence[str]) -> list[ToolscoutTool]:
        """The same for asyncio."""
        if missing := self._find_missing(tool_keys):
            self._hold(await self._tools.arefresh(missing), missing)
        return self._list_held(tool_keys)

    def __getitem__(self, tool_key: str) -> ToolscoutTool:
        # any age will do: bigtool looks tools up where it must not wait
        held, _ = self._held.get((self._tools.client(None).user_id, tool_key), (None, 0.0))
        if held is not None:
            return held
        if tools := self.get_tools([tool_key]):
            return tools[0]
        raise KeyError(tool_key)

    def __iter__(self) -> Iterator[str]:
        user_id = self._tools.client(None).user_id
        return iter([key for (user, key), (tool, _) in self._held.items() if user == user_id and tool is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def rename(self, tools: Sequence[ToolscoutTool], taken: Collection[str]) -> list[ToolscoutTool]:
        """Return the tools, with other names in place of those that are taken."""
        return self._tools.rename(tools, taken)

    def _find_missing(self, tool_keys: Sequence[str]) -> list[ToolscoutTool | str]:
        """Return the keys of tools that it does not hold, and tools whose definitions may be outdated."""
        user_id, now = self._tools.client(None).user_id, time.monotonic()
        held = {key: self._held.get((user_id, key), (None, 0.0)) for key in tool_keys}
        return [tool or key for key, (tool, until) in held.items() if until <= now]

    def _list_held(self, tool_keys: Sequence[str]) -> list[ToolscoutTool]:
        user_id = self._tools.client(None).user_id
        held = [self._held.get((user_id, key), (None, 0.0))[0] for key in tool_keys]
        return [tool for tool in held if tool is not None]

    def _hold(self, tools: Sequence[ToolscoutTool], asked: Sequence[ToolscoutTool | str] = ()) -> list[str]:
        """Hold the tools; and for those that were asked for and are not among them, that there are none."""
        user_id, now = self._tools.client(None).user_id, time.monotonic()
        found = {tool.tool_key: tool for tool in tools}
        for key, tool in (dict.fromkeys(map(get_key, asked)) | found).items():
            self._held[user_id, key] = tool, now + (_GONE_S if tool is None else _FRESH_S)
            self._held.move_to_end((user_id, key))
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)
        return list(found)


def _add_new(selected: list[str], found: list[str]) -> list[str]:
    return list(dict.fromkeys([*selected, *found]))


class State(MessagesState):
    selected_tool_ids: Annotated[list[str], _add_new]


class _Search(TypedDict):
    """What the node `select_tools` gets."""

    call: ToolCall
    selected: list[str]
    """The keys of the tools that the model has."""


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
        found = self._rename(self._registry.get_tools(state.get("selected_tool_ids", [])))
        return {"messages": [self._llm.bind_tools([*self._own_tools, *found]).invoke(state["messages"])]}

    async def acall_model(self, state: State) -> Json:
        found = self._rename(await self._registry.aget_tools(state.get("selected_tool_ids", [])))
        return {"messages": [await self._llm.bind_tools([*self._own_tools, *found]).ainvoke(state["messages"])]}

    def select_tools(self, search: "_Search") -> Json:
        found = self._search.invoke(search["call"]["args"])
        if isinstance(found, str):  # the arguments are invalid
            return _answer_search(search["call"], found, [])
        tools = self._rename(self._registry.get_tools(_add_new(search["selected"], found)))
        return _answer_search(search["call"], _describe_tools(found, tools), found)

    async def aselect_tools(self, search: "_Search") -> Json:
        found = await self._search.ainvoke(search["call"]["args"])
        if isinstance(found, str):
            return _answer_search(search["call"], found, [])
        tools = self._rename(await self._registry.aget_tools(_add_new(search["selected"], found)))
        return _answer_search(search["call"], _describe_tools(found, tools), found)

    def route(self, state: State) -> list[Send] | str:
        last: BaseMessage = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        selected = state.get("selected_tool_ids", [])
        searches = [
            Send("select_tools", _Search(call=call, selected=selected))
            for call in calls
            if call["name"] == self._search.name
        ]
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

    def _rename(self, found: Sequence[ToolscoutTool]) -> list[ToolscoutTool]:
        return self._registry.rename(found, {tool.name for tool in self._own_tools})

    def _resolve(self, request: ToolCallRequest, found: Sequence[ToolscoutTool]) -> ToolCallRequest | ToolMessage:
        """Add the tool that is called by this name, or return the answer that there is none."""
        by_name = {tool.name: tool for tool in [*self._own_tools, *self._rename(found)]}
        tool = by_name.get(request.tool_call["name"])
        return unknown_tool(request.tool_call, by_name) if tool is None else request.override(tool=tool)


def _describe_tools(found: Sequence[str], tools: Sequence[ToolscoutTool]) -> str:
    return describe_found([tool.name for tool in tools if tool.tool_key in found])


def _answer_search(call: ToolCall, text: str, found: list[str]) -> Json:
    """Return the update of the state."""
    return {"messages": [ToolMessage(text, name=call["name"], tool_call_id=call["id"])], "selected_tool_ids": found}

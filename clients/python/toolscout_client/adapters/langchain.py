"""LangChain: tools for a message, and a middleware that gives an agent the tools of each message.

    agent = create_agent(model, tools=[…], middleware=[ToolscoutMiddleware(ToolscoutTools(Toolscout(url, key)))])

`ToolscoutTools` alone returns tools for `model.bind_tools`, a `ToolNode` or anything else that takes LangChain's tools.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, NotRequired

from toolscout_client.adapters._discovery import MAX_KEPT, SEARCH_DESCRIPTION, describe_found, was_called
from toolscout_client.adapters._extras import missing_extra
from toolscout_client.models import Json

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import PrivateStateAttr, ToolCallRequest
    from langchain.tools import BaseTool, ToolRuntime
    from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
    from langchain_core.tools import StructuredTool
    from langgraph.runtime import Runtime
    from langgraph.types import Command, Overwrite

    from toolscout_client.adapters._langchain_tools import (
        Confirm,
        ToolscoutTool,
        ToolscoutTools,
        unknown_tool,
        user_from_config,
    )
    from toolscout_client.adapters.langgraph import confirm_by_interrupt
except ImportError as error:
    raise missing_extra("langchain", error) from error

__all__ = [
    "Confirm",
    "ToolscoutMiddleware",
    "ToolscoutTool",
    "ToolscoutTools",
    "confirm_by_interrupt",
    "user_from_config",
]

FIND_TOOLS = "find_tools"
_NO_SUCH_TOOL = "is not a valid tool"
"""In the answer of LangGraph's `ToolNode`."""
ToolResult = ToolMessage | Command[Any]


def _merge(held: list[Json], found: list[Json]) -> list[Json]:
    """Several searches may end in one step of the graph. A name is that of the tool which was found last."""
    names, keys = {tool["name"] for tool in found}, {tool["discovered"]["tool_key"] for tool in found}
    return [
        *(tool for tool in held if tool["name"] not in names and tool["discovered"]["tool_key"] not in keys),
        *found,
    ]


class ToolscoutState(AgentState[Any]):
    toolscout_tools: NotRequired[Annotated[list[Json], PrivateStateAttr, _merge]]
    """The tools that the model has, as `ToolscoutTool.record`: a checkpointer keeps them between turns."""


class ToolscoutMiddleware(AgentMiddleware[ToolscoutState, Any, Any]):
    """Finds tools for each message of the user, gives them to the model and lets Toolscout run them.

    The agent's own tools stay. Tools of earlier messages stay too, under the same names, if the agent has a
    checkpointer. With `search=True` the model also has a tool `find_tools`, to look for more while it works; with
    `discover=False` it starts with that tool alone, as an agent of `langgraph-bigtool` does.
    """

    state_schema = ToolscoutState

    def __init__(self, tools: ToolscoutTools, *, discover: bool = True, search: bool = False) -> None:
        super().__init__()
        if not (discover or search):
            raise ValueError("set `discover` or `search`: with neither, the agent gets no tools")
        self._toolscout = tools
        self._discover = discover
        self.tools = [self._make_search_tool()] if search else []

    def before_agent(self, state: ToolscoutState, runtime: Runtime[Any]) -> Json:  # noqa: ARG002 of the base
        kept, tools = self._choose_kept(state), self._toolscout
        found = tools.for_message(state["messages"], keep=kept) if self._discover else tools.refresh(kept)
        return {"toolscout_tools": Overwrite([tool.record for tool in found])}

    async def abefore_agent(self, state: ToolscoutState, runtime: Runtime[Any]) -> Json:  # noqa: ARG002
        kept, tools = self._choose_kept(state), self._toolscout
        found = await (tools.afor_message(state["messages"], keep=kept) if self._discover else tools.arefresh(kept))
        return {"toolscout_tools": Overwrite([tool.record for tool in found])}

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(self._add_tools(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(self._add_tools(request))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        return self._explain(request, handler(self._add_tool(request)))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        return self._explain(request, await handler(self._add_tool(request)))

    def _choose_kept(self, state: ToolscoutState) -> list[ToolscoutTool]:
        tools = self._list_found(state)
        if len(tools) <= MAX_KEPT:
            return tools
        called = _list_called(state["messages"])
        return [tool for tool in tools if was_called(tool.name, called)]

    def _list_found(self, state: Any, own: Iterable[BaseTool | Json] = ()) -> list[ToolscoutTool]:
        return self._toolscout.restore(state.get("toolscout_tools", []), {_get_name(tool) for tool in own})

    def _add_tools(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        return request.override(tools=[*request.tools, *self._list_found(request.state, request.tools)])

    def _add_tool(self, request: ToolCallRequest) -> ToolCallRequest:
        if request.tool is not None:
            return request
        found = self._list_found(request.state, request.runtime.tools)
        tool = next((tool for tool in found if tool.name == request.tool_call["name"]), None)
        return request if tool is None else request.override(tool=tool)

    def _explain(self, request: ToolCallRequest, result: ToolResult) -> ToolResult:
        """Name the found tools, too, in the answer to a call of a tool that there is not."""
        if request.tool is not None or not isinstance(result, ToolMessage) or _NO_SUCH_TOOL not in result.text:
            return result
        own = request.runtime.tools
        tools = [*own, *self._list_found(request.state, own)]
        return unknown_tool(request.tool_call, [tool.name for tool in tools])

    def _make_search_tool(self) -> BaseTool:
        def find_tools(query: str, runtime: ToolRuntime) -> Command[Any]:
            held = self._list_found(runtime.state)
            return self._answer_search(runtime, held, self._toolscout.for_message(query, keep=held))

        async def afind_tools(query: str, runtime: ToolRuntime) -> Command[Any]:
            held = self._list_found(runtime.state)
            return self._answer_search(runtime, held, await self._toolscout.afor_message(query, keep=held))

        return StructuredTool.from_function(find_tools, afind_tools, name=FIND_TOOLS, description=SEARCH_DESCRIPTION)

    def _answer_search(
        self, runtime: ToolRuntime[Any, Any], held: Sequence[ToolscoutTool], found: Sequence[ToolscoutTool]
    ) -> Command[Any]:
        own, held_keys = {tool.name for tool in runtime.tools}, {tool.tool_key for tool in held}
        names = [tool.name for tool in self._toolscout.rename(found, own) if tool.tool_key not in held_keys]
        message = ToolMessage(describe_found(names), name=FIND_TOOLS, tool_call_id=runtime.tool_call_id)
        return Command(update={"toolscout_tools": [tool.record for tool in found], "messages": [message]})


def _list_called(messages: Iterable[AnyMessage]) -> set[str]:
    answers = (message for message in messages if isinstance(message, AIMessage))
    return {call["name"] for answer in answers for call in answer.tool_calls}


def _get_name(tool: BaseTool | Json) -> str:
    """Return the name of an own tool, which may be a definition in a model API's format."""
    if isinstance(tool, BaseTool):
        return tool.name
    return str(tool.get("name") or tool.get("function", {}).get("name", ""))

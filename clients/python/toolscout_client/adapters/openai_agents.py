"""Toolscout for the OpenAI Agents SDK: the tools that each message needs, on a copy of your agent.

    tools = ToolscoutTools(toolscout.for_user("anna"))      # one for each conversation
    agent = await tools.equip(assistant, message)           # a copy of your Agent, with the tools for this message
    result = await Runner.run(agent, message)

The SDK reads `Agent.tools` before each turn of a run, and forbids to change it while another run uses the same agent.
Therefore `equip` returns a copy, which belongs to one run. During the run the model can search for more tools with
`find_tools`: they are added to the copy, and can be called in the next turn.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from toolscout_client.adapters._calls import (
    CallableTool,
    CallOutcome,
    call_tool_async,
    callable_tools,
    decode_media,
    describe_error,
    describe_error_or_raise,
    rename_taken,
)
from toolscout_client.adapters._discovery import MAX_KEPT
from toolscout_client.adapters._extras import missing_extra
from toolscout_client.adapters._messages import has_user_text, trim_messages
from toolscout_client.client import AsyncToolscout
from toolscout_client.errors import ConfirmationRequired, ToolscoutError
from toolscout_client.models import Conversation, Discovery, DiscoveryOptions, Json, Keep

try:
    from agents import Agent, FunctionTool, Handoff, Model, ToolOutputImage, ToolOutputText
    from agents.items import ItemHelpers, TResponseInputItem
    from agents.memory import Session
    from agents.tool import FunctionToolCustomDataContext, Tool
    from agents.tool_context import ToolContext

    from toolscout_client.adapters._appending_model import AppendingModel, FoundTool, ToolAdditions
except ImportError as error:
    raise missing_extra("agents", error) from error

__all__ = ["SEARCH_TOOL", "CallableTool", "FoundTool", "ToolscoutTools", "is_destructive"]

ContextT = TypeVar("ContextT")

SEARCH_TOOL = "find_tools"
"""The name of the tool with which the model searches for tools."""
_SEARCH_SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "the task in one sentence"}},
    "required": ["query"],
    "additionalProperties": False,
}
_SEARCH_DESCRIPTION = (
    "Find tools for a task. Call it when none of your tools fits. You can call the tools that it finds afterwards."
)
_MAX_BRIEF = 160
_SESSION_ITEMS = 40


def is_destructive(tool: CallableTool) -> bool:
    """Whether the tool says of itself that it is destructive."""
    return tool.is_destructive


class ToolscoutTools:
    """The tools of one conversation. They stay from message to message, with the same names; new ones are appended.
    Of more than 20, those stay that were called.

    `needs_approval` says which calls a person must approve: the run stops with `interruptions` then. By default these
    are the tools that say that they are destructive. An approved call counts as confirmed for Toolscout, too, where
    the operator wants such calls to be confirmed. `search_tool` is the name of the tool with which the model searches
    for more tools; None: it cannot.

    `additional_tools` gives found tools to the model as items of its input, so that a new tool costs neither the prompt
    cache nor the model's reasoning. It needs an agent whose `model` is an object, such as `OpenAIResponsesModel`, of a
    model that accepts such items.

    All other options are those of `AsyncToolscout.discover`. `keep` are the tools that the conversation has already:
    with a `Conversation`, Toolscout remembers them for another process.
    """

    def __init__(
        self,
        client: AsyncToolscout,
        *,
        needs_approval: bool | Callable[[CallableTool], bool] = is_destructive,
        search_tool: str | None = SEARCH_TOOL,
        additional_tools: bool = False,
        **options: Unpack[DiscoveryOptions],
    ) -> None:
        self._client = client
        self._needs_approval = needs_approval
        self._search_tool = search_tool
        self._keep: Keep = options.pop("keep", None) or []
        self._options: DiscoveryOptions = {"include_core_tools": False, **options, "format": "openai_responses"}
        self._additions = ToolAdditions() if additional_tools else None
        self._given: dict[str, CallableTool] = {}
        self._called: set[str] = set()
        self._found: Discovery | None = None
        self._searching = asyncio.Lock()

    async def equip(
        self, agent: Agent[ContextT], message: str | list[TResponseInputItem], *, session: Session | None = None
    ) -> Agent[ContextT]:
        """Return a copy of the agent for one run: first its own tools, then those that the message needs.

        `message` is the input of the run. If the run has a session, pass it here, too, so that the search knows what
        the conversation is about. Raise `ToolscoutError` if Toolscout does not answer.
        """
        model = None if self._additions is None else AppendingModel(_require_model(agent), self._additions)
        history = await session.get_items(limit=_SESSION_ITEMS) if session is not None else []
        messages = trim_messages([*history, *ItemHelpers.input_to_new_input_list(message)])
        if has_user_text(messages):  # otherwise there is nothing to search for, and the earlier tools stay
            await self._discover(messages=messages)
        equipped = agent.clone(tools=[tool for tool in agent.tools if not isinstance(tool, FoundTool | _SearchTool)])
        if model is not None:
            equipped.model = model
        if self._search_tool is not None:
            equipped.tools.append(self._make_search_tool(self._search_tool, equipped))
        self._set_tools(equipped, own=list(equipped.tools))
        return equipped

    async def _discover(self, query: str | None = None, **request: Unpack[DiscoveryOptions]) -> list[str]:
        """Search, and return the keys of the tools that the model did not have before."""
        async with self._searching:  # a second search at the same time would lose what this one finds
            options: DiscoveryOptions = {**self._options, "keep": self._choose_kept(), **request}
            self._found = await self._client.discover(query, **options)
            return self._found.added or []

    def _choose_kept(self) -> Keep:
        if self._found is None or isinstance(self._keep, Conversation):
            return self._keep
        keys = self._found.tool_keys
        return keys if len(keys) <= MAX_KEPT else [key for key in keys if key in self._called]

    def _set_tools(self, agent: Agent[Any], own: list[Tool]) -> list[CallableTool]:
        """Replace the found tools in the list that a running agent reads, and return them."""
        found = [] if self._found is None else callable_tools(self._found)
        tools = rename_taken(found, _list_names(agent, own))
        current = {tool.name: tool for tool in tools}
        # what was added to the input cannot be taken back: Toolscout answers the call of a tool that is gone
        self._given = current if self._additions is None else self._given | current
        agent.tools[:] = [*own, *map(self._make_tool, self._given.values())]
        return tools

    def _make_tool(self, tool: CallableTool) -> FunctionTool:
        policy = self._needs_approval
        conversation_id = self._keep.id if isinstance(self._keep, Conversation) else None
        options = {"project_id": self._options.get("project_id"), "conversation_id": conversation_id}
        needs_approval = policy if isinstance(policy, bool) else policy(tool)
        run = _ToolRun(self._client, tool, options, needs_approval=needs_approval, called=self._called)
        return FoundTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.input_schema,
            on_invoke_tool=run.invoke,
            strict_json_schema=False,  # it would make optional arguments required, and refuses many schemas
            needs_approval=run.needs_approval,
            custom_data_extractor=run.describe,
        )

    def _make_search_tool(self, name: str, agent: Agent[Any]) -> FunctionTool:
        own = list(agent.tools)

        async def search(_: ToolContext[Any], arguments: str) -> str:
            try:
                new = await self._discover(json.loads(arguments)["query"])
            except (ValueError, LookupError, TypeError):
                return "The arguments must be a JSON object with `query`, the task in one sentence."
            except ToolscoutError as error:
                describe_error_or_raise(error)
                return str(error)
            tools = self._set_tools(agent, [*own, search_tool])
            return _describe_new([tool for tool in tools if tool.discovered.tool_key in new])

        search_tool = _SearchTool(name, _SEARCH_DESCRIPTION, _SEARCH_SCHEMA, search)
        return search_tool


class _SearchTool(FunctionTool):
    """Tells the search tool from an agent's own, for an agent that is equipped again."""


class _ToolRun:
    """Runs the calls of one tool."""

    def __init__(
        self,
        client: AsyncToolscout,
        tool: CallableTool,
        options: Mapping[str, Any],
        *,
        needs_approval: bool,
        called: set[str],
    ) -> None:
        self._client = client
        self._tool = tool
        self._options = options
        self.needs_approval = needs_approval
        self._called = called
        self._outcomes: dict[str, CallOutcome] = {}

    async def invoke(self, context: ToolContext[Any], arguments: str) -> str | list[ToolOutputText | ToolOutputImage]:
        self._called.add(self._tool.discovered.tool_key)
        outcome = await self._call(arguments)
        self._outcomes[context.tool_call_id] = outcome
        images = [block for block in outcome.blocks if block.get("type") == "image" and decode_media(block)]
        if not images:
            return outcome.text
        urls = [f"data:{image['mimeType']};base64,{image['data']}" for image in images]
        return [ToolOutputText(text=outcome.text), *(ToolOutputImage(image_url=url) for url in urls)]

    async def _call(self, arguments: str) -> CallOutcome:
        try:
            return await call_tool_async(self._client, self._tool, arguments, **self._options)
        except ConfirmationRequired as error:
            if not self.needs_approval:
                return CallOutcome(describe_error(error), failed=True, error=error)
            # the SDK invokes such a tool only after a person has approved this call
            options = {**self._options, "confirmation_token": error.token}
            return await call_tool_async(self._client, self._tool, arguments, **options)

    def describe(self, context: FunctionToolCustomDataContext) -> Json:
        """Return what the application may want to know: it is in `custom_data` of the item, and no model sees it."""
        tool = self._tool.discovered
        data: Json = {"tool_key": tool.tool_key, "server": tool.server_name}
        outcome = self._outcomes.pop(context.tool_context.tool_call_id, None)
        if outcome is None:
            return data
        data |= {"failed": outcome.failed, "structured_content": outcome.result.get("structuredContent")}
        if outcome.error is not None:
            data |= {"code": outcome.error.code, "authorization_url": outcome.error.authorization_url}
        return data


def _require_model(agent: Agent[Any]) -> Model:
    """Return the model of the agent, without what an earlier conversation has put before it."""
    if isinstance(agent.model, AppendingModel):
        return agent.model.model
    if isinstance(agent.model, Model):
        return agent.model
    raise TypeError(
        "`additional_tools` needs an agent whose `model` is a Model object, such as OpenAIResponsesModel: which model "
        "a name means is decided by the provider of the run"
    )


def _list_names(agent: Agent[Any], own: Sequence[Tool]) -> set[str]:
    """Return the names that the agent uses itself. The SDK would drop one of two tools of the same name."""
    handoffs = {
        handoff.tool_name if isinstance(handoff, Handoff) else Handoff.default_tool_name(handoff)
        for handoff in agent.handoffs
    }
    return {tool.name for tool in own} | handoffs


def _describe_new(tools: Sequence[CallableTool]) -> str:
    if not tools:
        return "No further tool was found. Rephrase the query, use a tool that you have, or answer without one."
    lines = [f"- {tool.name}: {tool.description.strip().partition(chr(10))[0][:_MAX_BRIEF]}" for tool in tools]
    return "\n".join(["You can call these tools now:", *lines])

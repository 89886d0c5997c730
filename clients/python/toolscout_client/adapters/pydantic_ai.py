"""Pydantic AI: a toolset with the tools that each message needs.

    agent = Agent(model, toolsets=[ToolscoutToolset(AsyncToolscout(url, key))])
    result = await agent.run("what time is it in Tokyo?")
    await agent.run("and in Lima?", message_history=result.all_messages())      # the tools stay

Tools are found when a run begins. Their keys are recorded in the metadata of the messages, so that a later run with
this history has them, too, under the same names.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Unpack

from toolscout_client.adapters._calls import (
    CallableTool,
    CallOutcome,
    call_tool_async,
    callable_tools,
    decode_media,
    describe_result,
    rename_taken,
)
from toolscout_client.adapters._discovery import (
    SEARCH_DESCRIPTION,
    OnError,
    continue_without,
    describe_found,
    make_message,
    with_properties,
)
from toolscout_client.adapters._extras import missing_extra
from toolscout_client.adapters._messages import has_user_text, trim_messages
from toolscout_client.client import AsyncToolscout
from toolscout_client.errors import ArgumentsInvalid, ConfirmationRequired, ToolscoutError
from toolscout_client.models import DiscoveryOptions, Json

try:
    from pydantic_ai import AbstractToolset, FunctionToolset, PrefixedToolset, RunContext, ToolsetTool
    from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed
    from pydantic_ai.messages import BinaryContent, ToolReturn
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
    from pydantic_core import SchemaValidator, core_schema

    from toolscout_client.adapters._pydantic_ai_history import announce_tools, convert_messages, list_kept, record_tools
except ImportError as error:
    raise missing_extra("pydantic-ai", error) from error

__all__ = ["ToolscoutToolset"]

FIND_TOOLS = "find_tools"
_SEARCH_SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "the task in one sentence"}},
    "required": ["query"],
}
_ANY_ARGUMENTS = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
"""Toolscout checks the arguments against the tool's schema."""


@dataclass(kw_only=True)
class _FoundTool(ToolsetTool[AgentDepsT]):
    found: CallableTool | None
    """None: the search."""


class ToolscoutToolset(AbstractToolset[AgentDepsT]):
    """Finds tools for the user's message, and lets Toolscout run those that the model calls.

    `user_id` returns the user for a run, from its `deps`; without it the client decides. With `search` the model has a
    tool `find_tools`, to look for more tools while it works. `options` are those of `AsyncToolscout.discover`, such as
    `limit`, `server_ids` or `project_id`. `max_retries` is how often the model may correct the arguments of a call; by
    default the agent's.

    A destructive call that Toolscout wants confirmed is deferred for approval: the agent's `output_type` needs
    `DeferredToolRequests`.
    """

    def __init__(
        self,
        client: AsyncToolscout,
        *,
        user_id: Callable[[RunContext[AgentDepsT]], str | None] | None = None,
        search: bool = False,
        on_error: OnError = "raise",
        max_retries: int | None = None,
        id: str | None = None,  # noqa: A002 the framework's name
        **options: Unpack[DiscoveryOptions],
    ) -> None:
        self._client = client
        self._user_id = user_id
        self._search = search
        self._on_error = on_error
        self._max_retries = max_retries
        self._id = id
        # without core tools: the application has its own tools, and runs them itself
        self._options: DiscoveryOptions = {"include_core_tools": False, **options, "format": "openai"}
        self._prefix = ""
        self._run_id: str | None = None
        self._found: list[CallableTool] = []

    @property
    def id(self) -> str | None:
        return self._id

    def prefixed(self, prefix: str) -> PrefixedToolset[AgentDepsT]:
        """Return the toolset with a prefix before all names. It is told the prefix, since it records the names that
        the model sees: another wrapper that changes names hides from it which tools the model has called.
        """
        named = copy(self)
        named._prefix = f"{prefix}_{self._prefix}"
        return PrefixedToolset(named, prefix)

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> "ToolscoutToolset[AgentDepsT]":  # noqa: ARG002 of the base
        """Return a copy, which holds the tools of one run."""
        return copy(self)

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        if ctx.run_id is None or self._run_id != ctx.run_id:
            self._run_id, self._found = ctx.run_id, await self._find_for_run(ctx)
        record_tools(ctx.messages, [replace(tool, name=self._prefix + tool.name) for tool in self._found])
        tools = {tool.name: self._make_tool(ctx, tool) for tool in self._found}
        return {**tools, FIND_TOOLS: self._make_search_tool(ctx)} if self._search else tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        if not isinstance(tool, _FoundTool):
            raise TypeError(f"{name!r} is no tool of this toolset")
        if tool.found is None:
            return await self._search_tools(ctx, tool_args)
        outcome = await self._run(ctx, tool.found, tool_args)
        if isinstance(outcome.error, ArgumentsInvalid):
            raise ModelRetry(outcome.text) from outcome.error
        if outcome.failed:
            raise ToolFailed(outcome.text) from outcome.error
        return ToolReturn(_to_content(outcome), metadata=outcome.result)

    async def _run(self, ctx: RunContext[AgentDepsT], tool: CallableTool, arguments: Json) -> CallOutcome:
        client, project_id = self._get_client(ctx), self._options.get("project_id")
        try:
            return await call_tool_async(client, tool, arguments, project_id=project_id)
        except ConfirmationRequired as error:
            if not ctx.tool_call_approved:
                details = {"message": error.message, "server": error.server, "tool": error.tool}
                raise ApprovalRequired(details) from error
            token = error.token
            return await call_tool_async(client, tool, arguments, project_id=project_id, confirmation_token=token)

    def _get_client(self, ctx: RunContext[AgentDepsT]) -> AsyncToolscout:
        user_id = None if self._user_id is None else self._user_id(ctx)
        return self._client if user_id is None else self._client.for_user(user_id)

    async def _find_for_run(self, ctx: RunContext[AgentDepsT]) -> list[CallableTool]:
        kept = list_kept(ctx.messages)
        found = await self._find(ctx, list(convert_messages(ctx.messages)), kept)
        tools = rename_taken(found, self._list_own_names(ctx))
        if kept:
            new = [tool.name for tool in tools if tool.discovered.tool_key not in kept]
            announce_tools(ctx.messages, [self._prefix + name for name in new])
        return tools

    async def _find(self, ctx: RunContext[AgentDepsT], messages: list[Json], keep: list[str]) -> list[CallableTool]:
        request: DiscoveryOptions = {**self._options, "messages": trim_messages(messages)}
        if not has_user_text(messages):
            return []
        if keep:
            request["keep"] = keep
        try:
            return callable_tools(await self._get_client(ctx).discover(**request))
        except ToolscoutError as error:
            continue_without(error, self._on_error)
            return []

    async def _search_tools(self, ctx: RunContext[AgentDepsT], arguments: Json) -> str:
        """Add tools to the run: the framework lists them again before the next request."""
        if not isinstance(query := arguments.get("query"), str):
            raise ModelRetry("`query` must be a text: the task in one sentence.")
        # with the tools that the model has, so that a new one gets none of their names
        held = [tool.discovered.tool_key for tool in self._found]
        found = await self._find(ctx, [make_message("user", query)], held)
        tools = rename_taken(found, self._list_own_names(ctx))
        new = [tool for tool in tools if tool.discovered.tool_key not in held]
        # what is gone stays until the run ends: without it, the tools would change before the model's reasoning
        self._found = [*self._found, *new]
        return describe_found([self._prefix + tool.name for tool in new])

    def _list_own_names(self, ctx: RunContext[AgentDepsT]) -> set[str]:
        """Return the names of the agent's functions: the framework refuses two tools of one name."""
        names: set[str] = set()

        def visit(toolset: AbstractToolset[Any]) -> None:
            if isinstance(toolset, FunctionToolset):
                names.update(toolset.tools)

        for toolset in () if ctx.agent is None else ctx.agent.toolsets:
            toolset.apply(visit)
        own = {name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)}
        return own | {FIND_TOOLS} if self._search else own

    def _make_tool(self, ctx: RunContext[AgentDepsT], tool: CallableTool) -> ToolsetTool[AgentDepsT]:
        discovered = tool.discovered
        definition = ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=with_properties(tool.input_schema),
            strict=False,  # it would make optional arguments required, and refuses many schemas
            metadata={"tool_key": discovered.tool_key, "server_name": discovered.server_name},
        )
        return self._wrap(ctx, definition, tool)

    def _make_search_tool(self, ctx: RunContext[AgentDepsT]) -> ToolsetTool[AgentDepsT]:
        definition = ToolDefinition(
            name=FIND_TOOLS, description=SEARCH_DESCRIPTION, parameters_json_schema=_SEARCH_SCHEMA
        )
        return self._wrap(ctx, definition, None)

    def _wrap(
        self, ctx: RunContext[AgentDepsT], definition: ToolDefinition, found: CallableTool | None
    ) -> ToolsetTool[AgentDepsT]:
        retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return _FoundTool(
            toolset=self, tool_def=definition, max_retries=retries, args_validator=_ANY_ARGUMENTS, found=found
        )


def _to_content(outcome: CallOutcome) -> str | Sequence[str | BinaryContent]:
    content = [
        BinaryContent(media, media_type=block["mimeType"])
        if (media := decode_media(block))
        else describe_result({"content": [block]})
        for block in outcome.blocks
    ]
    return outcome.text if all(isinstance(item, str) for item in content) else content

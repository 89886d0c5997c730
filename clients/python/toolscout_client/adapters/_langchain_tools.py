"""LangChain tools that Toolscout finds and runs. `langchain.py` and `langgraph.py` build on them."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, Unpack

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, ToolException
from pydantic import Field, SkipValidation

from toolscout_client.adapters._calls import (
    CallableTool,
    CallOutcome,
    call_tool,
    call_tool_async,
    callable_tools,
    decode_media,
    describe_error,
    describe_result,
    rename_taken,
)
from toolscout_client.adapters._discovery import OnError, continue_without, make_message, with_properties
from toolscout_client.adapters._messages import has_user_text, trim_messages
from toolscout_client.client import AsyncToolscout, Toolscout
from toolscout_client.errors import ConfirmationRequired, ToolscoutError
from toolscout_client.models import DiscoveredTool, Discovery, DiscoveryOptions, Json, parse

Confirm = Callable[[str, Json, ConfirmationRequired], bool]
"""Asks the user to confirm a call, given the tool's name, the arguments and Toolscout's error."""


def user_from_config(config: RunnableConfig) -> str | None:
    """Return `config["configurable"]["user_id"]`, the user's id at the application, or None if it is not set."""
    user_id = config.get("configurable", {}).get("user_id")
    return None if user_id is None else str(user_id)


class ToolscoutTools:
    """Finds the tools that a message needs, as LangChain tools that Toolscout runs.

        tools = ToolscoutTools(Toolscout(url, key)).for_message("what time is it in Tokyo?")

    With a `Toolscout` all methods work; the asynchronous ones, and asynchronous runs of the tools, use threads, so
    that no call blocks the event loop. With an `AsyncToolscout` only the asynchronous ones work.

    `user_id` returns the user for a run's config; without one, and with a client of `for_user`, the client decides.
    `confirm` asks the user about destructive calls, if Toolscout wants them confirmed; without it the model is told.
    `options` are those of `discover`, such as `limit`, `server_ids` or `project_id`.
    """

    def __init__(
        self,
        client: Toolscout | AsyncToolscout,
        *,
        user_id: Callable[[RunnableConfig], str | None] = user_from_config,
        confirm: Confirm | None = None,
        on_error: OnError = "raise",
        **options: Unpack[DiscoveryOptions],
    ) -> None:
        self.confirm = confirm
        self.on_error = on_error
        self.options = options
        self._client = client
        self._user_id = user_id

    def for_message(
        self,
        message: str | Sequence[BaseMessage],
        *,
        keep: Sequence["ToolscoutTool | str"] = (),
        config: RunnableConfig | None = None,
    ) -> list["ToolscoutTool"]:
        """Return the tools for a text, or for the last user message of a conversation.

        `keep` are the tools that the model has, or their keys: those that are still visible come first, with the
        same names.
        """
        if (request := self._make_request(message, keep)) is None:
            return [tool for tool in keep if isinstance(tool, ToolscoutTool)]
        try:
            return self._make_tools(self.blocking_client(config).discover(**request))
        except ToolscoutError as error:
            continue_without(error, self.on_error)
            return [tool for tool in keep if isinstance(tool, ToolscoutTool)]

    async def afor_message(
        self,
        message: str | Sequence[BaseMessage],
        *,
        keep: Sequence["ToolscoutTool | str"] = (),
        config: RunnableConfig | None = None,
    ) -> list["ToolscoutTool"]:
        """The same for asyncio."""
        if (request := self._make_request(message, keep)) is None:
            return [tool for tool in keep if isinstance(tool, ToolscoutTool)]
        client = self.client(config)
        try:
            if isinstance(client, Toolscout):
                return self._make_tools(await asyncio.to_thread(client.discover, **request))
            return self._make_tools(await client.discover(**request))
        except ToolscoutError as error:
            continue_without(error, self.on_error)
            return [tool for tool in keep if isinstance(tool, ToolscoutTool)]

    def refresh(self, tools: Sequence["ToolscoutTool | str"]) -> list["ToolscoutTool"]:
        """Return those of the tools that the user can still see, as they are now. Each is a tool or a key."""
        return _select(self.for_message(_name_keys(tools), keep=tools), tools) if tools else []

    async def arefresh(self, tools: Sequence["ToolscoutTool | str"]) -> list["ToolscoutTool"]:
        """The same for asyncio."""
        return _select(await self.afor_message(_name_keys(tools), keep=tools), tools) if tools else []

    def client(self, config: RunnableConfig | None) -> Toolscout | AsyncToolscout:
        """Return the client for the user of the config; without a config, of the run that this is called in."""
        user_id = self._user_id(ensure_config(config))
        # a client that the application has bound to a user acts for no other one
        return self._client if user_id is None or self._client.user_id is not None else self._client.for_user(user_id)

    def blocking_client(self, config: RunnableConfig | None) -> Toolscout:
        client = self.client(config)
        if isinstance(client, AsyncToolscout):
            raise TypeError("an AsyncToolscout cannot block: use `ainvoke`, `afor_message` …, or pass a Toolscout")
        return client

    def restore(self, records: Sequence[Json], taken: Collection[str] = ()) -> list["ToolscoutTool"]:
        """Return tools from their `ToolscoutTool.record`, with other names in place of those that are taken."""
        found = [
            CallableTool(**{**record, "discovered": parse(DiscoveredTool, record["discovered"])}) for record in records
        ]
        return [self._make_tool(tool) for tool in rename_taken(found, taken)]

    def rename(self, tools: Sequence["ToolscoutTool"], taken: Collection[str]) -> list["ToolscoutTool"]:
        """Return the tools, with other names in place of those that are taken."""
        return [self._make_tool(tool) for tool in rename_taken([tool.found for tool in tools], taken)]

    def _make_request(
        self, message: str | Sequence[BaseMessage], keep: Sequence["ToolscoutTool | str"]
    ) -> dict[str, Any] | None:
        """Return None if the user has not written anything."""
        converted = [make_message("user", message)] if isinstance(message, str) else _convert_messages(message)
        messages = trim_messages(converted)
        if not has_user_text(messages):
            return None
        # without core tools: the application has its own tools, and runs them itself
        request: dict[str, Any] = {"include_core_tools": False, **self.options, "format": "openai"}
        kept = [get_key(tool) for tool in keep]
        return request | {"messages": messages} | ({"keep": kept} if kept else {})

    def _make_tools(self, found: Discovery) -> list["ToolscoutTool"]:
        return [self._make_tool(tool) for tool in callable_tools(found)]

    def _make_tool(self, tool: CallableTool) -> "ToolscoutTool":
        return ToolscoutTool(
            name=tool.name,
            description=tool.description,
            args_schema=with_properties(tool.input_schema),
            metadata={"tool_key": tool.discovered.tool_key, "server_name": tool.discovered.server_name},
            found=tool,
            provider=self,
        )


class ToolscoutTool(BaseTool):
    """A tool that Toolscout has found, and runs. The artifact of its message is the whole MCP result.

    Its errors are messages for the model (`handle_tool_error=False` raises a `ToolException` instead). A key that
    Toolscout does not accept is an error of the application, and raised.
    """

    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: bool | str | Callable[[ToolException], str] | None = True
    found: Annotated[CallableTool, SkipValidation] = Field(exclude=True, repr=False)
    provider: Annotated[ToolscoutTools, SkipValidation] = Field(exclude=True, repr=False)

    @property
    def tool_key(self) -> str:
        return self.found.discovered.tool_key

    @property
    def record(self) -> Json:
        """The tool as JSON, for the state of a graph."""
        return asdict(self.found)

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Pass the arguments as one value: one of them may be named `config`."""
        return (self._parse_input(tool_input, tool_call_id), tool_call_id), {}

    def _run(self, arguments: Json, call_id: str | None, *, config: RunnableConfig) -> tuple[str | list[Json], Json]:
        client, options = self.provider.blocking_client(config), self._make_options(arguments, call_id, config)
        try:
            outcome = call_tool(client, self.found, arguments, **options)
        except ConfirmationRequired as error:
            options["confirmation_token"] = self._confirm(arguments, error)
            outcome = call_tool(client, self.found, arguments, **options)
        return _to_output(outcome)

    async def _arun(
        self, arguments: Json, call_id: str | None, *, config: RunnableConfig
    ) -> tuple[str | list[Json], Json]:
        client, options = self.provider.client(config), self._make_options(arguments, call_id, config)
        try:
            outcome = await self._call(client, arguments, options)
        except ConfirmationRequired as error:
            options["confirmation_token"] = self._confirm(arguments, error)
            outcome = await self._call(client, arguments, options)
        return _to_output(outcome)

    async def _call(self, client: Toolscout | AsyncToolscout, arguments: Json, options: Json) -> CallOutcome:
        if isinstance(client, Toolscout):
            return await asyncio.to_thread(call_tool, client, self.found, arguments, **options)
        return await call_tool_async(client, self.found, arguments, **options)

    def _make_options(self, arguments: Json, call_id: str | None, config: RunnableConfig) -> Json:
        return {
            "project_id": self.provider.options.get("project_id"),
            "idempotency_key": _identify_call(config, call_id, self.tool_key, arguments),
        }

    def _confirm(self, arguments: Json, error: ConfirmationRequired) -> str:
        """Return the token for a second request, once the user has confirmed the call."""
        if self.provider.confirm is None:
            raise ToolException(describe_error(error)) from error
        if not self.provider.confirm(self.name, arguments, error):
            raise ToolException("The user has declined this call. Nothing was run.") from error
        return error.token


def _identify_call(config: RunnableConfig, call_id: str | None, tool_key: str, arguments: Json) -> str | None:
    """Return the same key when LangGraph runs a task again, as it does with all of a node when one of its calls was
    interrupted; None outside of a graph. The call's id alone would not do: some models use an id more than once.
    """
    fields = config.get("configurable", {})
    if call_id is None or not (task := fields.get("checkpoint_ns")):
        return None
    identity = json.dumps([fields.get("thread_id"), task, call_id, tool_key, arguments], sort_keys=True, default=str)
    return hashlib.sha256(identity.encode()).hexdigest()


def _to_output(outcome: CallOutcome) -> tuple[str | list[Json], Json]:
    if outcome.failed:
        raise ToolException(outcome.text) from outcome.error
    content = [_to_content_block(block) for block in outcome.blocks]
    return outcome.text if all(block["type"] == "text" for block in content) else content, outcome.result


def _to_content_block(block: Json) -> Json:
    if decode_media(block):
        return {"type": block["type"], "base64": block["data"], "mime_type": block["mimeType"]}
    return {"type": "text", "text": describe_result({"content": [block]})}


def get_key(tool: ToolscoutTool | str) -> str:
    return tool if isinstance(tool, str) else tool.tool_key


def _name_keys(tools: Sequence[ToolscoutTool | str]) -> str:
    """Return a text to search with where only the kept tools matter."""
    return " ".join(map(get_key, tools))


def _select(found: Sequence[ToolscoutTool], wanted: Sequence[ToolscoutTool | str]) -> list[ToolscoutTool]:
    keys = set(map(get_key, wanted))
    return [tool for tool in found if tool.tool_key in keys]


def _convert_messages(messages: Sequence[BaseMessage]) -> list[Json]:
    """Return the conversation without the system's messages, which say nothing about what the user wants."""
    converted = []
    for message in messages:
        if isinstance(message, HumanMessage):
            converted.append(make_message("user", str(message.text)))
        elif isinstance(message, AIMessage):
            calls = [(call["name"], call["args"]) for call in message.tool_calls]
            converted.append(make_message("assistant", str(message.text), calls))
        elif isinstance(message, ToolMessage):
            converted.append(make_message("tool", str(message.text)))
    return converted


def unknown_tool(call: ToolCall, names: Iterable[str]) -> ToolMessage:
    """Return the answer to a call of a tool that the model has made up."""
    text = f"There is no tool named {call['name']!r}. Nothing was run. Call one of: {', '.join(names) or 'none'}."
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error")

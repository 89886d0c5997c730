"""A model of the OpenAI Agents SDK that is given found tools as items of its input, and not in `tools`.

`tools` stands before the conversation: a change of it costs the prompt cache and the reasoning of earlier turns. An
item `additional_tools` changes nothing before it. This module needs the extra `agents`.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents import FunctionTool, Model, ModelResponse, ModelSettings
from agents.items import ItemHelpers, TResponseInputItem, TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from agents.tool import Tool

from toolscout_client.models import Json


class FoundTool(FunctionTool):
    """A tool that Toolscout has found, in distinction from an agent's own."""


@dataclass
class ToolAdditions:
    """Which tools a conversation was given, and where: each addition keeps its place in all later requests."""

    _additions: list[tuple[int, Json]] = field(default_factory=list)
    """The number of items before each addition, and its item."""
    _items: list[Any] = field(default_factory=list)
    """The items of the last request, without additions."""

    def apply(
        self, given: str | list[TResponseInputItem], tools: list[Tool]
    ) -> tuple[list[TResponseInputItem], list[Tool]]:
        """Return the input with all additions, and the tools that are no part of them."""
        items: list[Any] = ItemHelpers.input_to_new_input_list(given)
        # behind the first changed item, as in a history that was cut or edited, an addition has lost its place
        unchanged = _count_common(items, self._items)
        self._additions = [(position, item) for position, item in self._additions if position <= unchanged]
        known = {tool["name"]: tool for _, item in self._additions for tool in item["tools"]}
        found = {tool.name: _render(tool) for tool in tools if isinstance(tool, FoundTool)}
        if new := [tool for name, tool in found.items() if known.get(name) != tool]:
            addition = {"type": "additional_tools", "role": "developer", "tools": new}
            self._additions.append((len(items), addition))
        self._items = items
        placed = list(items)
        for position, item in reversed(self._additions):
            placed.insert(position, item)
        return placed, [tool for tool in tools if not isinstance(tool, FoundTool)]


class AppendingModel(Model):
    """Sends found tools as additions. All else is left to the model behind it, which uses OpenAI's Responses API."""

    def __init__(self, model: Model, additions: ToolAdditions) -> None:
        self.model = model
        self._additions = additions

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 the SDK's name
        model_settings: ModelSettings,
        tools: list[Tool],
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        items, own = self._place_tools(input, tools, options)
        return await self.model.get_response(system_instructions, items, model_settings, own, *args, **options)

    def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 the SDK's name
        model_settings: ModelSettings,
        tools: list[Tool],
        *args: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        items, own = self._place_tools(input, tools, options)
        return self.model.stream_response(system_instructions, items, model_settings, own, *args, **options)

    def _place_tools(
        self, given: str | list[TResponseInputItem], tools: list[Tool], options: dict[str, Any]
    ) -> tuple[str | list[TResponseInputItem], list[Tool]]:
        if options.get("previous_response_id") or options.get("conversation_id"):
            return given, tools  # OpenAI keeps the conversation: the places of its items are not known here
        return self._additions.apply(given, tools)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self.model.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.model._cleanup_on_run_end(owner)

    async def close(self) -> None:
        await self.model.close()

    def __getattr__(self, name: str) -> Any:
        """The SDK also asks a model for what the base class does not have, such as its support of cache keys."""
        return getattr(self.model, name)


def _count_common(items: Sequence[Any], earlier: Sequence[Any]) -> int:
    pairs = zip(items, earlier, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(items), len(earlier)))


def _render(tool: FunctionTool) -> Json:
    """Return the definition as the Responses API takes it."""
    function = {"type": "function", "name": tool.name, "description": tool.description}
    return {**function, "parameters": tool.params_json_schema, "strict": tool.strict_json_schema}

"""What the Pydantic AI adapter reads from, and records in, the messages of a run."""

from collections.abc import Iterator, Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolReturnPart,
    UserPromptPart,
)

from toolscout_client.adapters._calls import CallableTool
from toolscout_client.adapters._discovery import MAX_KEPT, make_message, was_called
from toolscout_client.models import Json

_METADATA_KEY = "toolscout_tools"
_MAX_SENT = 200
"""Toolscout accepts no more tools to keep."""


def record_tools(messages: Sequence[ModelMessage], tools: Sequence[CallableTool]) -> None:
    """Record the tools of a request in its metadata, which the model does not get."""
    if messages and isinstance(request := messages[-1], ModelRequest):
        recorded = [{"tool_key": tool.discovered.tool_key, "name": tool.name} for tool in tools]
        request.metadata = {**(request.metadata or {}), _METADATA_KEY: recorded}


def list_kept(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the keys of the tools that the model has, or of those that it has called if there are too many.

    With fewer tools, what precedes the model's reasoning changes: signed reasoning would be refused.
    """
    requests = (message for message in reversed(messages) if isinstance(message, ModelRequest))
    recorded: list[Json] = next(
        (found for request in requests if (found := (request.metadata or {}).get(_METADATA_KEY))), []
    )
    responses = [message for message in messages if isinstance(message, ModelResponse)]
    is_signed = any(isinstance(part, ThinkingPart) and part.signature for each in responses for part in each.parts)
    if len(recorded) > (_MAX_SENT if is_signed else MAX_KEPT):
        called = {call.tool_name for response in responses for call in response.tool_calls}
        recorded = [tool for tool in recorded if was_called(tool["name"], called)]
    return [tool["tool_key"] for tool in recorded]


def announce_tools(messages: Sequence[ModelMessage], names: Sequence[str]) -> None:
    """Record that tools arrive with this request, as the framework does for tools that arrive during a run.

    It sends them behind the conversation then, and `tools` stays as it is, if the model's API knows such a thing.
    """
    if names and messages and isinstance(request := messages[-1], ModelRequest):
        request.parts = [*request.parts, ToolAvailabilityDeltaPart(tools_added=list(names))]


def convert_messages(messages: Sequence[ModelMessage]) -> Iterator[Json]:
    """Yield the conversation in OpenAI's format, without instructions, which say nothing about what the user wants."""
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = [(call.tool_name, call.args_as_json_str()) for call in message.tool_calls]
            yield make_message("assistant", message.text or "", calls)
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                yield make_message("user", _get_text(part))
            elif isinstance(part, ToolReturnPart):
                yield make_message("tool", part.model_response_str())


def _get_text(prompt: UserPromptPart) -> str:
    if isinstance(prompt.content, str):
        return prompt.content
    texts = (item.content if isinstance(item, TextContent) else item for item in prompt.content)
    return "\n".join(text for text in texts if isinstance(text, str))

"""What all adapters share: the tools of a discovery, running one of them, and the words of its outcome for a model."""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolscout_client.client import AsyncToolscout, Toolscout
from toolscout_client.errors import (
    AuthorizationRequired,
    ConfirmationRequired,
    Forbidden,
    ToolFailed,
    ToolscoutError,
    Unauthenticated,
)
from toolscout_client.models import DiscoveredTool, Discovery, Execution, Json

_ADVICE = {
    "TOOL_NOT_FOUND": "Nothing was run. The tool is no longer available: use another one, or answer without it.",
    "TOOL_VALIDATION_ERROR": "Nothing was run. Correct the arguments, then call the tool again.",
    "SERVER_CONNECTION_ERROR": "Nothing was run. Try again later, or use another tool.",
    "CONFIRMATION_REQUIRED": "Nothing was run. The user must confirm this call first.",
}
_MAY_HAVE_RUN = "It may have run: find out before you call it again."
_SIGN_IN = "Nothing was run. Ask the user to sign in to the server, and call the tool again after that."
_SIGN_IN_LINK = "Nothing was run. Show the user this link to sign in, and call the tool again after that:"

_CUT_OFF = "[the result was too large and is cut off]"
_MAX_NAME = 64


@dataclass(frozen=True)
class CallableTool:
    """A discovered tool, as a framework needs it: the model calls it by `name`, and Toolscout runs it."""

    name: str
    """The alias: valid for model APIs, and unique within the discovery."""
    description: str
    input_schema: Json
    discovered: DiscoveredTool
    discovery_id: str

    @property
    def is_destructive(self) -> bool:
        """Whether the tool says so of itself."""
        return bool((self.discovered.tool.get("annotations") or {}).get("destructiveHint"))


@dataclass(frozen=True)
class CallOutcome:
    text: str
    """For the model: the result, or what went wrong and what to do."""
    failed: bool = False
    result: Json = field(default_factory=dict)
    """The MCP result with all its content; empty if nothing was answered."""
    blocks: list[Json] = field(default_factory=list)
    """The content for the model block by block, for a framework that passes media on."""
    error: ToolscoutError | None = None
    """Why there is no result, for the application: `AuthorizationRequired` has the link to the sign-in."""


def callable_tools(found: Discovery) -> list[CallableTool]:
    """Return the tools of a discovery in the format `openai` or `openai_responses`."""
    functions = [definition.get("function", definition) for definition in found.definitions]
    return [
        CallableTool(tool.alias, function.get("description", ""), function["parameters"], tool, found.discovery_id)
        for tool, function in zip(found.tools, functions, strict=True)
    ]


def rename_taken(tools: Sequence[CallableTool], taken: Collection[str]) -> list[CallableTool]:
    """Return the tools, with another name for each whose name one of the agent's own tools has, or an earlier one."""
    names, used, renamed = {tool.name for tool in tools} | set(taken), set(taken), []
    for tool in tools:
        renamed.append(replace(tool, name=_take_free_name(tool.name, names)) if tool.name in used else tool)
        used.add(tool.name)
    return renamed


def _take_free_name(name: str, names: set[str]) -> str:
    candidates = (f"toolscout_{name}"[:_MAX_NAME], *(f"toolscout_{name[:40]}_{number}" for number in range(2, 1000)))
    free = next(candidate for candidate in candidates if candidate not in names)
    names.add(free)
    return free


def call_tool(client: Toolscout, tool: CallableTool, arguments: str | Mapping[str, Any], **options: Any) -> CallOutcome:
    """Run a tool. `arguments` may be the model's JSON text; `options` are those of `Toolscout.execute`.

    Raise `ConfirmationRequired`, which only the application can answer, and the errors of a key that is not valid.
    All other errors are for the model.
    """
    try:
        return describe_execution(client.execute(**_execute_arguments(tool, arguments), **options))
    except ToolscoutError as error:
        return describe_error_or_raise(error)


async def call_tool_async(
    client: AsyncToolscout, tool: CallableTool, arguments: str | Mapping[str, Any], **options: Any
) -> CallOutcome:
    """The same for asyncio."""
    try:
        return describe_execution(await client.execute(**_execute_arguments(tool, arguments), **options))
    except ToolscoutError as error:
        return describe_error_or_raise(error)


def _execute_arguments(tool: CallableTool, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """Name the tool by its key, since another discovery may give the alias to another tool."""
    ids = {"discovery_id": tool.discovery_id}
    if not isinstance(arguments, str):
        return {"tool_key": tool.discovered.tool_key, "arguments": arguments, **ids}
    # Toolscout parses the text, so that the model gets the same words about invalid JSON everywhere
    call = {"type": "function_call", "name": tool.discovered.tool_key, "arguments": arguments}
    return {"tool_call": call, **ids}


def describe_execution(done: Execution) -> CallOutcome:
    text, blocks = describe_result(done.result), list(done.result.get("content") or ())
    if done.truncated:
        text, blocks = f"{text}\n{_CUT_OFF}", [*blocks, {"type": "text", "text": _CUT_OFF}]
    return CallOutcome(f"The tool failed: {text}" if done.is_error else text, done.is_error, done.result, blocks)


def decode_media(block: Json) -> bytes | None:
    """Return the bytes of an image or a recording; None for other content, and for what no model API would accept."""
    if block.get("type") not in ("image", "audio") or not block.get("mimeType"):
        return None
    try:
        return base64.b64decode(block["data"], validate=True) or None
    except (KeyError, TypeError, ValueError):
        return None


def describe_result(result: Json) -> str:
    """Return an MCP result as text. Content that is no text is named; without content there is the structured one."""
    texts = [_describe_block(block) for block in result.get("content") or ()]
    if not texts and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return "\n".join(texts) or "The tool returned nothing."


def _describe_block(block: Json) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource":
            resource = block.get("resource") or {}
            return str(resource.get("text") or f"[resource {resource.get('uri', '')}]")
        case "resource_link":
            return f"[resource {block.get('name', '')}: {block.get('uri', '')}]"
        case kind:
            return f"[{kind} {block.get('mimeType', '')}]".replace(" ]", "]")


def describe_error_or_raise(error: ToolscoutError) -> CallOutcome:
    if isinstance(error, ConfirmationRequired | Unauthenticated | Forbidden):
        raise error
    return CallOutcome(describe_error(error), failed=True, error=error)


def _is_unexplained(error: ToolscoutError) -> bool:
    """Whether the answer does not say what became of the call: a fault of Toolscout's, or of a proxy before it."""
    return error.outcome is None and (error.status == 500 or error.code == "unreadable_answer")


def describe_error(error: ToolscoutError) -> str:
    """Tell a model what is wrong, and what to do."""
    lines = [str(error)]
    # the message contains the first five errors
    lines += [f"- {'.'.join(map(str, item.get('loc', ())))}: {item.get('msg', '')}" for item in error.errors[5:]]
    if isinstance(error, AuthorizationRequired):
        link = error.authorization_url
        lines.append(_SIGN_IN if link is None else f"{_SIGN_IN_LINK} {link}")
    elif error.outcome == "unknown" or _is_unexplained(error):
        lines.append(_MAY_HAVE_RUN)
    elif isinstance(error, ToolFailed) and error.cause == "push":
        lines.append("Nothing was run, and trying again will not help: tell the user, or use another tool.")
    elif error.code in _ADVICE:
        lines.append(_ADVICE[error.code])
    return "\n".join(lines)

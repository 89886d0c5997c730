"""Toolscout as the tool search of Claude: the model searches for tools when it needs some.

The model starts with one tool, `find_tools`; its user may have any number of them. The definitions of the tools that
Toolscout finds are appended to the conversation, in a system message with `tool_addition` blocks. `tools` never
changes: newer models reject a conversation whose `tools` have changed since they thought about it, and for every model
the prompt cache begins with `tools`. Then the model calls a found tool by its name, and Toolscout runs it. For a model
that knows no changes in the conversation, see anthropic_deferred_tools.py.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python anthropic # once: toolscout_client, and the SDK of Anthropic
    TOOLSCOUT_KEY=ts_user_... .venv/bin/python -m examples.anthropic_tool_search "what time is it in Tokyo?"

With ANTHROPIC_API_KEY the example uses Claude (ANTHROPIC_MODEL names the model, which must know mid-conversation system
messages: Claude Opus 4.8 or later), without it `fake_model`. The demo's server `toolbox` runs its tools; all its other
servers are invented: their tools are found, and the model gets an error when it calls one. TOOLSCOUT_URL is the address
of Toolscout.
"""

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

from anthropic import Anthropic
from anthropic.types.beta import BetaToolParam, BetaToolUseBlock

from examples.fake_model import running_fake_model
from examples.toolscout_calls import CHECK, find_tools, open_toolscout, run_tool
from toolscout_client import Discovery, Toolscout, ToolscoutError

Json = dict[str, Any]

FIND_TOOLS: BetaToolParam = {
    "name": "find_tools",
    "description": "Find tools for a task. Call it when you have no suitable tool, then call a tool that it found.",
    "input_schema": {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the task in one sentence"}},
        "required": ["query"],
    },
}
BETAS = ["inline-tools-2026-09-15"]
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-opus-5-5")
MAX_TURNS = 10


def describe_tools(found: Discovery) -> str:
    names = ", ".join(tool.alias for tool in found.tools)
    return f"Your tools: {names}" if names else "No tool fits. Rephrase the query, or answer without a tool."


def answer_calls(
    toolscout: Toolscout, messages: list[Any], calls: list[BetaToolUseBlock], last: Discovery | None
) -> Discovery | None:
    """Append the results of the calls and, behind them, the tools that the searches found."""
    results, changes = [], []
    for call in calls:
        result: Json = {"type": "tool_result", "tool_use_id": call.id}
        if call.name == FIND_TOOLS["name"]:
            found = find_tools(toolscout, call.input, keep=last or [], format="anthropic")
            if isinstance(found, str):
                results.append(result | {"content": found, "is_error": True})
                continue
            last = found
            results.append(result | {"content": describe_tools(found)})
            changes += [] if found.changes is None else [found.changes.message]
        else:
            print(f"called     {call.name} {json.dumps(call.input)}")
            text, failed = run_tool(toolscout, call.to_dict())
            results.append(result | {"content": text, "is_error": failed})
    messages += [{"role": "user", "content": results}, *changes]
    return last


def converse(model: Anthropic, toolscout: Toolscout, message: str) -> str:
    messages: list[Any] = [{"role": "user", "content": message}]
    found: Discovery | None = None
    for _ in range(MAX_TURNS):
        reply = model.beta.messages.create(
            model=MODEL,
            max_tokens=2048,
            messages=messages,
            tools=[FIND_TOOLS],
            betas=BETAS,
            cache_control={"type": "ephemeral"},
        )
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        messages.append({"role": "assistant", "content": reply.content})  # with its thinking, as it came
        found = answer_calls(toolscout, messages, calls, found)
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def main(message: str) -> None:
    key = os.environ.get("ANTHROPIC_API_KEY")
    with (
        nullcontext(os.environ.get("ANTHROPIC_BASE_URL")) if key else running_fake_model() as model_url,
        Anthropic(base_url=model_url, api_key=key or "none") as model,
        open_toolscout() as toolscout,
    ):
        print(f"user       {message}")
        print(f"model      {converse(model, toolscout, message)}")


if __name__ == "__main__":
    try:
        main(" ".join(sys.argv[1:]) or "what time is it in Tokyo?")
    except ToolscoutError as error:
        sys.exit(f"{error}\n{CHECK}")

"""Toolscout as the tool search of Claude: the model searches for tools when it needs some.

The model starts with one tool, `find_tools`. The definitions of the tools that Toolscout finds are appended to the
conversation, in a system message with `tool_addition` blocks. `tools` never changes: newer models reject a conversation
whose `tools` have changed since they thought about it, and for every model the prompt cache begins with `tools`. Then
the model calls a found tool by its name, and Toolscout runs it.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python           # once: toolscout_client
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
from examples.toolscout_calls import CHECK, open_toolscout, run_tool
from toolscout_client import Toolscout, ToolscoutError

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


def find_tools(toolscout: Toolscout, query: str, known: dict[str, Json]) -> tuple[str, list[Json]]:
    """Return the text for the model, and the blocks that add those tools that it does not have yet."""
    # without core tools: a backend has its own tools in `tools` from the start, and runs them itself
    found = toolscout.discover(query, limit=5, include_core_tools=False, format="anthropic")
    definitions = {tool["name"]: tool for tool in found.definitions if tool["name"] != FIND_TOOLS["name"]}
    names = ", ".join(definitions)
    tokens = f"({found.tokens.selected} tokens instead of {found.tokens.all})"
    print(f"searched   {json.dumps(query)}: {names or 'nothing'} {tokens}")
    new = [tool for name, tool in definitions.items() if known.get(name) != tool]
    known |= definitions
    additions = [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}} for tool in new]
    return f"Found: {names}" if names else "No tool fits. Rephrase the query, or answer without a tool.", additions


def answer_calls(toolscout: Toolscout, calls: list[BetaToolUseBlock], known: dict[str, Json]) -> list[Any]:
    """Return the messages that follow the calls: their results and, if there are new tools, these."""
    results, changes = [], []
    for call in calls:
        result: Json = {"type": "tool_result", "tool_use_id": call.id}
        if call.name == FIND_TOOLS["name"]:
            text, additions = find_tools(toolscout, str(call.input["query"]), known)
            results.append(result | {"content": text})
            changes += additions
        else:
            print(f"called     {call.name} {json.dumps(call.input)}")
            text, failed = run_tool(toolscout, call.to_dict())
            results.append(result | {"content": text, "is_error": failed})
    messages: list[Json] = [{"role": "user", "content": results}]
    return [*messages, {"role": "system", "content": changes}] if changes else messages


def converse(model: Anthropic, toolscout: Toolscout, message: str) -> str:
    messages: list[Any] = [{"role": "user", "content": message}]
    known: dict[str, Json] = {}
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
        messages += answer_calls(toolscout, calls, known)
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

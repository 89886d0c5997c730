"""Toolscout as the tool search of Claude with deferred tools: for models that know no changes in the conversation.

All tools of the user stand in `tools` from the beginning, with `defer_loading`: the model sees the definition of none
but `find_tools`. The result of a search consists of `tool_reference` blocks, and the API puts the definitions to which
they refer into the model's context at that point. `tools` never changes, so that the prompt stays cached and newer
models keep their thinking. Each request carries all definitions, and tools that are connected later are for the next
conversation: for more than some dozens of tools, and with Claude Opus 4.8 or later, use anthropic_tool_search.py.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python anthropic # once: toolscout_client, and the SDK of Anthropic
    TOOLSCOUT_KEY=ts_user_... .venv/bin/python -m examples.anthropic_deferred_tools "what time is it in Tokyo?"

With ANTHROPIC_API_KEY the example uses Claude (ANTHROPIC_MODEL names the model), without it `fake_model`. The demo's
server `toolbox` runs its tools; all its other servers are invented: their tools are found, and the model gets an error
when it calls one. TOOLSCOUT_URL is the address of Toolscout.
"""

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

from anthropic import Anthropic
from anthropic.types import ToolParam, ToolUseBlock

from examples.fake_model import running_fake_model
from examples.toolscout_calls import CHECK, find_tools, open_toolscout, run_tool
from toolscout_client import Toolscout, ToolscoutError

Json = dict[str, Any]

FIND_TOOLS: ToolParam = {
    "name": "find_tools",
    "description": "Find tools for a task. Call it when you have no suitable tool, then call a tool that it found.",
    "input_schema": {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the task in one sentence"}},
        "required": ["query"],
    },
}
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-haiku-4-5")
MAX_TOOLS = 100
MAX_TURNS = 10


class Conversation:
    """The tools that a conversation declares, and which of them the model has seen."""

    def __init__(self, toolscout: Toolscout, message: str) -> None:
        self._toolscout = toolscout
        keys = [tool.id for tool in toolscout.tools.list(visible=True)]
        if len(keys) > MAX_TOOLS:
            sys.exit(f"{len(keys)} tools are too many to declare: use examples.anthropic_tool_search")
        declared = toolscout.discover(message, keep=keys, include_core_tools=False, format="anthropic")
        definitions: list[Any] = [{**definition, "defer_loading": True} for definition in declared.definitions]
        self.tools: list[ToolParam] = [FIND_TOOLS, *definitions]
        self._names = {tool.tool_key: tool.alias for tool in declared.tools}
        self._seen: set[str] = set()

    def answer_call(self, call: ToolUseBlock) -> Json:
        result: Json = {"type": "tool_result", "tool_use_id": call.id}
        if call.name == FIND_TOOLS["name"]:
            return result | self._search(call.input)
        print(f"called     {call.name} {json.dumps(call.input)}")
        text, failed = run_tool(self._toolscout, call.to_dict())
        return result | {"content": text, "is_error": failed}

    def _search(self, arguments: Any) -> Json:
        found = find_tools(self._toolscout, arguments, format="anthropic")
        if isinstance(found, str):
            return {"content": found, "is_error": True}
        # a tool that was connected since the conversation began is not declared
        names = [self._names[key] for key in found.tool_keys if key in self._names]
        new = [name for name in names if name not in self._seen]
        self._seen.update(new)
        if new:
            return {"content": [{"type": "tool_reference", "tool_name": name} for name in new]}
        known = f"You have {', '.join(names)}." if names else "No tool fits."
        return {"content": f"{known} Rephrase the query for others, or answer without a tool."}


def converse(model: Anthropic, toolscout: Toolscout, message: str) -> str:
    conversation = Conversation(toolscout, message)
    messages: list[Any] = [{"role": "user", "content": message}]
    for _ in range(MAX_TURNS):
        reply = model.messages.create(
            model=MODEL,
            max_tokens=2048,
            messages=messages,
            tools=conversation.tools,
            cache_control={"type": "ephemeral"},
        )
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        messages.append({"role": "assistant", "content": reply.content})  # with its thinking, as it came
        messages.append({"role": "user", "content": [conversation.answer_call(call) for call in calls]})
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

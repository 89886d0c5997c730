"""Toolscout as the client-executed tool search of OpenAI: the model searches for tools when it needs some.

The model starts with one tool, `tool_search`, which the client executes. The tools that Toolscout finds are the output
of the search. Their definitions enter the model's context at that point, so that nothing before them changes: the
prompt stays cached, and the model keeps its reasoning. Then the model calls a found function, and Toolscout runs it.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python           # once: toolscout_client
    TOOLSCOUT_KEY=ts_user_... .venv/bin/python -m examples.openai_tool_search "what time is it in Tokyo?"

With OPENAI_API_KEY the example uses OpenAI (OPENAI_MODEL names the model: gpt-5.4 or later), without it `fake_model`.
The demo's server `toolbox` runs its tools; all its other servers are invented: their tools are found, and the model
gets an error when it calls one. TOOLSCOUT_URL is the address of Toolscout.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseToolSearchCall, ToolSearchToolParam

from examples.fake_model import running_fake_model
from examples.toolscout_calls import CHECK, find_tools, open_toolscout, run_tool
from toolscout_client import Discovery, Toolscout, ToolscoutError

Json = dict[str, Any]

TOOL_SEARCH: ToolSearchToolParam = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools for a task. Use it when you have no suitable tool, then call a tool that it found.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the task in one sentence"}},
        "required": ["query"],
        "additionalProperties": False,
    },
}
MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.6-sol")
MAX_TURNS = 10


class Conversation:
    """Answers the calls of the model, which has the tools of its earlier searches."""

    def __init__(self, toolscout: Toolscout) -> None:
        self._toolscout = toolscout
        self._found: Discovery | None = None

    def answer_call(self, call: ResponseToolSearchCall | ResponseFunctionToolCall) -> Json:
        if isinstance(call, ResponseToolSearchCall):
            searched = {"type": "tool_search_output", "execution": "client", "status": "completed"}
            return {**searched, "call_id": call.call_id, "tools": self._search(call.arguments)}
        print(f"called     {call.name} {call.arguments}")
        text, failed = run_tool(self._toolscout, call.to_dict())
        output = f"The tool failed: {text}" if failed else text  # the API has no field for it
        return {"type": "function_call_output", "call_id": call.call_id, "output": output}

    def _search(self, arguments: Any) -> list[Json]:
        """Return the definitions that the model does not have yet."""
        found = find_tools(self._toolscout, arguments, keep=self._found or [], format="openai_responses")
        if isinstance(found, str):
            return []  # the output of a search has no field for a text
        self._found = found
        new, pairs = found.added or [], zip(found.tools, found.definitions, strict=True)
        return [{**definition, "defer_loading": True} for tool, definition in pairs if tool.tool_key in new]


def converse(model: OpenAI, toolscout: Toolscout, message: str) -> str:
    items: list[Any] = [{"role": "user", "content": message}]
    conversation = Conversation(toolscout)
    for _ in range(MAX_TURNS):
        reply = model.responses.create(model=MODEL, input=items, tools=[TOOL_SEARCH])
        calls = [item for item in reply.output if isinstance(item, ResponseToolSearchCall | ResponseFunctionToolCall)]
        if not calls:
            return reply.output_text
        items += [*reply.output, *map(conversation.answer_call, calls)]  # with its reasoning, as it came
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def main(message: str) -> None:
    key = os.environ.get("OPENAI_API_KEY")
    with (
        nullcontext(os.environ.get("OPENAI_BASE_URL")) if key else running_fake_model() as model_url,
        OpenAI(base_url=model_url, api_key=key or "none") as model,
        open_toolscout() as toolscout,
    ):
        print(f"user       {message}")
        print(f"model      {converse(model, toolscout, message)}")


if __name__ == "__main__":
    try:
        main(" ".join(sys.argv[1:]) or "what time is it in Tokyo?")
    except ToolscoutError as error:
        sys.exit(f"{error}\n{CHECK}")

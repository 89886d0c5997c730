"""Toolscout behind OpenAI's client-executed tool search: the model itself asks for tools, when it needs some.

The model begins with one tool, `tool_search`, which we execute. What Toolscout finds goes back as the search's output:
the definitions enter the model's context there, the prompt before them stays as it was, and so does its cache. Then the
model calls a found function, and Toolscout runs it.

    make run                                         # in another terminal; prints a demo user's key on its first start
    TOOLSCOUT_KEY=ts_user_... .venv/bin/python -m examples.openai_tool_search "what's the weather in Oslo tomorrow?"

With OPENAI_API_KEY set it talks to OpenAI (OPENAI_MODEL chooses the model: gpt-5.4 or later), else to `fake_model.py`.
The demo's tools are invented: they are found but cannot run, and the model is told so, as it is of any call that fails.
Connect a server of your own to see one run. TOOLSCOUT_URL is where Toolscout answers.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

import httpx2
from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseToolSearchCall, ToolSearchToolParam

from examples.fake_model import running_fake_model

Json = dict[str, Any]

TOOL_SEARCH: ToolSearchToolParam = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools for a task. Use it whenever you have none that fits; then call what it found.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the task, in a sentence"}},
        "required": ["query"],
        "additionalProperties": False,
    },
}
MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.5")
MOST_TURNS = 10


def find_tools(toolscout: httpx2.Client, query: str) -> list[Json]:
    # native tools are left out: a backend has its own among `tools` from the start, and runs them itself
    ask = {"query": query, "limit": 5, "include_core_tools": False, "format": "openai_responses"}
    found = toolscout.post("/discover", json=ask).raise_for_status().json()
    names, tokens = ", ".join(each["name"] for each in found["definitions"]) or "nothing", found["tokens"]
    print(f"searched   {query!r}: {names} ({tokens['selected']} tokens instead of {tokens['all']})")
    return [{**each, "defer_loading": True} for each in found["definitions"]]


def execute(toolscout: httpx2.Client, call: ResponseFunctionToolCall) -> str:
    """What came back. Toolscout takes the model's call as it is."""
    print(f"called     {call.name} {call.arguments}")
    # the call's own id, so that repeating the request would not repeat the deed
    headers = {"Idempotency-Key": call.call_id}
    answer = toolscout.post("/execute", json={"tool_call": call.to_dict()}, headers=headers)
    body = answer.json()
    if answer.is_error:
        text, failed = f"{body['code']}: {body['detail']} {body.get('errors', '')}".strip(), True
    else:
        # a chat backend would pass images on, too
        text = "\n".join(block["text"] for block in body["result"]["content"] if block["type"] == "text")
        failed = body["result"].get("isError", False)
    print(f"came back  {text}{' (an error)' if failed else ''}")
    return f"The tool failed: {text}" if failed else text  # there is no field that says so


def answer_call(toolscout: httpx2.Client, call: ResponseToolSearchCall | ResponseFunctionToolCall) -> Json:
    if isinstance(call, ResponseFunctionToolCall):
        return {"type": "function_call_output", "call_id": call.call_id, "output": execute(toolscout, call)}
    arguments: Any = call.arguments  # as TOOL_SEARCH describes them
    tools = find_tools(toolscout, arguments["query"])
    output = {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": tools}
    return {**output, "call_id": call.call_id}


def converse(model: OpenAI, toolscout: httpx2.Client, message: str) -> str:
    items: list[Any] = [{"role": "user", "content": message}]
    for _ in range(MOST_TURNS):
        reply = model.responses.create(model=MODEL, input=items, tools=[TOOL_SEARCH])
        calls = [item for item in reply.output if isinstance(item, ResponseToolSearchCall | ResponseFunctionToolCall)]
        if not calls:
            return reply.output_text
        items += [*reply.output, *(answer_call(toolscout, call) for call in calls)]
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


def main(message: str) -> None:
    key = os.environ.get("OPENAI_API_KEY")
    toolscout_url = os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` makes one")
    bearer = {"Authorization": f"Bearer {os.environ['TOOLSCOUT_KEY']}"}
    with (
        nullcontext(os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"))
        if key
        else running_fake_model() as model_url,
        OpenAI(base_url=model_url, api_key=key or "none") as model,
        httpx2.Client(base_url=toolscout_url, headers=bearer, timeout=120) as toolscout,
    ):
        print(f"user       {message}")
        print(f"model      {converse(model, toolscout, message)}")


if __name__ == "__main__":
    try:
        main(" ".join(sys.argv[1:]) or "what's the weather in Oslo tomorrow?")
    except httpx2.HTTPError as error:
        sys.exit(f"{error}\nIs Toolscout at TOOLSCOUT_URL, and is TOOLSCOUT_KEY one of its keys?")

"""Toolscout with OpenAI's client-executed tool search: the model searches for tools when it needs some.

The model starts with one tool, `tool_search`, which the client executes. The tools that Toolscout finds are the output
of the search. Their definitions enter the model's context at that point, so the prompt before them does not change and
stays cached. Then the model calls a found function, and Toolscout runs it.

    make run                                         # in another terminal; prints a demo user's key on its first start
    TOOLSCOUT_KEY=ts_user_... .venv/bin/python -m examples.openai_tool_search "what time is it in Tokyo?"

With OPENAI_API_KEY the example uses OpenAI (OPENAI_MODEL names the model: gpt-5.4 or later), without it
`fake_model.py`. The demo's server `toolbox` runs its tools; all its other servers are invented: their tools are found,
and the model gets an error when it calls one. TOOLSCOUT_URL is the address of Toolscout.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

import httpx2
from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseToolSearchCall, ToolSearchToolParam

from examples.fake_model import running_fake_model
from examples.problems import raise_for_problem

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
MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.5")
MAX_TURNS = 10


def find_tools(toolscout: httpx2.Client, query: str) -> list[Json]:
    # without core tools: a backend has its own tools in `tools` from the start, and runs them itself
    body = {"query": query, "limit": 5, "include_core_tools": False, "format": "openai_responses"}
    found = raise_for_problem(toolscout.post("/discover", json=body)).json()
    names, tokens = ", ".join(tool["name"] for tool in found["definitions"]) or "nothing", found["tokens"]
    print(f"searched   {query!r}: {names} ({tokens['selected']} tokens instead of {tokens['all']})")
    return [{**tool, "defer_loading": True} for tool in found["definitions"]]


def execute(toolscout: httpx2.Client, call: ResponseFunctionToolCall) -> str:
    """Return the text of the result. Toolscout accepts the model's tool call as it is."""
    print(f"called     {call.name} {call.arguments}")
    # with the call's id as idempotency key, repeating the request does not run the tool again
    headers = {"Idempotency-Key": call.call_id}
    response = toolscout.post("/execute", json={"tool_call": call.to_dict()}, headers=headers)
    body = response.json()
    if response.is_error:
        text, failed = f"{body['code']}: {body['detail']} {body.get('errors', '')}".strip(), True
    else:
        # a real backend would pass on images too
        text = "\n".join(block["text"] for block in body["result"]["content"] if block["type"] == "text")
        failed = body["result"].get("isError", False)
    print(f"result     {text}{' (an error)' if failed else ''}")
    return f"The tool failed: {text}" if failed else text  # the API has no field for it


def answer_call(toolscout: httpx2.Client, call: ResponseToolSearchCall | ResponseFunctionToolCall) -> Json:
    if isinstance(call, ResponseFunctionToolCall):
        return {"type": "function_call_output", "call_id": call.call_id, "output": execute(toolscout, call)}
    arguments: Any = call.arguments  # they match the schema in TOOL_SEARCH
    tools = find_tools(toolscout, arguments["query"])
    output = {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": tools}
    return {**output, "call_id": call.call_id}


def converse(model: OpenAI, toolscout: httpx2.Client, message: str) -> str:
    items: list[Any] = [{"role": "user", "content": message}]
    for _ in range(MAX_TURNS):
        reply = model.responses.create(model=MODEL, input=items, tools=[TOOL_SEARCH])
        calls = [item for item in reply.output if isinstance(item, ResponseToolSearchCall | ResponseFunctionToolCall)]
        if not calls:
            return reply.output_text
        items += [*reply.output, *(answer_call(toolscout, call) for call in calls)]
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def main(message: str) -> None:
    key = os.environ.get("OPENAI_API_KEY")
    toolscout_url = os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` creates one")
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
        main(" ".join(sys.argv[1:]) or "what time is it in Tokyo?")
    except httpx2.HTTPError as error:
        sys.exit(f"{error}\nCheck that Toolscout runs at TOOLSCOUT_URL and that TOOLSCOUT_KEY is one of its keys.")

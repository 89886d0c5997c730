"""Toolscout with Anthropic's deferred tool loading: the model searches for tools when it needs some.

The model starts with one tool, `find_tools`. The tools that Toolscout finds are added to `tools` with `defer_loading`,
and the result of the search refers to them. Their definitions enter the model's context at that point, so the prompt
before them does not change and stays cached. Then the model calls a found tool by its name, and Toolscout runs it.

    make run                                         # in another terminal; prints a demo user's key on its first start
    TOOLSCOUT_KEY=ts_user_... .venv/bin/python -m examples.anthropic_tool_search "what time is it in Tokyo?"

With ANTHROPIC_API_KEY the example uses Claude (ANTHROPIC_MODEL names the model), without it `fake_model.py`. The demo's
server `toolbox` runs its tools; all its other servers are invented: their tools are found, and the model gets an error
when it calls one. TOOLSCOUT_URL is the address of Toolscout.
"""

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

import httpx2

from examples.fake_model import running_fake_model
from examples.problems import raise_for_problem

Json = dict[str, Any]

FIND_TOOLS: Json = {
    "name": "find_tools",
    "description": "Find tools for a task. Call it when you have no suitable tool, then call a tool that it found.",
    "input_schema": {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the task in one sentence"}},
        "required": ["query"],
    },
}
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-opus-5")
MAX_TURNS = 10


def find_tools(toolscout: httpx2.Client, query: str, tools: dict[str, Json]) -> list[Json]:
    """Return the content of a `tool_result`. The tools that it refers to must be in `tools` of all further requests."""
    # without core tools: a backend has its own tools in `tools` from the start, and runs them itself
    body = {"query": query, "limit": 5, "include_core_tools": False, "format": "anthropic"}
    found = raise_for_problem(toolscout.post("/discover", json=body)).json()
    definitions = {tool["name"]: {**tool, "defer_loading": True} for tool in found["definitions"]}
    tools |= definitions | {FIND_TOOLS["name"]: FIND_TOOLS}  # a found tool must not replace it
    names, tokens = ", ".join(definitions) or "nothing", found["tokens"]
    print(f"searched   {query!r}: {names} ({tokens['selected']} tokens instead of {tokens['all']})")
    no_tool = {"type": "text", "text": "No tool fits. Rephrase the query, or answer without a tool."}
    return [{"type": "tool_reference", "tool_name": name} for name in definitions] or [no_tool]


def execute(toolscout: httpx2.Client, call: Json) -> tuple[str, bool]:
    """Return the text of the result, and whether it is an error. Toolscout accepts the model's tool call as it is."""
    print(f"called     {call['name']} {json.dumps(call['input'])}")
    # with the call's id as idempotency key, repeating the request does not run the tool again
    response = toolscout.post("/execute", json={"tool_call": call}, headers={"Idempotency-Key": call["id"]})
    body = response.json()
    if response.is_error:
        text, failed = f"{body['code']}: {body['detail']} {body.get('errors', '')}".strip(), True
    else:
        # a real backend would pass on images too
        text = "\n".join(block["text"] for block in body["result"]["content"] if block["type"] == "text")
        failed = body["result"].get("isError", False)
    print(f"result     {text}{' (an error)' if failed else ''}")
    return text, failed


def answer_call(toolscout: httpx2.Client, call: Json, tools: dict[str, Json]) -> Json:
    result = {"type": "tool_result", "tool_use_id": call["id"]}
    if call["name"] == FIND_TOOLS["name"]:
        return {**result, "content": find_tools(toolscout, call["input"]["query"], tools)}
    text, failed = execute(toolscout, call)
    return {**result, "content": [{"type": "text", "text": text}], "is_error": failed}


def converse(model: httpx2.Client, toolscout: httpx2.Client, message: str) -> str:
    messages: list[Json] = [{"role": "user", "content": message}]
    tools = {FIND_TOOLS["name"]: FIND_TOOLS}
    for _ in range(MAX_TURNS):
        body = {"model": MODEL, "max_tokens": 2048, "messages": messages, "tools": list(tools.values())}
        reply = model.post("/messages", json=body).raise_for_status().json()
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        if not calls:
            return "".join(block["text"] for block in reply["content"] if block["type"] == "text")
        results = [answer_call(toolscout, call, tools) for call in calls]
        messages += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": results}]
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def main(message: str) -> None:
    key = os.environ.get("ANTHROPIC_API_KEY")
    headers = {"x-api-key": key or "none", "anthropic-version": "2023-06-01"}
    toolscout_url = os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` creates one")
    bearer = {"Authorization": f"Bearer {os.environ['TOOLSCOUT_KEY']}"}
    with (
        nullcontext("https://api.anthropic.com/v1") if key else running_fake_model() as model_url,
        httpx2.Client(base_url=model_url, headers=headers, timeout=120) as model,
        httpx2.Client(base_url=toolscout_url, headers=bearer, timeout=120) as toolscout,
    ):
        print(f"user       {message}")
        print(f"model      {converse(model, toolscout, message)}")


if __name__ == "__main__":
    try:
        main(" ".join(sys.argv[1:]) or "what time is it in Tokyo?")
    except httpx2.HTTPError as error:
        sys.exit(f"{error}\nCheck that Toolscout runs at TOOLSCOUT_URL and that TOOLSCOUT_KEY is one of its keys.")

"""Toolscout behind Anthropic's deferred tool loading: the model itself asks for tools, when it needs some.

The model begins with one tool, `find_tools`. What Toolscout finds for it joins `tools` with `defer_loading`, and the
search is answered with references to it: the definitions enter the model's context there, the prompt before them stays
as it was, and so does its cache. Then the model calls a found tool by its name, and Toolscout runs it.

    make run                                         # in another terminal; prints a demo user's key on its first start
    TOOLSCOUT_KEY=ts_user_... .venv/bin/python -m examples.anthropic_tool_search "what's the weather in Oslo tomorrow?"

With ANTHROPIC_API_KEY set it talks to Claude (ANTHROPIC_MODEL chooses which), else to `fake_model.py`. The demo's tools
are invented: they are found but cannot run, and the model is told so, as it is of any call that fails. Connect a server
of your own to see one run. TOOLSCOUT_URL is where Toolscout answers.
"""

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

import httpx2

from examples.fake_model import running_fake_model

Json = dict[str, Any]

FIND_TOOLS: Json = {
    "name": "find_tools",
    "description": "Finds tools for a task. Call it whenever you have none that fits; then call what it found.",
    "input_schema": {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the task, in a sentence"}},
        "required": ["query"],
    },
}
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-opus-5")
MOST_TURNS = 10


def find_tools(toolscout: httpx2.Client, query: str, tools: dict[str, Json]) -> list[Json]:
    """The content of a `tool_result`. Whatever it refers to must be among the `tools` of all further requests."""
    # native tools are left out: a backend has its own among `tools` from the start, and runs them itself
    ask = {"query": query, "limit": 5, "include_core_tools": False, "format": "anthropic"}
    found = toolscout.post("/discover", json=ask).raise_for_status().json()
    definitions = {each["name"]: {**each, "defer_loading": True} for each in found["definitions"]}
    tools |= definitions | {FIND_TOOLS["name"]: FIND_TOOLS}  # whose place no found tool takes
    names, tokens = ", ".join(definitions) or "nothing", found["tokens"]
    print(f"searched   {query!r}: {names} ({tokens['selected']} tokens instead of {tokens['all']})")
    nothing = {"type": "text", "text": "No tool fits. Try other words, or answer without."}
    return [{"type": "tool_reference", "tool_name": name} for name in definitions] or [nothing]


def execute(toolscout: httpx2.Client, call: Json) -> tuple[str, bool]:
    """What came back, and whether it is an error. Toolscout takes the model's call as it is."""
    print(f"called     {call['name']} {json.dumps(call['input'])}")
    # the call's own id, so that repeating the request would not repeat the deed
    answer = toolscout.post("/execute", json={"tool_call": call}, headers={"Idempotency-Key": call["id"]})
    body = answer.json()
    if answer.is_error:
        text, failed = f"{body['code']}: {body['detail']} {body.get('errors', '')}".strip(), True
    else:
        # a chat backend would pass images on, too
        text = "\n".join(block["text"] for block in body["result"]["content"] if block["type"] == "text")
        failed = body["result"].get("isError", False)
    print(f"came back  {text}{' (an error)' if failed else ''}")
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
    for _ in range(MOST_TURNS):
        ask = {"model": MODEL, "max_tokens": 2048, "messages": messages, "tools": list(tools.values())}
        reply = model.post("/messages", json=ask).raise_for_status().json()
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        if not calls:
            return "".join(block["text"] for block in reply["content"] if block["type"] == "text")
        results = [answer_call(toolscout, call, tools) for call in calls]
        messages += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": results}]
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


def main(message: str) -> None:
    key = os.environ.get("ANTHROPIC_API_KEY")
    headers = {"x-api-key": key or "none", "anthropic-version": "2023-06-01"}
    toolscout_url = os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` makes one")
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
        main(" ".join(sys.argv[1:]) or "what's the weather in Oslo tomorrow?")
    except httpx2.HTTPError as error:
        sys.exit(f"{error}\nIs Toolscout at TOOLSCOUT_URL, and is TOOLSCOUT_KEY one of its keys?")

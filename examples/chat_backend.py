"""A chat backend in a page: messages in, the few tools they need, the model, the tools it calls, an answer out.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python           # once: toolscout_client
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.chat_backend "what's the weather in Oslo?" "send a message to Kim"

The user says one argument after the other. With OPENAI_API_KEY set it talks to OpenAI, or to what speaks like it at
OPENAI_BASE_URL (OPENAI_MODEL chooses the model), else to `fake_model.py`. The demo's tools are invented: they are found
but cannot run, and the model is told so. TOOLSCOUT_URL is where Toolscout answers.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

from openai import OpenAI, omit

from examples.fake_model import running_fake_model
from toolscout_client import InvalidInput, NotFound, ToolFailed, Toolscout, ToolscoutError

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.5")
MOST_TURNS = 10
MOST_TOOLS = 20


def run_tool(toolscout: Toolscout, call: Any) -> str:
    """What the model is told, be it a result or an error."""
    print(f"called     {call.function.name} {call.function.arguments}")
    try:
        done = toolscout.execute(tool_call=call.to_dict())
        text, failed = done.text, done.is_error
    except (NotFound, InvalidInput, ToolFailed) as error:
        text, failed = str(error), True
    print(f"came back  {text}{' (an error)' if failed else ''}")
    return f"The tool failed: {text}" if failed else text


def answer(toolscout: Toolscout, model: OpenAI, messages: list[Any], kept: list[str]) -> str:
    """What the model says to the user; `messages` and `kept` are for the next time."""
    # native tools are left out: a backend has its own, and runs them itself
    found = toolscout.discover(messages=messages[-20:], keep=kept, include_core_tools=False, format="openai")
    # first and in this order next time, so that the model's prompt cache holds; anew where they have become too many
    kept[:] = found.tool_keys if len(found.tools) < MOST_TOOLS else []
    print(f"found      {', '.join(tool.alias for tool in found.tools) or 'nothing'} ({found.tokens.selected} tokens)")
    definitions: Any = found.definitions or omit
    for _ in range(MOST_TURNS):
        reply = model.chat.completions.create(model=MODEL, messages=messages, tools=definitions).choices[0].message
        messages.append(reply.to_dict())
        if not reply.tool_calls:
            return reply.content or ""
        results = [(call.id, run_tool(toolscout, call)) for call in reply.tool_calls]
        messages += [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results]
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


def main(*said: str) -> None:
    key, url = os.environ.get("OPENAI_API_KEY"), os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` makes one")
    messages: list[Any] = []
    kept: list[str] = []
    with (
        nullcontext(os.environ.get("OPENAI_BASE_URL")) if key else running_fake_model() as model_url,
        OpenAI(base_url=model_url, api_key=key or "none") as model,
        Toolscout(url, os.environ["TOOLSCOUT_KEY"]) as toolscout,
    ):
        for message in said:
            print(f"user       {message}")
            messages.append({"role": "user", "content": message})
            print(f"model      {answer(toolscout, model, messages, kept)}")


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what's the weather in Oslo?", "send a message to Kim"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\nIs Toolscout at TOOLSCOUT_URL, and is TOOLSCOUT_KEY one of its keys?")

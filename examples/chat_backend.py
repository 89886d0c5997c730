"""A chat backend on one page: find the tools that a message needs, call the model, run the tools that it calls.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python           # once: toolscout_client
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.chat_backend "what time is it in Tokyo?" "calculate (17.5 + 4) * 3"

Each argument is a message of the user. With OPENAI_API_KEY the example uses OpenAI, or a compatible API at
OPENAI_BASE_URL (OPENAI_MODEL names the model), without it `fake_model.py`. The demo's server `toolbox` runs its tools;
all its other servers are invented: their tools are found, and the model gets an error when it calls one. TOOLSCOUT_URL
is the address of Toolscout.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

from openai import OpenAI, omit

from examples.fake_model import running_fake_model
from toolscout_client import Conflict, InvalidInput, NotFound, ToolFailed, Toolscout, ToolscoutError

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.5")
MAX_TURNS = 10
MAX_TOOLS = 20


def run_tool(toolscout: Toolscout, call: Any) -> str:
    """Return the text for the model: the result or the error."""
    print(f"called     {call.function.name} {call.function.arguments}")
    try:
        done = toolscout.execute(tool_call=call.to_dict())
        text, failed = done.text, done.is_error
    except (NotFound, Conflict, InvalidInput, ToolFailed) as error:
        text, failed = str(error), True
    print(f"result     {text}{' (an error)' if failed else ''}")
    return f"The tool failed: {text}" if failed else text


def answer(toolscout: Toolscout, model: OpenAI, messages: list[Any], kept: list[str]) -> str:
    """Return the model's answer. `messages` and `kept` are updated for the next message."""
    # without core tools: a backend has its own tools and runs them itself
    found = toolscout.discover(messages=messages[-20:], keep=kept, include_core_tools=False, format="openai")
    # the same tools come first next time, so that the prompt stays cached; start over when there are too many
    kept[:] = found.tool_keys if len(found.tools) < MAX_TOOLS else []
    print(f"found      {', '.join(tool.alias for tool in found.tools) or 'nothing'} ({found.tokens.selected} tokens)")
    definitions: Any = found.definitions or omit
    for _ in range(MAX_TURNS):
        reply = model.chat.completions.create(model=MODEL, messages=messages, tools=definitions).choices[0].message
        messages.append(reply.to_dict())
        if not reply.tool_calls:
            return reply.content or ""
        results = [(call.id, run_tool(toolscout, call)) for call in reply.tool_calls]
        messages += [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results]
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def main(*user_messages: str) -> None:
    key, url = os.environ.get("OPENAI_API_KEY"), os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` creates one")
    messages: list[Any] = []
    kept: list[str] = []
    with (
        nullcontext(os.environ.get("OPENAI_BASE_URL")) if key else running_fake_model() as model_url,
        OpenAI(base_url=model_url, api_key=key or "none") as model,
        Toolscout(url, os.environ["TOOLSCOUT_KEY"]) as toolscout,
    ):
        for message in user_messages:
            print(f"user       {message}")
            messages.append({"role": "user", "content": message})
            print(f"model      {answer(toolscout, model, messages, kept)}")


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what time is it in Tokyo?", "calculate (17.5 + 4) * 3"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\nCheck that Toolscout runs at TOOLSCOUT_URL and that TOOLSCOUT_KEY is one of its keys.")

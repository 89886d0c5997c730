"""A chat backend on one page: find the tools that a message needs, call the model, run the tools that it calls.

Everything that the model was sent stays as it was, and new tools are appended to the conversation, so that the prompt
stays cached and the model keeps its reasoning.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python           # once: toolscout_client
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.chat_backend "what time is it in Tokyo?" "calculate (17.5 + 4) * 3"

Each argument is a message of the user. With OPENAI_API_KEY the example uses OpenAI's Responses API (OPENAI_MODEL names
the model: gpt-5.5 or later), without it `fake_model`. The demo's server `toolbox` runs its tools; all its other servers
are invented: their tools are found, and the model gets an error when it calls one. TOOLSCOUT_URL is the address of
Toolscout. `anthropic_chat.py` does the same with Claude.
"""

import os
import sys
import uuid
from contextlib import nullcontext
from typing import Any

from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall

from examples.fake_model import running_fake_model
from examples.toolscout_calls import CHECK, open_toolscout, print_found, run_tool
from toolscout_client import Conversation, Toolscout, ToolscoutError

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.6-sol")
MAX_TURNS = 10


def add_tools(toolscout: Toolscout, chat: Conversation, turn: int, items: list[Any]) -> None:
    """Append the tools that the last message needs and the model does not have yet."""
    # without core tools: a backend has its own tools in `tools`, which never changes, and runs them itself
    found = toolscout.discover(
        messages=items[-20:], keep=chat, turn=turn, include_core_tools=False, format="openai_responses"
    )
    print_found(found)
    if found.changes is not None:
        items.append(found.changes.message)


def answer(toolscout: Toolscout, chat: Conversation, model: OpenAI, items: list[Any]) -> str:
    """Return the model's answer. `items` grows at its end, and nowhere else."""
    for _ in range(MAX_TURNS):
        reply = model.responses.create(model=MODEL, input=items, store=False, include=["reasoning.encrypted_content"])
        items += [item.to_dict() for item in reply.output]  # with its reasoning, as it came
        calls = [item for item in reply.output if isinstance(item, ResponseFunctionToolCall)]
        if not calls:
            return reply.output_text
        items += [answer_call(toolscout, chat, call) for call in calls]
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def answer_call(toolscout: Toolscout, chat: Conversation, call: ResponseFunctionToolCall) -> dict[str, str]:
    print(f"called     {call.name} {call.arguments}")
    text, failed = run_tool(toolscout, call.to_dict(), conversation_id=chat.id)
    output = f"The tool failed: {text}" if failed else text  # the API has no field for it
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def main(*user_messages: str) -> None:
    key = os.environ.get("OPENAI_API_KEY")
    items: list[Any] = []
    chat = Conversation(uuid.uuid4().hex)  # a real backend has an id of each chat already
    with (
        nullcontext(os.environ.get("OPENAI_BASE_URL")) if key else running_fake_model() as model_url,
        OpenAI(base_url=model_url, api_key=key or "none") as model,
        open_toolscout() as toolscout,
    ):
        for turn, message in enumerate(user_messages, 1):
            print(f"user       {message}")
            items.append({"role": "user", "content": message})
            add_tools(toolscout, chat, turn, items)
            print(f"model      {answer(toolscout, chat, model, items)}")


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what time is it in Tokyo?", "calculate (17.5 + 4) * 3"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\n{CHECK}")

"""A chat backend with Claude: find the tools that a message needs, call the model, run the tools that it calls.

`tools` holds what the backend runs itself, and never changes: newer models reject a conversation whose `tools` have
changed since they thought about it, and for every model the prompt cache begins with `tools`. What Toolscout finds
joins the conversation behind the user's message, in a system message with `tool_addition` blocks, and leaves it with
`tool_removal`.

    make run                                         # in another terminal; prints a demo user's key on its first start
    .venv/bin/pip install ./clients/python anthropic # once: toolscout_client, and the SDK of Anthropic
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.anthropic_chat "what time is it in Tokyo?" "calculate (17.5 + 4) * 3"

Each argument is a message of the user. With ANTHROPIC_API_KEY the example uses Claude (ANTHROPIC_MODEL names the model,
which must know mid-conversation system messages: Claude Opus 4.8 or later), without it `fake_model`. The demo's server
`toolbox` runs its tools; all its other servers are invented: their tools are found, and the model gets an error when it
calls one. TOOLSCOUT_URL is the address of Toolscout.
"""

import json
import os
import sys
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from anthropic import Anthropic
from anthropic.types.beta import BetaToolParam, BetaToolUseBlock

from examples.fake_model import running_fake_model
from examples.toolscout_calls import CHECK, open_toolscout, print_found, run_tool
from toolscout_client import Conversation, Toolscout, ToolscoutError

# With at least one tool in `tools`, the first tool that is added later does not change the beginning of the prompt.
TODAY: BetaToolParam = {
    "name": "get_date_of_today",
    "description": "Get the date of today, in UTC.",
    "input_schema": {"type": "object", "properties": {}},
}
BETAS = ["inline-tools-2026-09-15"]
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-opus-5-5")
MAX_TURNS = 10


def change_tools(toolscout: Toolscout, chat: Conversation, turn: int, messages: list[Any]) -> None:
    """Append the tools that the last message needs and the model does not have yet, and those that it loses."""
    found = toolscout.discover(
        messages=messages[-20:], keep=chat, turn=turn, include_core_tools=False, format="anthropic"
    )
    print_found(found)
    if found.changes is not None:
        messages.append(found.changes.message)


def answer(toolscout: Toolscout, chat: Conversation, model: Anthropic, messages: list[Any]) -> str:
    """Return the model's answer. `messages` grows at its end, and nowhere else."""
    for _ in range(MAX_TURNS):
        reply = model.beta.messages.create(
            model=MODEL,
            max_tokens=2048,
            messages=messages,
            tools=[TODAY],
            betas=BETAS,
            cache_control={"type": "ephemeral"},
        )
        content = [block.to_dict() for block in reply.content]  # with its thinking, as it came
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        messages.append({"role": "user", "content": [answer_call(toolscout, chat, call) for call in calls]})
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def answer_call(toolscout: Toolscout, chat: Conversation, call: BetaToolUseBlock) -> dict[str, Any]:
    print(f"called     {call.name} {json.dumps(call.input)}")
    if call.name == TODAY["name"]:
        text, failed = datetime.now(UTC).date().isoformat(), False
    else:
        text, failed = run_tool(toolscout, call.to_dict(), conversation_id=chat.id)
    return {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": failed}


def main(*user_messages: str) -> None:
    key = os.environ.get("ANTHROPIC_API_KEY")
    messages: list[Any] = []
    chat = Conversation(uuid.uuid4().hex)  # a real backend has an id of each chat already
    with (
        nullcontext(os.environ.get("ANTHROPIC_BASE_URL")) if key else running_fake_model() as model_url,
        Anthropic(base_url=model_url, api_key=key or "none") as model,
        open_toolscout() as toolscout,
    ):
        for turn, message in enumerate(user_messages, 1):
            print(f"user       {message}")
            messages.append({"role": "user", "content": message})
            change_tools(toolscout, chat, turn, messages)
            print(f"model      {answer(toolscout, chat, model, messages)}")


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what time is it in Tokyo?", "calculate (17.5 + 4) * 3"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\n{CHECK}")

"""An agent of Pydantic AI that gets its tools from Toolscout: those that each message needs.

    make run                                                            # in another terminal; prints a demo user's key
    .venv/bin/pip install './clients/python[pydantic-ai]' openai        # once: toolscout_client with its adapter
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.pydantic_ai_agent "what is the current time in Tokyo?" "calculate (17.5 + 4) * 3"

Each argument is a message of the user in one conversation. With OPENAI_API_KEY the agent uses the model OPENAI_MODEL,
without it `fake_model`, which rejects reasoning behind a changed prompt: tools of a later message are sent behind the
conversation, and `tools` does not change. The demo's server `toolbox` runs its tools; the model gets an error when it
calls a tool of another one. TOOLSCOUT_URL is the address of Toolscout.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from examples.fake_model import running_fake_model
from toolscout_client import AsyncToolscout, ToolscoutError
from toolscout_client.adapters.pydantic_ai import ToolscoutToolset

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.6-sol")


def print_steps(messages: Sequence[ModelMessage]) -> None:
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                print(f"called     {part.tool_name} {part.args_as_json_str()}")
            elif isinstance(part, ToolReturnPart):
                print(f"result     {part.content}{'' if part.outcome == 'success' else ' (an error)'}")


async def chat(agent: Agent[Any, str], user_messages: Sequence[str]) -> None:
    history: list[ModelMessage] = []
    for message in user_messages:
        print(f"user       {message}")
        result = await agent.run(message, message_history=history)
        print_steps(result.new_messages())
        print(f"model      {result.output}")
        history = result.all_messages()  # also records the tools that the model has


async def main(*user_messages: str) -> None:
    key, url = os.environ.get("OPENAI_API_KEY"), os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` creates one")
    with nullcontext(os.environ.get("OPENAI_BASE_URL")) if key else running_fake_model() as model_url:
        model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=model_url, api_key=key or "none"))
        async with AsyncToolscout(url, os.environ["TOOLSCOUT_KEY"]) as toolscout:
            # with a service key: user_id=lambda ctx: ctx.deps.user_id names the user of each run
            await chat(Agent(model, toolsets=[ToolscoutToolset(toolscout)]), user_messages)


if __name__ == "__main__":
    try:
        asyncio.run(main(*(sys.argv[1:] or ["what is the current time in Tokyo?", "calculate (17.5 + 4) * 3"])))
    except ToolscoutError as error:
        sys.exit(f"{error}\nCheck that Toolscout runs at TOOLSCOUT_URL and that TOOLSCOUT_KEY is one of its keys.")

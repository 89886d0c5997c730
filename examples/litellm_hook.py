"""Toolscout in LiteLLM: a hook adds the tools that each request needs, and the program runs what the model calls.

    make run                                                  # in another terminal; prints a demo user's key
    .venv/bin/pip install './clients/python[litellm]'         # once: toolscout_client and litellm
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.litellm_hook "what time is it in Tokyo?" "calculate (17.5 + 4) * 3"

Each argument is a message of the user. LITELLM_MODEL names a model of any provider that LiteLLM knows, such as
`openai/gpt-5.6-sol` or `anthropic/claude-opus-5-5`, whose key LiteLLM reads from the environment; without it the
example uses `fake_model`. In LiteLLM's proxy the same hook serves all callers: see docs/guides/frameworks.md. The
demo's server `toolbox` runs its tools; all its other servers are invented: their tools are found, and the model gets an
error when it calls one. TOOLSCOUT_URL is the address of Toolscout.
"""

import asyncio
import os
import sys
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # before the import, which would fetch a list of prices

import litellm

from examples.fake_model import running_fake_model
from examples.toolscout_calls import CHECK, get_toolscout_address
from toolscout_client import AsyncToolscout, ToolscoutError
from toolscout_client.adapters.litellm import ToolscoutHook, run_tool_call

MAX_TURNS = 10


class PrintingHook(ToolscoutHook):
    """Prints the tools of each request, to show what the hook does."""

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        request = await super().async_pre_call_deployment_hook(kwargs, call_type)
        names = [tool["function"]["name"] for tool in (request or kwargs).get("tools", [])]
        print(f"offered    {', '.join(names) or 'nothing'}")
        return request


async def answer(toolscout: AsyncToolscout, messages: list[Any], model: dict[str, Any]) -> str:
    """Return the model's answer to the last message. `messages` is updated for the next one."""
    for _ in range(MAX_TURNS):
        completion: Any = await litellm.acompletion(messages=messages, **model)
        reply = completion.choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            return reply.content or ""
        for call in reply.tool_calls:
            print(f"called     {call.function.name} {call.function.arguments}")
            messages.append(await run_tool_call(toolscout, call))
            print(f"result     {messages[-1]['content']}")
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


async def converse(user_messages: tuple[str, ...], model: dict[str, Any]) -> None:
    messages: list[Any] = []
    async with AsyncToolscout(*get_toolscout_address()) as toolscout:
        await toolscout.discover("hello")  # the hook would only log that the key is refused
        litellm.callbacks = [PrintingHook(toolscout)]
        for message in user_messages:
            print(f"user       {message}")
            messages.append({"role": "user", "content": message})
            print(f"model      {await answer(toolscout, messages, model)}")
    litellm.callbacks = []
    # LiteLLM logs in the background, in tasks that never end
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=0.2)


def main(*user_messages: str) -> None:
    name = os.environ.get("LITELLM_MODEL")
    with nullcontext() if name else running_fake_model() as fake_url:
        model = {"model": name} if name else {"model": "openai/fake", "api_base": fake_url, "api_key": "none"}
        asyncio.run(converse(user_messages, model))


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what time is it in Tokyo?", "calculate (17.5 + 4) * 3"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\n{CHECK}")

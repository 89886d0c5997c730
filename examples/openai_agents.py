"""An agent of the OpenAI Agents SDK that gets its tools from Toolscout: those that each message needs.

    make run                                                 # in another terminal; prints a demo user's key
    .venv/bin/pip install './clients/python[agents]'         # once: toolscout_client and openai-agents
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.openai_agents "what time is it in Tokyo?" "calculate (17.5 + 4) * 3"

Each argument is a message of the user in one conversation. With OPENAI_API_KEY the agent uses OpenAI, or a compatible
API at OPENAI_BASE_URL (OPENAI_MODEL names the model), without it `fake_model`. New tools are appended to the
conversation (`additional_tools`), so that the model keeps its reasoning and the prompt stays cached; a model that does
not accept that needs `ToolscoutTools(toolscout)` instead. A destructive call waits for your approval. The demo's server
`toolbox` runs its tools; all its other servers are invented: their tools are found, and the model gets an error when
it calls one. TOOLSCOUT_URL is the address of Toolscout.
"""

import asyncio
import os
import sys
from contextlib import nullcontext
from typing import Any

from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, RunResult
from agents.items import ToolCallItem, ToolCallOutputItem
from openai import AsyncOpenAI

from examples.fake_model import running_fake_model
from examples.toolscout_calls import CHECK, get_toolscout_address
from toolscout_client import AsyncToolscout, ToolscoutError
from toolscout_client.adapters.openai_agents import FoundTool, ToolscoutTools

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.6-sol")


async def run(agent: Agent[None], items: list[Any]) -> RunResult:
    """Run the agent, and ask the user for each call that needs an approval."""
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(agent, items, run_config=config)
    while result.interruptions:
        state = result.to_state()
        for call in result.interruptions:
            answer = await asyncio.to_thread(input, f"run {call.tool_name} {call.arguments}? [y/N] ")
            state.approve(call) if answer == "y" else state.reject(call)
        result = await Runner.run(agent, state, run_config=config)
    return result


def print_run(agent: Agent[None], result: RunResult) -> None:
    names = [tool.name for tool in agent.tools if isinstance(tool, FoundTool)]
    print(f"found      {', '.join(names) or 'nothing'}")
    for item in result.new_items:
        if isinstance(item, ToolCallItem):
            print(f"called     {item.tool_name} {getattr(item.raw_item, 'arguments', '')}")
        elif isinstance(item, ToolCallOutputItem):
            print(f"result     {item.output}")
    print(f"model      {result.final_output}")


async def converse(model: OpenAIResponsesModel, *messages: str) -> None:
    # the reasoning is sent back with the conversation, since nothing of it is stored at OpenAI
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    assistant = Agent[None](name="assistant", model=model, model_settings=settings)
    items: list[Any] = []
    async with AsyncToolscout(*get_toolscout_address()) as toolscout:
        tools = ToolscoutTools(toolscout, search_tool=None, additional_tools=True)
        for message in messages:
            print(f"user       {message}")
            items.append({"role": "user", "content": message})
            agent = await tools.equip(assistant, items)
            result = await run(agent, items)
            print_run(agent, result)
            items = result.to_input_list()


async def start(model_url: str | None, key: str, messages: tuple[str, ...]) -> None:
    async with AsyncOpenAI(base_url=model_url, api_key=key) as client:
        await converse(OpenAIResponsesModel(MODEL, client), *messages)


def main(*messages: str) -> None:
    key = os.environ.get("OPENAI_API_KEY")
    with nullcontext(os.environ.get("OPENAI_BASE_URL")) if key else running_fake_model() as model_url:
        asyncio.run(start(model_url, key or "none", messages))


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what time is it in Tokyo?", "calculate (17.5 + 4) * 3"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\n{CHECK}")

"""An agent of LangChain and LangGraph that gets its tools from Toolscout: those that each message needs.

    make run                                                    # in another terminal; prints a demo user's key
    .venv/bin/pip install './clients/python[langchain]'         # once: toolscout_client with its adapter
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.langgraph_agent "what time is it in Tokyo?" "calculate (17.5 + 4) * 3"

Each argument is a message of the user in one conversation, whose earlier tools the checkpointer keeps. With
OPENAI_API_KEY (and the package langchain-openai) the agent uses the model OPENAI_MODEL, without it `fake_model`. The
demo's server `toolbox` runs its tools; the model gets an error when it calls a tool of another one. TOOLSCOUT_URL is
the address of Toolscout.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from openai import OpenAI, omit

from examples.fake_model import running_fake_model
from toolscout_client import Toolscout, ToolscoutError
from toolscout_client.adapters.langchain import ToolscoutMiddleware, ToolscoutTools

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5.5")


class FakeChatModel(BaseChatModel):
    """The fake model for LangChain. A real application uses a package such as langchain-openai instead."""

    url: str

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])

    def _generate(self, messages: list[BaseMessage], *_: Any, tools: Any = omit, **__: Any) -> ChatResult:
        with OpenAI(base_url=self.url, api_key="none") as client:
            sent: Any = convert_to_openai_messages(messages)
            reply = client.chat.completions.create(model="fake", messages=sent, tools=tools).choices[0].message
        calls = [
            {"name": call.function.name, "args": json.loads(call.function.arguments), "id": call.id}
            for call in reply.tool_calls or ()
            if call.type == "function"
        ]
        answer = AIMessage(reply.content or "", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def print_step(message: BaseMessage) -> None:
    if isinstance(message, ToolMessage):
        print(f"result     {message.text}{' (an error)' if message.status == 'error' else ''}")
    elif isinstance(message, AIMessage):
        for call in message.tool_calls:
            print(f"called     {call['name']} {json.dumps(call['args'])}")
        if message.text:
            print(f"model      {message.text}")


def main(*user_messages: str) -> None:
    key, url = os.environ.get("OPENAI_API_KEY"), os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000")
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` creates one")
    with (
        nullcontext("") if key else running_fake_model() as model_url,
        Toolscout(url, os.environ["TOOLSCOUT_KEY"]) as toolscout,
    ):
        model = init_chat_model(f"openai:{MODEL}") if key else FakeChatModel(url=str(model_url))
        # with a service key: config={"configurable": {"user_id": …}} names the user of each run
        middleware = [ToolscoutMiddleware(ToolscoutTools(toolscout))]
        agent: Any = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
        for message in user_messages:
            print(f"user       {message}")
            turn = {"messages": [{"role": "user", "content": message}]}
            for step in agent.stream(turn, {"configurable": {"thread_id": "example"}}, stream_mode="updates"):
                for update in step.values():
                    for new in (update or {}).get("messages", []):
                        print_step(new)


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what time is it in Tokyo?", "calculate (17.5 + 4) * 3"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\nCheck that Toolscout runs at TOOLSCOUT_URL and that TOOLSCOUT_KEY is one of its keys.")

"""A graph of LangGraph whose model searches for its tools, with Toolscout in place of langgraph-bigtool's retriever.

    make run                                                    # in another terminal; prints a demo user's key
    .venv/bin/pip install './clients/python[langgraph]'         # once: toolscout_client with its adapter
    .venv/bin/pip install langchain                             # once: for `init_chat_model`
    export TOOLSCOUT_KEY=ts_user_...
    .venv/bin/python -m examples.langgraph_tool_search "what time is it in Tokyo?" "calculate (17.5 + 4) * 3"

The model starts with one tool, `retrieve_tools`. What it finds is bound to it from then on. Each argument is a message
of the user in one conversation, whose tools the checkpointer keeps. With OPENAI_API_KEY (and the package
langchain-openai) the graph uses the model OPENAI_MODEL, without it `fake_model`. The demo's server `toolbox` runs its
tools; the model gets an error when it calls a tool of another one. TOOLSCOUT_URL is the address of Toolscout.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

from langchain.chat_models import init_chat_model
from langgraph.checkpoint.memory import InMemorySaver

from examples.fake_model import running_fake_model
from examples.langgraph_agent import MODEL, FakeChatModel, print_step
from examples.toolscout_calls import CHECK, open_toolscout
from toolscout_client import ToolscoutError
from toolscout_client.adapters.langgraph import ToolscoutRegistry, ToolscoutTools, create_agent


def main(*user_messages: str) -> None:
    key = os.environ.get("OPENAI_API_KEY")
    with (
        nullcontext("") if key else running_fake_model() as model_url,
        open_toolscout() as toolscout,
    ):
        model = init_chat_model(f"openai:{MODEL}") if key else FakeChatModel(url=str(model_url))
        # with a service key: config={"configurable": {"user_id": …}} names the user of each run
        registry = ToolscoutRegistry(ToolscoutTools(toolscout, limit=5))
        graph: Any = create_agent(model, registry).compile(checkpointer=InMemorySaver())
        for message in user_messages:
            print(f"user       {message}")
            turn = {"messages": [{"role": "user", "content": message}]}
            for step in graph.stream(turn, {"configurable": {"thread_id": "example"}}, stream_mode="updates"):
                for update in step.values():
                    for new in update["messages"]:
                        print_step(new)


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["what time is it in Tokyo?", "calculate (17.5 + 4) * 3"]))
    except ToolscoutError as error:
        sys.exit(f"{error}\n{CHECK}")

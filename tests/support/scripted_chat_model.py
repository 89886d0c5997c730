"""A LangChain chat model that plays back its answers and records what it was given."""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

Json = dict[str, Any]


def call(name: str, arguments: Json | None = None, call_id: str = "call_1") -> AIMessage:
    """Return an answer that calls a tool."""
    tool_call = {"name": name, "args": arguments or {}, "id": call_id, "type": "tool_call"}
    return AIMessage("", tool_calls=[tool_call])


class ScriptedChatModel(BaseChatModel):
    answers: list[AIMessage]
    """The answers to come; the last one is repeated."""
    bound: list[list[Json]] = Field(default_factory=list)
    """The functions of each binding, as OpenAI's API gets them."""
    received: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def bound_names(self) -> list[list[str]]:
        return [[function["name"] for function in functions] for functions in self.bound]

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "ScriptedChatModel":
        self.bound.append([convert_to_openai_tool(tool)["function"] for tool in tools])
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 of the base
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> ChatResult:
        self.received.append(list(messages))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return ChatResult(generations=[ChatGeneration(message=answer.model_copy(update={"id": None}))])

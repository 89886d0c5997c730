"""A chat backend for each vendor, with the vendor's SDK, that plays the conversation and counts its tokens."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anthropic
import openai

from bench.tool_changes.conversation import Script
from bench.tool_changes.sources import Offer, ToolSource

Json = dict[str, Any]

ASK_USER = "ask_user"
_DESCRIPTION = "Ask the user a question and wait for the answer."
_SCHEMA: Json = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}


@dataclass
class Tally:
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    rejected: list[int] = field(default_factory=list)
    """The messages that the API rejected at first, since the model had thought before something that has changed."""

    @property
    def uncached_tokens(self) -> int:
        return self.input_tokens - self.cached_tokens

    @property
    def cost(self) -> float:
        """In tokens that are not cached, where a cached token costs a tenth."""
        return self.uncached_tokens + self.cached_tokens / 10


class Chat(ABC):
    api_format: ClassVar[str]

    def __init__(self, source: ToolSource, script: Script) -> None:
        self._source, self._script = source, script
        self.history: list[Any] = []
        self.betas: set[str] = set()
        self.tally = Tally()

    def play(self) -> Tally:
        for turn in range(1, len(self._script.exchanges) + 1):
            self.take_turn(turn)
        return self.tally

    def take_turn(self, turn: int) -> None:
        self.history.append({"role": "user", "content": self._script.exchanges[turn - 1].user})
        offer = self._source.offer(self.history)
        self.history += [] if offer.change is None else [offer.change]
        self.betas.update(offer.betas)
        while calls := self._request(offer, turn):
            self._append_results({id_: self._script.find_result(turn, name) for id_, name in calls.items()})

    def _request(self, offer: Offer, turn: int) -> dict[str, str]:
        """Return the names of the called tools by the ids of the calls.

        If the API rejects what the model has thought, remove the thoughts and send the rest, as its error advises.
        """
        self.tally.requests += 1
        try:
            return self._send(offer)
        except (anthropic.BadRequestError, openai.BadRequestError):
            self.tally.rejected += [turn] if turn not in self.tally.rejected else []
            self._remove_thoughts()
            return self._send(offer)

    def _count(self, input_tokens: int, cached_tokens: int) -> None:
        self.tally.input_tokens += input_tokens
        self.tally.cached_tokens += cached_tokens

    @abstractmethod
    def _send(self, offer: Offer) -> dict[str, str]: ...

    @abstractmethod
    def _append_results(self, results: dict[str, str]) -> None: ...

    @abstractmethod
    def _remove_thoughts(self) -> None: ...


class AnthropicChat(Chat):
    api_format = "anthropic"
    own_tool: ClassVar[Any] = {"name": ASK_USER, "description": _DESCRIPTION, "input_schema": _SCHEMA}

    def __init__(self, url: str, source: ToolSource, script: Script) -> None:
        super().__init__(source, script)
        self._client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def _send(self, offer: Offer) -> dict[str, str]:
        reply = self._client.beta.messages.create(
            model="claude-opus-5-5",
            max_tokens=1_000,
            messages=self.history,
            tools=[self.own_tool, *offer.tools],
            betas=sorted(self.betas),
            cache_control={"type": "ephemeral"},
        )
        cached = reply.usage.cache_read_input_tokens or 0
        self._count(reply.usage.input_tokens + cached + (reply.usage.cache_creation_input_tokens or 0), cached)
        self.history.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
        return {block.id: block.name for block in reply.content if block.type == "tool_use"}

    def _append_results(self, results: dict[str, str]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in results.items()]
        self.history.append({"role": "user", "content": blocks})

    def _remove_thoughts(self) -> None:
        for message in self.history:
            if message["role"] == "assistant":
                message["content"] = [block for block in message["content"] if block["type"] != "thinking"]


class OpenAIChat(Chat):
    api_format = "openai_responses"
    own_tool: ClassVar[Any] = {
        "type": "function",
        "name": ASK_USER,
        "description": _DESCRIPTION,
        "parameters": _SCHEMA,
        "strict": False,
    }

    def __init__(self, url: str, source: ToolSource, script: Script) -> None:
        super().__init__(source, script)
        self._client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)

    def _send(self, offer: Offer) -> dict[str, str]:
        allowed = None if offer.allowed is None else [ASK_USER, *offer.allowed]
        reply = self._client.responses.create(
            model="gpt-5.6-sol",
            input=self.history,
            tools=[self.own_tool, *offer.tools],
            tool_choice="auto" if allowed is None else self._allow(allowed),
            store=False,
            include=["reasoning.encrypted_content"],
        )
        assert reply.usage is not None
        self._count(reply.usage.input_tokens, reply.usage.input_tokens_details.cached_tokens)
        self.history += [item.to_dict() for item in reply.output]
        return {item.call_id: item.name for item in reply.output if item.type == "function_call"}

    def _allow(self, names: list[str]) -> Any:
        tools = [{"type": "function", "name": name} for name in names]
        return {"type": "allowed_tools", "mode": "auto", "tools": tools}

    def _append_results(self, results: dict[str, str]) -> None:
        outputs = ({"type": "function_call_output", "call_id": id_, "output": text} for id_, text in results.items())
        self.history += outputs

    def _remove_thoughts(self) -> None:
        self.history = [item for item in self.history if item.get("type") != "reasoning"]


CHATS: dict[str, type[AnthropicChat | OpenAIChat]] = {"Anthropic": AnthropicChat, "OpenAI": OpenAIChat}

"""OpenAI's `POST /v1/chat/completions`, which knows no search and returns no reasoning."""

import json
import uuid

from examples.fake_model.behaviour import Json, Turn, View
from examples.fake_model.errors import reject_if
from examples.fake_model.prefix import Usage, serialize

_UNANSWERED = "The following tool_call_ids did not have response messages: "


class ChatRequest:
    """A request, checked. `view` is what the model sees, `parts` is the prompt from its beginning to its end."""

    def __init__(self, request: Json) -> None:
        self.request = request
        reject_if(request.get("tools") == [], "[] is too short - 'tools'")
        tools = [tool["function"] for tool in request.get("tools", [])]
        self.view = View(tools={tool["name"]: tool["parameters"] for tool in tools})
        self.parts = [serialize(part) for part in (*tools, *request["messages"])]
        unanswered: set[str] = set()
        for message in request["messages"]:
            if message["role"] == "tool":
                reject_if(
                    message["tool_call_id"] not in unanswered,
                    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
                )
                unanswered.remove(message["tool_call_id"])
                self.view.results.append(message["content"])
                continue
            reject_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")
            unanswered = {call["id"] for call in message.get("tool_calls") or []}
            if message["role"] == "user":
                self.view.begin_message(message["content"])
        reject_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")

    def make_response(self, turn: Turn, usage: Usage) -> Json:
        message: Json = {"role": "assistant", "content": turn.text or None}
        if turn.tool is not None:
            function = {"name": turn.tool, "arguments": json.dumps(turn.arguments)}
            message["tool_calls"] = [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]
        finish_reason = "stop" if turn.tool is None else "tool_calls"
        return {
            "id": f"chatcmpl_{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": 0,
            "model": self.request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {
                "prompt_tokens": usage.input_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                "completion_tokens": 1,
                "total_tokens": usage.input_tokens + 1,
            },
        }

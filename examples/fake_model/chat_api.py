"""OpenAI's `POST /v1/chat/completions`, which returns no reasoning."""

import json
import uuid

from examples.fake_model.behaviour import SEARCH_NAMES, Json, Turn, View
from examples.fake_model.errors import reject_if
from examples.fake_model.prefix import Usage, serialize

_UNANSWERED = "The following tool_call_ids did not have response messages: "


class ChatRequest:
    """A request, checked. `view` is what the model sees, `parts` is the prompt from its beginning to its end."""

    def __init__(self, request: Json) -> None:
        self.request = request
        reject_if(request.get("tools") == [], "[] is too short - 'tools'")
        tools = [tool["function"] for tool in request.get("tools", [])]
        self.view = View(tools={tool["name"]: tool["parameters"] for tool in tools if tool["name"] not in SEARCH_NAMES})
        self.parts = [serialize(part) for part in (*tools, *request["messages"])]
        has_searched = False
        unanswered: dict[str, str] = {}
        for message in request["messages"]:
            if message["role"] == "tool":
                reject_if(
                    message["tool_call_id"] not in unanswered,
                    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
                )
                if unanswered.pop(message["tool_call_id"]) not in SEARCH_NAMES:
                    self.view.results.append(message["content"])
                continue
            reject_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")
            unanswered = {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or []}
            has_searched |= any(name in SEARCH_NAMES for name in unanswered.values())
            if message["role"] == "user":
                self.view.begin_message(message["content"])
                has_searched = False
        search = next((tool for tool in tools if tool["name"] in SEARCH_NAMES), None)
        if search is not None and not has_searched:
            self.view.search = (search["name"], search["parameters"])
        reject_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")

    def make_response(self, turn: Turn, usage: Usage) -> Json:
        message: Json = {"role": "assistant", "content": turn.text or None}
        if turn.search is not None and self.view.search is not None:
            message["tool_calls"] = [_make_call(self.view.search[0], turn.search)]
        elif turn.tool is not None:
            message["tool_calls"] = [_make_call(turn.tool, turn.arguments)]
        finish_reason = "tool_calls" if "tool_calls" in message else "stop"
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


def _make_call(name: str, arguments: Json | None) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}

"""OpenAI's `POST /v1/responses`, of a model that reads the reasoning of earlier turns (gpt-5.6 and later).

OpenAI's documentation says that `tools` stands before the input in the cached prefix, and that reasoning items are sent
back as they were. What happens to a reasoning item whose prefix has changed is not documented: with `strict`, the fake
rejects the request, otherwise it leaves the reasoning out, as the model does that no longer finds what it refers to.
"""

import json
import uuid
from typing import Any

from examples.fake_model.behaviour import Json, Turn, View
from examples.fake_model.errors import InvalidRequest, reject_if
from examples.fake_model.prefix import Usage, serialize, sign_prefix

_OUTPUT_TYPES = {"tool_search_call": "tool_search_output", "function_call": "function_call_output"}


class ResponsesRequest:
    """A request, checked. `view` is what the model sees, `parts` is the prompt from its beginning to its end."""

    def __init__(self, request: Json, *, strict: bool) -> None:
        self.request, self._strict = request, strict
        self.tools: list[Json] = request.get("tools") or []
        given = request["input"]
        self.items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else given
        self._available: dict[str, Json] = {}
        self.view = View()
        self.parts = [serialize(tool) for tool in self.tools] + [serialize(request.get("instructions"))]
        self.dropped: list[str] = []
        """The reasoning items that were left out, since what stood before them has changed."""
        self.redundant: list[str] = []
        """Tools that the model had already, with the same definition."""
        self._unanswered: dict[str, str] = {}
        self._has_searched = False
        self._given_at: dict[str, int] = {}
        self._add_tools(self.tools, -1)
        for index, item in enumerate(self.items):
            self._read_item(index, item)
        for call_id in self._unanswered:
            raise InvalidRequest(f"No tool output found for function call {call_id}.")
        self._finish_view()

    def _add_tools(self, tools: list[Json], index: int) -> None:
        for tool in tools:
            if tool["type"] == "function":
                self.redundant += [tool["name"]] if self._available.get(tool["name"]) == tool else []
                self._available[tool["name"]] = tool
                self._given_at[tool["name"]] = index

    def _read_item(self, index: int, item: Json) -> None:
        kind = item.get("type", "message")
        if kind == "reasoning":
            self._read_reasoning(index, item)
            return
        tools = item.get("tools")
        self.parts += [serialize(item)] if tools is None else [kind, *(serialize(tool) for tool in tools)]
        if kind == "additional_tools":
            reject_if(item.get("role") != "developer", f"Invalid value: input[{index}].role must be 'developer'.")
            self._add_tools(item["tools"], index)
        elif kind in _OUTPUT_TYPES:
            self._unanswered[item["call_id"]] = _OUTPUT_TYPES[kind]
            self._has_searched |= kind == "tool_search_call"
        elif kind in _OUTPUT_TYPES.values():
            self._read_output(kind, item, index)
        elif item.get("role") == "user":
            content = item["content"]
            text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
            self.view.begin_message(text)
            self._has_searched = False

    def _read_reasoning(self, index: int, item: Json) -> None:
        if item["encrypted_content"] == self._sign(self.items[:index]):
            self.parts += [part["text"] for part in item["summary"]]
            return
        reject_if(
            self._strict,
            f"The encrypted content for item {item['id']} could not be verified: what precedes it has changed.",
            "invalid_encrypted_content",
        )
        self.dropped.append(item["id"])

    def _sign(self, items: list[Json]) -> str:
        return sign_prefix(self.tools, self.request.get("instructions"), items)

    def _read_output(self, kind: str, item: Json, index: int) -> None:
        unexpected = self._unanswered.pop(item["call_id"], None) != kind
        reject_if(unexpected, f"No tool call found for function call output with call_id {item['call_id']}.")
        if kind == "tool_search_output":
            self._add_tools(item["tools"], index)
        else:
            self.view.results.append(item["output"])

    def _finish_view(self) -> None:
        search = next((tool for tool in self.tools if tool["type"] == "tool_search"), None)
        if search is not None and not self._has_searched:
            self.view.search = ("tool_search", search["parameters"])
        allowed = self._read_allowed_names()
        names = [name for name in self._available if name in allowed]
        names.sort(key=self._given_at.__getitem__, reverse=True)
        self.view.tools = {name: self._available[name]["parameters"] for name in names}

    def _read_allowed_names(self) -> set[str]:
        choice = self.request.get("tool_choice") or "auto"
        if not isinstance(choice, dict):
            return set(self._available)
        reject_if(choice["type"] != "allowed_tools", "The fake model supports no tool_choice but allowed_tools.")
        names = {tool["name"] for tool in choice["tools"]}
        for name in names - self._available.keys():  # whether the API rejects it is not documented
            raise InvalidRequest(f"Tool choice '{name}' not found in 'tools' parameter.")
        return names

    def make_response(self, turn: Turn, usage: Usage) -> Json:
        reasoning = {
            "type": "reasoning",
            "id": f"rs_{uuid.uuid4().hex}",
            "summary": [{"type": "summary_text", "text": turn.thinking}],
            "encrypted_content": self._sign(self.items),
        }
        details = {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.input_tokens - usage.cached_tokens,
        }
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": 0,
            "model": self.request["model"],
            "status": "completed",
            "output": [reasoning, _make_item(turn)],
            "tools": self.tools,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": details,
                "output_tokens": 1,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.input_tokens + 1,
            },
        }


def _make_item(turn: Turn) -> dict[str, Any]:
    item: Json = {"status": "completed", "call_id": f"call_{uuid.uuid4().hex}"}
    if turn.search is not None:
        kind = {"type": "tool_search_call", "id": f"tsc_{uuid.uuid4().hex}", "execution": "client"}
        return item | kind | {"arguments": turn.search}
    if turn.tool is not None:
        function = {"type": "function_call", "id": f"fc_{uuid.uuid4().hex}", "name": turn.tool}
        return item | function | {"arguments": json.dumps(turn.arguments)}
    content = [{"type": "output_text", "text": turn.text, "annotations": []}]
    message = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "status": "completed", "role": "assistant"}
    return message | {"content": content}

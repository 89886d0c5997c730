"""A fake model that needs no key, with Anthropic's Messages and OpenAI's Responses and Chat Completions APIs.

It searches with the user's message if it has to, calls the tool whose name has most words in common with the message
(or the first one) and repeats the result. It fills the required arguments with what a pattern finds in the message: a
number, a calculation, a unit, a place, or else the whole message. It rejects what the real APIs reject, so that an
example that works here sends valid requests: a reference to a missing tool, only deferred tools, an empty list of
tools, a result without its call, a call without its result.
"""

import json
import re
import socketserver
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

Json = dict[str, Any]


class InvalidRequest(Exception):
    """Answered with status 400, as by the real APIs."""


@dataclass
class Conversation:
    """What the model knows about the conversation."""

    message: str
    search_name: str
    search_schema: Json
    found: dict[str, Json] | None = None  # input schemas by tool name; None: it has not searched yet
    result: str | None = None


@dataclass
class Turn:
    """The next turn of the model: a search, a tool call or a text."""

    text: str = ""
    search: Json | None = None
    tool: str | None = None
    arguments: Json | None = None


def decide_turn(conversation: Conversation) -> Turn:
    if conversation.result is not None:
        return Turn(text=f"The tool says: {conversation.result}")
    if conversation.found is None:
        return Turn(search=arguments_for(conversation.search_schema, conversation.message))
    if not conversation.found:
        return Turn(text="I have no tool for that.")
    words = set(re.findall(r"\w{4,}", conversation.message.lower()))
    # max returns the first tool if no name matches better
    name = max(conversation.found, key=lambda tool: len(words & set(tool.lower().split("_"))))
    return Turn(tool=name, arguments=arguments_for(conversation.found[name], conversation.message))


def arguments_for(schema: Json, message: str) -> Json:
    properties = schema.get("properties", {})
    return {name: _make_value(name, properties.get(name, {}), message) for name in schema.get("required", [])}


_PLACE = r"\b(?:in|at|near|to|for) ([A-Z]\w+(?: [A-Z]\w+)*)"
_TEXTS = {
    "query": r"(.*)",
    "expression": r"([\d(][\d\s.+*/^()-]*[\d)])",
    "from": r"\d\s*([^\W\d]+)",  # the unit behind a number
    "to": r"\b(?:to|into|in|many) ([^\W\d]+)",
}
"""Patterns by a word in the parameter's name; for all others there is `_PLACE`."""


def _make_value(name: str, schema: Json, message: str) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "string":
        pattern = next((_TEXTS[word] for word in name.split("_") if word in _TEXTS), _PLACE)
        found = re.search(pattern, message, re.DOTALL)
        return found[1] if found else message
    if kind in ("number", "integer") and (number := re.search(r"\d+(?:\.\d+)?", message)):
        return float(number[0]) if kind == "number" else int(float(number[0]))
    array = [_make_value(name, schema.get("items", {}), message)] if schema.get("minItems") else []
    simple_values: Json = {"boolean": False, "array": array, "object": arguments_for(schema, message), "null": None}
    return simple_values.get(kind, schema.get("minimum", 1))


def messages_api(request: Json) -> Json:
    """Anthropic's `POST /v1/messages`."""
    conversation = _read_messages(request)
    turn = decide_turn(conversation)
    content: Json = {"type": "text", "text": turn.text}
    if turn.search is not None:
        content = {"type": "tool_use", "id": _new_id("toolu"), "name": conversation.search_name, "input": turn.search}
    elif turn.tool is not None:
        content = {"type": "tool_use", "id": _new_id("toolu"), "name": turn.tool, "input": turn.arguments}
    return {
        "id": _new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [content],
        "stop_reason": "end_turn" if turn.text else "tool_use",
    }


def _read_messages(request: Json) -> Conversation:
    tools = {tool["name"]: tool for tool in request["tools"]}
    _reject_if(len(tools) < len(request["tools"]), "tools: Tool names must be unique.")
    loaded = [tool for tool in tools.values() if not tool.get("defer_loading")]
    _reject_if(not loaded, "At least one tool must have defer_loading=false. All tools cannot be deferred.")
    _reject_if("max_tokens" not in request, "max_tokens: Field required")

    conversation = Conversation(request["messages"][0]["content"], loaded[0]["name"], loaded[0]["input_schema"])
    unanswered: set[str] = set()
    for message in request["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block for block in blocks if block["type"] == "tool_result"]
        answered = {result["tool_use_id"] for result in results}
        for unknown in answered - unanswered:
            raise InvalidRequest(f"unexpected `tool_use_id` found in `tool_result` blocks: {unknown}")
        for missing in unanswered - answered:
            raise InvalidRequest(f"`tool_use` ids were found without `tool_result` blocks immediately after: {missing}")
        for result in results:
            _apply_result(conversation, result["content"], tools)
        unanswered = {block["id"] for block in blocks if block["type"] == "tool_use"}
    _reject_if(bool(unanswered), "`tool_use` ids were found without `tool_result` blocks immediately after")
    return conversation


def _apply_result(conversation: Conversation, content: list[Json], tools: dict[str, Json]) -> None:
    """The first result is that of the search, later ones are results of tools."""
    names = [block["tool_name"] for block in content if block["type"] == "tool_reference"]
    for name in names:
        _reject_if(name not in tools, f"Tool reference '{name}' not found in available tools")
    if conversation.found is None:
        conversation.found = {name: tools[name]["input_schema"] for name in names}
    else:
        conversation.result = "\n".join(block["text"] for block in content if block["type"] == "text")


def responses_api(request: Json) -> Json:
    """OpenAI's `POST /v1/responses`."""
    turn = decide_turn(_read_input(request))
    item: Json = {"status": "completed", "call_id": _new_id("call")}
    if turn.search is not None:
        item |= {"type": "tool_search_call", "id": _new_id("tsc"), "execution": "client", "arguments": turn.search}
    elif turn.tool is not None:
        arguments = json.dumps(turn.arguments)
        item |= {"type": "function_call", "id": _new_id("fc"), "name": turn.tool, "arguments": arguments}
    else:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        item = {"type": "message", "id": _new_id("msg"), "status": "completed", "role": "assistant", "content": content}
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": 0,
        "model": request["model"],
        "status": "completed",
        "output": [item],
        "tools": request["tools"],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }


_OUTPUT_TYPES = {"tool_search_call": "tool_search_output", "function_call": "function_call_output"}


def _read_input(request: Json) -> Conversation:
    searches = [tool for tool in request["tools"] if tool["type"] == "tool_search"]
    _reject_if(not searches, "The fake model supports only requests with a tool_search tool.")
    conversation = Conversation(request["input"][0]["content"], "tool_search", searches[0]["parameters"])
    unanswered: dict[str, str] = {}
    for item in request["input"]:
        kind = item.get("type", "message")
        if kind in _OUTPUT_TYPES:
            unanswered[item["call_id"]] = _OUTPUT_TYPES[kind]
        elif kind in _OUTPUT_TYPES.values():
            unexpected = unanswered.pop(item["call_id"], None) != kind
            _reject_if(unexpected, f"No tool call found for function call output with call_id {item['call_id']}.")
            if kind == "tool_search_output":
                conversation.found = {tool["name"]: tool["parameters"] for tool in item["tools"]}
            else:
                conversation.result = item["output"]
    for call_id in unanswered:
        raise InvalidRequest(f"No tool output found for function call {call_id}.")
    return conversation


def chat_api(request: Json) -> Json:
    """OpenAI's `POST /v1/chat/completions`."""
    turn = decide_turn(_read_chat(request))
    message: Json = {"role": "assistant", "content": turn.text or None}
    if turn.tool is not None:
        function = {"name": turn.tool, "arguments": json.dumps(turn.arguments)}
        message["tool_calls"] = [{"id": _new_id("call"), "type": "function", "function": function}]
    finish_reason = "stop" if turn.tool is None else "tool_calls"
    return {
        "id": _new_id("chatcmpl"),
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
    }


def _read_chat(request: Json) -> Conversation:
    """All tools are in the request, so there is no search."""
    _reject_if(request.get("tools") == [], "[] is too short - 'tools'")
    tools = [tool["function"] for tool in request.get("tools", [])]
    conversation = Conversation("", "", {}, found={tool["name"]: tool["parameters"] for tool in tools})
    unanswered: set[str] = set()
    for message in request["messages"]:
        if message["role"] == "tool":
            unexpected = message["tool_call_id"] not in unanswered
            _reject_if(
                unexpected, "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            )
            unanswered.remove(message["tool_call_id"])
            conversation.result = message["content"]
            continue
        _reject_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")
        unanswered = {call["id"] for call in message.get("tool_calls", [])}
        if message["role"] == "user":
            conversation.message, conversation.result = message["content"], None
    _reject_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")
    return conversation


_UNANSWERED = "The following tool_call_ids did not have response messages: "


def _reject_if(condition: bool, message: str) -> None:
    if condition:
        raise InvalidRequest(message)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


_APIS = {"/v1/messages": messages_api, "/v1/responses": responses_api, "/v1/chat/completions": chat_api}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self._answer(200, _APIS[self.path](request))
        except InvalidRequest as rejection:
            error = {"type": "invalid_request_error", "message": str(rejection)}
            self._answer(400, {"type": "error", "error": error})

    def _answer(self, status: int, body: Json) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: the examples print what matters."""


@contextmanager
def running_fake_model() -> Iterator[str]:
    """Yield the base URL of all three APIs, up to `/v1`."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()

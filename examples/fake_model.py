"""A model that needs no key: Anthropic's Messages, OpenAI's Responses and Chat Completions APIs, for the examples.

It thinks little: it searches with the user's message where it has to, calls the tool whose name shares most words with
the message, else the first, with plain arguments, and says what came back. But it is honest. What the real APIs refuse
it refuses, so that an example that works here has the right shapes: a reference to a tool that is not there, nothing
but deferred tools, an empty list of tools, a result without its call, a call without its result.
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


class Refused(Exception):
    """Answered with 400, as the real APIs do."""


@dataclass
class Conversation:
    """What the model knows when it is its turn."""

    message: str
    search_name: str
    search_schema: Json
    found: dict[str, Json] | None = None  # by name, the input schemas; None: it has not searched yet
    result: str | None = None


@dataclass
class Turn:
    """What the model does with it: it searches, calls a tool, or says something."""

    text: str = ""
    search: Json | None = None
    tool: str | None = None
    arguments: Json | None = None


def think(talk: Conversation) -> Turn:
    if talk.result is not None:
        return Turn(text=f"The tool says: {talk.result}")
    if talk.found is None:
        return Turn(search=arguments_for(talk.search_schema, talk.message))
    if not talk.found:
        return Turn(text="I have no tool for that.")
    said = set(re.findall(r"\w{4,}", talk.message.lower()))
    name = max(talk.found, key=lambda each: len(said & set(each.lower().split("_"))))  # the first, if none is better
    return Turn(tool=name, arguments=arguments_for(talk.found[name], talk.message))


def arguments_for(schema: Json, message: str) -> Json:
    properties = schema.get("properties", {})
    return {name: _value(name, properties.get(name, {}), message) for name in schema.get("required", [])}


def _value(name: str, schema: Json, message: str) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "string":
        place = re.search(r"\b(?:in|at|near|to|for) ([A-Z]\w+)", message)
        return place[1] if place and name != "query" else message
    array = [_value(name, schema.get("items", {}), message)] if schema.get("minItems") else []
    plain: Json = {"boolean": False, "array": array, "object": arguments_for(schema, message), "null": None}
    return plain.get(kind, schema.get("minimum", 1))


def messages_api(request: Json) -> Json:
    """Anthropic's `POST /v1/messages`."""
    talk = _read_messages(request)
    turn = think(talk)
    content: Json = {"type": "text", "text": turn.text}
    if turn.search is not None:
        content = {"type": "tool_use", "id": _new_id("toolu"), "name": talk.search_name, "input": turn.search}
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
    _refuse_if(len(tools) < len(request["tools"]), "tools: Tool names must be unique.")
    at_once = [tool for tool in tools.values() if not tool.get("defer_loading")]
    _refuse_if(not at_once, "At least one tool must have defer_loading=false. All tools cannot be deferred.")
    _refuse_if("max_tokens" not in request, "max_tokens: Field required")

    talk = Conversation(request["messages"][0]["content"], at_once[0]["name"], at_once[0]["input_schema"])
    unanswered: set[str] = set()
    for message in request["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block for block in blocks if block["type"] == "tool_result"]
        answered = {result["tool_use_id"] for result in results}
        for unknown in answered - unanswered:
            raise Refused(f"unexpected `tool_use_id` found in `tool_result` blocks: {unknown}")
        for missing in unanswered - answered:
            raise Refused(f"`tool_use` ids were found without `tool_result` blocks immediately after: {missing}")
        for result in results:
            _learn(talk, result["content"], tools)
        unanswered = {block["id"] for block in blocks if block["type"] == "tool_use"}
    _refuse_if(bool(unanswered), "`tool_use` ids were found without `tool_result` blocks immediately after")
    return talk


def _learn(talk: Conversation, content: list[Json], tools: dict[str, Json]) -> None:
    """The first answer is the search's, the others are tools' results."""
    names = [block["tool_name"] for block in content if block["type"] == "tool_reference"]
    for name in names:
        _refuse_if(name not in tools, f"Tool reference '{name}' not found in available tools")
    if talk.found is None:
        talk.found = {name: tools[name]["input_schema"] for name in names}
    else:
        talk.result = "\n".join(block["text"] for block in content if block["type"] == "text")


def responses_api(request: Json) -> Json:
    """OpenAI's `POST /v1/responses`."""
    turn = think(_read_input(request))
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


_ANSWERS = {"tool_search_call": "tool_search_output", "function_call": "function_call_output"}


def _read_input(request: Json) -> Conversation:
    searches = [tool for tool in request["tools"] if tool["type"] == "tool_search"]
    _refuse_if(not searches, "This fake only knows how to begin with a tool_search tool.")
    talk = Conversation(request["input"][0]["content"], "tool_search", searches[0]["parameters"])
    unanswered: dict[str, str] = {}
    for item in request["input"]:
        kind = item.get("type", "message")
        if kind in _ANSWERS:
            unanswered[item["call_id"]] = _ANSWERS[kind]
        elif kind in _ANSWERS.values():
            stray = unanswered.pop(item["call_id"], None) != kind
            _refuse_if(stray, f"No tool call found for function call output with call_id {item['call_id']}.")
            if kind == "tool_search_output":
                talk.found = {tool["name"]: tool["parameters"] for tool in item["tools"]}
            else:
                talk.result = item["output"]
    for call_id in unanswered:
        raise Refused(f"No tool output found for function call {call_id}.")
    return talk


def chat_api(request: Json) -> Json:
    """OpenAI's `POST /v1/chat/completions`."""
    turn = think(_read_chat(request))
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
    """The tools are there from the start: there is nothing to search."""
    _refuse_if(request.get("tools") == [], "[] is too short - 'tools'")
    tools = [tool["function"] for tool in request.get("tools", [])]
    talk = Conversation("", "", {}, found={tool["name"]: tool["parameters"] for tool in tools})
    unanswered: set[str] = set()
    for message in request["messages"]:
        if message["role"] == "tool":
            stray = message["tool_call_id"] not in unanswered
            _refuse_if(stray, "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.")
            unanswered.remove(message["tool_call_id"])
            talk.result = message["content"]
            continue
        _refuse_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")
        unanswered = {call["id"] for call in message.get("tool_calls", [])}
        if message["role"] == "user":
            talk.message, talk.result = message["content"], None
    _refuse_if(bool(unanswered), f"{_UNANSWERED}{', '.join(unanswered)}")
    return talk


_UNANSWERED = "The following tool_call_ids did not have response messages: "


def _refuse_if(wrong: bool, why: str) -> None:
    if wrong:
        raise Refused(why)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


_APIS = {"/v1/messages": messages_api, "/v1/responses": responses_api, "/v1/chat/completions": chat_api}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self._answer(200, _APIS[self.path](request))
        except Refused as refused:
            error = {"type": "invalid_request_error", "message": str(refused)}
            self._answer(400, {"type": "error", "error": error})

    def _answer(self, status: int, body: Json) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """The examples print what matters."""


@contextmanager
def running_fake_model() -> Iterator[str]:
    """Its address, as a base URL of all three APIs, up to `/v1`."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()

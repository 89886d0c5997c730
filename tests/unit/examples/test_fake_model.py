"""The fake model of the examples rejects what the real APIs reject, and counts what their caches would serve."""

import copy
import json
from typing import Any

import pytest

from examples.anthropic_tool_search import FIND_TOOLS
from examples.fake_model import FakeModel, InvalidRequest, Turn, View, arguments_for
from examples.fake_model.messages_api import BINDING_CONTROLS, INLINE_TOOLS, TOOL_CHANGES
from examples.openai_tool_search import TOOL_SEARCH

Json = dict[str, Any]

MESSAGE = "what's the weather in Oslo tomorrow?"
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
NOTE = {"name": "write_note", "description": "", "input_schema": {"type": "object", "properties": {}}}
FORECAST = {"name": "get_forecast", "description": "", "input_schema": PLACE}
DEFERRED_FORECAST = {**FORECAST, "defer_loading": True}
TEXT = Turn(text="hi")
CACHED = {"cache_control": {"type": "ephemeral"}}


def send(model: FakeModel, api: str, request: Json, *betas: str) -> Json:
    return model.answer(f"/v1/{api}", copy.deepcopy(request), frozenset(betas))


def reject(api: str, request: Json, *betas: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        send(FakeModel(), api, request, *betas)
    return caught.value


# Anthropic: searches and results

SEARCH = {"type": "tool_use", "id": "toolu_1", "name": "find_tools", "input": {"query": MESSAGE}}
SEARCH_RESULT = {
    "type": "tool_result",
    "tool_use_id": "toolu_1",
    "content": [{"type": "tool_reference", "tool_name": "get_forecast"}],
}


def make_messages_request(tools: list[Any], *results: Json) -> Json:
    """Return a request after the model has searched."""
    turns = [
        {"role": "user", "content": MESSAGE},
        {"role": "assistant", "content": [SEARCH]},
        {"role": "user", "content": list(results)},
    ]
    return {"model": "fake", "max_tokens": 100, "tools": tools, "messages": turns}


def test_a_valid_search_result_leads_to_a_call() -> None:
    request = make_messages_request([FIND_TOOLS, DEFERRED_FORECAST], SEARCH_RESULT)
    answer = send(FakeModel(), "messages", request)
    assert answer["content"][-1]["name"] == "get_forecast"


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [
        (
            make_messages_request([FIND_TOOLS], SEARCH_RESULT),
            "Tool reference 'get_forecast' not found in available tools",
        ),
        (
            make_messages_request([{**FIND_TOOLS, "defer_loading": True}, DEFERRED_FORECAST], SEARCH_RESULT),
            "All tools cannot be deferred",
        ),
        (
            make_messages_request([FIND_TOOLS, DEFERRED_FORECAST, DEFERRED_FORECAST], SEARCH_RESULT),
            "Tool names must be unique",
        ),
        (
            make_messages_request([FIND_TOOLS, DEFERRED_FORECAST], {**SEARCH_RESULT, "tool_use_id": "toolu_2"}),
            "unexpected `tool_use_id`",
        ),
        (make_messages_request([FIND_TOOLS, DEFERRED_FORECAST]), "without `tool_result` blocks"),
    ],
)
def test_messages_that_the_real_api_rejects_are_rejected(request_body: Json, reason: str) -> None:
    assert reason in str(reject("messages", request_body))


# Anthropic: the prefix of a thinking block


def begin_chat(model: FakeModel, tools: list[Json]) -> list[Json]:
    """Return the messages after a first turn without a call, of which the answer has a thinking block."""
    messages: list[Json] = [{"role": "user", "content": "hello"}]
    answer = send(model, "messages", make_chat(tools, messages))
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    return [*messages, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": MESSAGE}]


def make_chat(tools: list[Json], messages: list[Json], **fields: Any) -> Json:
    return {"model": "fake", "max_tokens": 100, "tools": tools, "messages": messages, **fields}


def silent_model() -> FakeModel:
    """A model that answers with a text, whatever tools it has."""
    return FakeModel(lambda _: TEXT)


SYSTEM_TEXT = {"role": "system", "content": "be brief"}


def test_a_conversation_whose_tools_stay_the_same_goes_on() -> None:
    model = silent_model()
    messages = begin_chat(model, [NOTE])
    assert send(model, "messages", make_chat([NOTE], messages))["content"][-1]["text"] == "hi"
    moved_marker = [{**NOTE, **CACHED}]
    assert send(model, "messages", make_chat(moved_marker, messages))["input_transformations"] == []


@pytest.mark.parametrize(
    "tools",
    [[NOTE, FORECAST], [], [{**NOTE, "description": "new"}], [NOTE, DEFERRED_FORECAST]],
    ids=["appended", "removed", "changed", "appended and deferred"],
)
def test_a_thinking_block_is_bound_to_the_tools_of_its_request(tools: list[Json]) -> None:
    model = silent_model()
    messages = begin_chat(model, [NOTE])
    with pytest.raises(InvalidRequest, match=r"messages\.1\.content\.0: .*bound to a different conversation"):
        send(model, "messages", make_chat(tools, messages))


def test_a_thinking_block_is_bound_to_the_messages_before_it() -> None:
    model = silent_model()
    messages = begin_chat(model, [NOTE])
    messages[0] = {"role": "user", "content": "good morning"}
    with pytest.raises(InvalidRequest, match="bound to a different conversation"):
        send(model, "messages", make_chat([NOTE], messages))


def test_thinking_is_dropped_instead_if_the_client_asks_for_it() -> None:
    model = silent_model()
    messages = begin_chat(model, [NOTE])
    thinking = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    request = make_chat([NOTE, FORECAST], messages, thinking=thinking)
    answer = send(model, "messages", request, BINDING_CONTROLS)
    dropped = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
    assert answer["input_transformations"] == [dropped]
    assert model.dropped == ["messages.1.content.0"]
    with pytest.raises(InvalidRequest, match=BINDING_CONTROLS):
        send(model, "messages", request)  # without the header


# Anthropic: tool changes

ADDITION = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": FORECAST}}
REMOVAL = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_forecast"}}


def change_tools(messages: list[Json], *blocks: Json) -> Json:
    return make_chat([NOTE], [*messages, {"role": "system", "content": list(blocks)}])


def test_a_tool_that_is_added_in_a_message_is_called() -> None:
    model = FakeModel()
    answer = send(model, "messages", change_tools([{"role": "user", "content": MESSAGE}], ADDITION), INLINE_TOOLS)
    assert answer["content"][-1]["name"] == "get_forecast"
    assert answer["content"][-1]["input"] == {"place": "Oslo"}


def test_tools_that_are_added_together_keep_their_order() -> None:
    names: list[str] = []

    def decide(view: View) -> Turn:
        names.extend(view.tools)
        return TEXT

    model = FakeModel(decide)
    other = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**FORECAST, "name": "other"}}}
    send(model, "messages", change_tools([{"role": "user", "content": MESSAGE}], ADDITION, other), INLINE_TOOLS)
    assert names == ["get_forecast", "other", "write_note"]


def test_a_thinking_block_survives_a_change_of_tools_in_a_message() -> None:
    model = silent_model()
    messages = begin_chat(model, [NOTE])
    assert send(model, "messages", change_tools(messages, ADDITION), INLINE_TOOLS)["input_transformations"] == []


def test_a_tool_that_was_removed_is_not_called() -> None:
    model = FakeModel()
    messages = [{"role": "user", "content": MESSAGE}]
    answer = send(model, "messages", change_tools(messages, ADDITION, REMOVAL), INLINE_TOOLS)
    assert answer["content"][-1]["name"] == "write_note"
    again = send(model, "messages", change_tools(messages, ADDITION, REMOVAL, ADDITION), INLINE_TOOLS)
    assert again["content"][-1]["name"] == "get_forecast"


def test_a_definition_needs_the_header_of_inline_tools() -> None:
    request = change_tools([{"role": "user", "content": MESSAGE}], ADDITION)
    assert INLINE_TOOLS in str(reject("messages", request, TOOL_CHANGES))
    send(FakeModel(), "messages", request, INLINE_TOOLS)


def test_a_reference_needs_one_of_both_headers() -> None:
    note = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "write_note"}}
    request = change_tools([{"role": "user", "content": MESSAGE}], note)
    assert "anthropic-beta" in str(reject("messages", request))
    for beta in (TOOL_CHANGES, INLINE_TOOLS):
        assert send(FakeModel(), "messages", request, beta)["content"][-1]["text"] == "I have no tool for that."


def test_a_reference_to_a_tool_that_was_never_defined_is_rejected() -> None:
    error = reject("messages", change_tools([{"role": "user", "content": MESSAGE}], REMOVAL), INLINE_TOOLS)
    assert error.code == "tool_reference_unresolved"
    assert "get_forecast" in str(error)


@pytest.mark.parametrize(
    ("blocks", "redundant"),
    [
        ([ADDITION], []),
        ([ADDITION, ADDITION], ["messages.1.content.1"]),
        ([ADDITION, REMOVAL, REMOVAL], ["messages.1.content.2"]),
        ([ADDITION, REMOVAL, ADDITION], []),
    ],
)
def test_changes_without_an_effect_are_recorded(blocks: list[Json], redundant: list[str]) -> None:
    model = FakeModel()
    send(model, "messages", change_tools([{"role": "user", "content": MESSAGE}], *blocks), INLINE_TOOLS)
    assert model.redundant == redundant


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM_TEXT, {"role": "user", "content": MESSAGE}],
        [{"role": "user", "content": MESSAGE}, SYSTEM_TEXT, {"role": "user", "content": MESSAGE}],
    ],
    ids=["first", "between two user turns"],
)
def test_a_system_message_in_a_wrong_place_is_rejected(messages: list[Json]) -> None:
    assert "must follow a user turn" in str(reject("messages", make_chat([NOTE], messages)))
    send(FakeModel(), "messages", make_chat([NOTE], [messages[-1], SYSTEM_TEXT, SYSTEM_TEXT]))


# Anthropic: the cache


def count_cached(answer: Json) -> int:
    cached: int = answer["usage"]["cache_read_input_tokens"]
    return cached


def test_the_cache_serves_what_an_earlier_request_began_with() -> None:
    model = silent_model()
    messages = [{"role": "user", "content": MESSAGE}]
    first = send(model, "messages", make_chat([NOTE], messages, **CACHED))
    longer = [*messages, SYSTEM_TEXT]
    second = send(model, "messages", make_chat([NOTE], longer, **CACHED))
    assert count_cached(first) == 0
    assert count_cached(second) == first["usage"]["cache_creation_input_tokens"]
    assert count_cached(send(model, "messages", make_chat([NOTE], longer))) == 0  # not asked for


def test_a_tool_that_is_appended_to_tools_leaves_only_the_tools_before_it_cached() -> None:
    model = silent_model()
    messages = [{"role": "user", "content": MESSAGE * 50}]
    first = send(model, "messages", make_chat([NOTE], messages, **CACHED))
    second = send(model, "messages", make_chat([NOTE, FORECAST], messages, **CACHED))
    assert 0 < count_cached(second) < first["usage"]["cache_creation_input_tokens"] / 10


def test_the_first_definition_in_a_message_costs_the_cache_if_tools_is_empty() -> None:
    model = silent_model()
    messages = [{"role": "user", "content": MESSAGE}]
    send(model, "messages", make_chat([], messages, **CACHED))
    request = make_chat([], [*messages, {"role": "system", "content": [ADDITION]}], **CACHED)
    assert count_cached(send(model, "messages", request, INLINE_TOOLS)) == 0


# OpenAI Responses

SEARCH_CALL = {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"query": MESSAGE}}
LOADED = {"type": "function", "name": "get_forecast", "parameters": PLACE, "defer_loading": True, "strict": False}
SEARCH_OUTPUT = {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [LOADED]}
FUNCTION_CALL = {"type": "function_call", "call_id": "call_2", "name": "get_forecast", "arguments": "{}"}
USER_ITEM = {"role": "user", "content": MESSAGE}
NOTE_FUNCTION = {"type": "function", "name": "write_note", "parameters": NOTE["input_schema"], "strict": False}
FORECAST_FUNCTION = {"type": "function", "name": "get_forecast", "parameters": PLACE, "strict": False}
ADDITIONAL_TOOLS = {"type": "additional_tools", "role": "developer", "tools": [FORECAST_FUNCTION]}


def make_responses_request(*items: Json, tools: list[Any] | None = None, **fields: Any) -> Json:
    return {"model": "fake", "tools": [TOOL_SEARCH] if tools is None else tools, "input": [USER_ITEM, *items], **fields}


def test_the_function_of_a_search_output_is_called() -> None:
    answer = send(FakeModel(), "responses", make_responses_request(SEARCH_CALL, SEARCH_OUTPUT))
    assert answer["output"][-1]["name"] == "get_forecast"


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [
        (make_responses_request(SEARCH_OUTPUT), "No tool call found"),
        (make_responses_request(SEARCH_CALL, {**SEARCH_OUTPUT, "type": "function_call_output"}), "No tool call found"),
        (make_responses_request(SEARCH_CALL), "No tool output found"),
        (make_responses_request(SEARCH_CALL, SEARCH_OUTPUT, FUNCTION_CALL), "No tool output found"),
        (make_responses_request({**ADDITIONAL_TOOLS, "role": "user"}), "must be 'developer'"),
    ],
)
def test_responses_that_the_real_api_rejects_are_rejected(request_body: Json, reason: str) -> None:
    assert reason in str(reject("responses", request_body))


def test_an_additional_tool_is_called_unless_tool_choice_leaves_it_out() -> None:
    request = make_responses_request(ADDITIONAL_TOOLS, tools=[NOTE_FUNCTION])
    assert send(FakeModel(), "responses", request)["output"][-1]["name"] == "get_forecast"
    only_note = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "write_note"}]}
    answer = send(FakeModel(), "responses", {**request, "tool_choice": only_note})
    assert answer["output"][-1]["name"] == "write_note"
    unknown = {**only_note, "tools": [{"type": "function", "name": "nothing"}]}
    assert "'nothing' not found" in str(reject("responses", {**request, "tool_choice": unknown}))


@pytest.mark.parametrize("is_strict", [True, False])
def test_reasoning_is_bound_to_the_tools_of_its_request(is_strict: bool) -> None:
    model = FakeModel(lambda _: TEXT, strict_reasoning=is_strict)
    answer = send(model, "responses", make_responses_request(tools=[NOTE_FUNCTION]))
    more = [*answer["output"], USER_ITEM]
    send(model, "responses", make_responses_request(*more, ADDITIONAL_TOOLS, tools=[NOTE_FUNCTION]))
    assert model.dropped == []
    changed = make_responses_request(*more, tools=[NOTE_FUNCTION, FORECAST_FUNCTION])
    if is_strict:
        with pytest.raises(InvalidRequest, match="could not be verified") as caught:
            send(model, "responses", changed)
        assert caught.value.code == "invalid_encrypted_content"
    else:
        send(model, "responses", changed)
        assert model.dropped == [answer["output"][0]["id"]]


def test_the_cache_of_responses_begins_with_the_tools() -> None:
    model = FakeModel(lambda _: TEXT)
    first = send(model, "responses", make_responses_request(tools=[NOTE_FUNCTION]))["usage"]
    appended = send(model, "responses", make_responses_request(ADDITIONAL_TOOLS, tools=[NOTE_FUNCTION]))["usage"]
    assert appended["input_tokens_details"]["cached_tokens"] == first["input_tokens"]
    changed = send(model, "responses", make_responses_request(tools=[FORECAST_FUNCTION]))["usage"]
    assert changed["input_tokens_details"]["cached_tokens"] == 0


# OpenAI Chat Completions

FUNCTION = {"type": "function", "function": {"name": "get_forecast", "parameters": PLACE}}
TOOL_CALL_MESSAGE = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_forecast", "arguments": "{}"}}],
}
TOOL_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "snow"}


def make_chat_request(*turns: Json, tools: list[Json] | None = None) -> Json:
    return {"model": "fake", "messages": list(turns), "tools": [FUNCTION] if tools is None else tools}


def test_the_model_answers_with_the_result_of_its_call() -> None:
    answer = send(FakeModel(), "chat/completions", make_chat_request(USER_ITEM, TOOL_CALL_MESSAGE, TOOL_RESULT))
    assert answer["choices"][0]["message"]["content"] == "The tool says: snow"


def test_a_chat_searches_once_for_each_message_with_a_function_for_it() -> None:
    search = {"type": "function", "function": {"name": "retrieve_tools", "parameters": FIND_TOOLS["input_schema"]}}
    answer = send(FakeModel(), "chat/completions", make_chat_request(USER_ITEM, tools=[search]))
    message = answer["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"query": MESSAGE}
    found = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Available tools: get_forecast"}
    request = make_chat_request(USER_ITEM, message, found, tools=[search, FUNCTION])
    call = send(FakeModel(), "chat/completions", request)["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_forecast"


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [
        (make_chat_request(USER_ITEM, tools=[]), "[] is too short"),
        (make_chat_request(USER_ITEM, TOOL_RESULT), "must be a response to"),
        (make_chat_request(USER_ITEM, TOOL_CALL_MESSAGE), "did not have response messages: call_1"),
        (make_chat_request(USER_ITEM, TOOL_CALL_MESSAGE, USER_ITEM), "did not have response messages: call_1"),
    ],
)
def test_chats_that_the_real_api_rejects_are_rejected(request_body: Json, reason: str) -> None:
    assert reason in str(reject("chat/completions", request_body))


# the model

UNITS = {"value": {"type": "number"}, "from_unit": {"type": "string"}, "to_unit": {"type": "string"}}


@pytest.mark.parametrize(
    ("message", "properties", "arguments"),
    [
        ("what's the weather in Oslo?", {"place": {"type": "string"}}, {"place": "Oslo"}),
        ("what time is it in New York?", {"timezone": {"type": "string"}}, {"timezone": "New York"}),
        ("what is (2 + 3) * 4?", {"expression": {"type": "string"}}, {"expression": "(2 + 3) * 4"}),
        ("how many miles are 5.5 km?", UNITS, {"value": 5.5, "from_unit": "km", "to_unit": "miles"}),
        ("convert 3 kg to pounds", UNITS, {"value": 3.0, "from_unit": "kg", "to_unit": "pounds"}),
        ("delete note 7", {"note_id": {"type": "integer"}}, {"note_id": 7}),
        ("find a table in Oslo", {"query": {"type": "string"}}, {"query": "find a table in Oslo"}),
        (
            "buy milk",
            {"text": {"type": "string"}, "count": {"type": "integer", "minimum": 2}},
            {"text": "buy milk", "count": 2},
        ),
    ],
)
def test_the_fake_fills_arguments_with_what_the_message_says(message: str, properties: Json, arguments: Json) -> None:
    assert arguments_for({"properties": properties, "required": list(properties)}, message) == arguments

"""Parsing of queries and conversations: the search text, subqueries and recent tool calls."""

import time
from typing import Any

import pytest

from app.search.query import MAX_SEARCH_CHARS, Query, parse_query, parse_query_with_context

Turn = dict[str, Any]


def user(content: Any) -> Turn:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Turn:
    return {"role": "assistant", "content": content, **fields}


def test_a_query_is_searched_as_it_is() -> None:
    assert parse_query("  find it ") == Query("find it", "find it")


def test_both_ends_of_a_long_text_are_searched() -> None:
    search_text = parse_query("begin " + "x" * 100_000 + " end").search_text
    assert search_text.startswith("begin")
    assert search_text.endswith("end")
    assert len(search_text) <= MAX_SEARCH_CHARS + 1


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("first"), assistant("?")], "first"),
        ([user("first"), user("last")], "last"),
        ([user([{"type": "text", "text": "block"}, {"type": "image"}])], "block"),
        ([user("asked"), user([{"type": "tool_result"}])], "asked"),
        ([assistant("nothing of the user's")], ""),
        ([user(7)], ""),
        ([user([7, None])], ""),
        ([], ""),
    ],
)
def test_the_users_last_message_counts(messages: list[Turn], expected: str) -> None:
    assert parse_query(None, messages).user_text == expected


MOVING = [user("When is my call with Mireille?"), assistant("Tuesday at ten. Shall I move it to Wednesday?")]


MOVED = [user("When is my call with Mireille?"), assistant("Tuesday at ten.")]


@pytest.mark.parametrize("text", ["and the second one?", "What is the weather in Oslo tomorrow?"])
def test_a_message_of_a_conversation_is_searched_alone_and_in_context(text: str) -> None:
    query = parse_query(None, [*MOVED, user(text)])
    assert query.user_text == text
    assert query.texts == (text, f"{MOVED[0]['content']}\n{MOVED[1]['content']}\n{text}")


@pytest.mark.parametrize("text", ["do it", "yes please", "Sure, but only the first"])
def test_a_short_reply_is_searched_with_what_was_offered(text: str) -> None:
    query = parse_query(None, [*MOVING, user(text)])
    assert (query.user_text, query.search_text) == (text, f"{MOVING[1]['content']} {text}")
    assert parse_query(None, [*MOVED, user(text)]).search_text == text


def test_a_longer_message_after_an_offer_is_searched_alone() -> None:
    text = "What is the weather in Oslo tomorrow?"
    assert parse_query(None, [*MOVING, user(text)]).search_text == text


def test_a_first_message_has_no_context() -> None:
    assert parse_query(None, [{"role": "system", "content": "Be kind."}, user("do it")]).texts == ("do it",)


def test_earlier_turns_are_ignored() -> None:
    query = parse_query(None, [user("about llamas"), assistant("About llamas."), *MOVING, user("do it")])
    assert "llamas" not in query.context


OPENAI_CALL = [
    assistant(None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "get_page", "arguments": "{}"}}]),
    {"role": "tool", "tool_call_id": "c", "content": "The page says hello."},
]
ANTHROPIC_CALL = [
    assistant([{"type": "tool_use", "id": "t", "name": "get_page", "input": {}}]),
    user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "The page says hello."}]}]),
]


RESPONSES_CALL = [
    {"type": "function_call", "call_id": "c", "name": "get_page", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "The page says hello."},
]


@pytest.mark.parametrize("call", [OPENAI_CALL, RESPONSES_CALL, ANTHROPIC_CALL])
def test_the_last_tool_result_is_part_of_the_context(call: list[Turn]) -> None:
    query = parse_query(None, [user("what is new?"), *call, assistant("Hello."), user("save it")])
    assert query.context == "what is new?\nThe page says hello.\nHello."
    assert query.called == {"get_page"}


def test_long_turns_are_shortened_in_the_context() -> None:
    query = parse_query(None, [user("y " * 9_000), OPENAI_CALL[1], assistant("x " * 9_000), user("go on")])
    assert len(query.context) < 1_000


def test_a_query_with_context_is_searched_with_it_and_alone() -> None:
    assert parse_query_with_context("send it", "the invoice").texts == ("send it", "the invoice\nsend it")
    assert parse_query_with_context("send an invoice", " ") == Query("send an invoice", "send an invoice")


@pytest.mark.parametrize(
    ("answer", "text", "closes"),
    [
        ("Shall I post it to the channel?", "great, thanks", False),
        ("I could set it up as a project.", "perfect thanks", False),
        ("Shall I post it to the channel?", "no thanks", True),
        ("It is posted.", "great, thanks", True),
        ("Shall I ask first? It is posted. All is done.", "great, thanks", True),
        ("Sunny. Anything else I can help with?", "thanks!", True),
        ("Hi! How can I help?", "many thanks", True),
    ],
)
def test_thanks_accept_an_offer_and_close_a_conversation_otherwise(answer: str, text: str, closes: bool) -> None:
    assert parse_query(None, [user("post it"), assistant(answer), user(text)]).is_closing is closes


@pytest.mark.parametrize(
    ("message", "subqueries"),
    [
        ("find the paper about bees and mail it to Ann", ("find the paper about bees", "mail it to Ann")),
        (
            "What is the weather in Rome? Book a table for two, then please tell Carla about it.",
            ("What is the weather in Rome?", "Book a table for two", "please tell Carla about it."),
        ),
        (
            "find the issue about slow login, post it to #dev and schedule a meeting",
            ("find the issue about slow login", "post it to the channel", "schedule a meeting"),
        ),
        ("In Rome, what is the weather like?", ()),
        ("list files, folders and links", ()),
        ("list files and folders", ()),
        ("compare apples and pears", ()),
        ("Thanks! Delete the old branch.", ()),
    ],
)
def test_a_message_is_split_into_subqueries(message: str, subqueries: tuple[str, ...]) -> None:
    assert parse_query(message).subqueries == subqueries


@pytest.mark.parametrize(
    "message",
    [
        "thanks",
        "Thanks!",
        "thanks, that is all",
        "no",
        "nope, that's it",
        "Great, thanks a lot!",
        "never mind",
        "danke schön",
        "谢谢！",
    ],
)
def test_thanks_and_goodbyes_are_closing(message: str) -> None:
    assert parse_query(message).is_closing


@pytest.mark.parametrize(
    "message",
    ["", "ok great", "yes please", "no, the other one", "no 5", "thank the team in #general", "thanks, cancel it"],
)
def test_other_messages_are_not_closing(message: str) -> None:
    assert not parse_query(message).is_closing


def test_a_message_has_a_maximum_of_subqueries_and_a_document_has_none() -> None:
    assert len(parse_query(" ".join(f"Send letter number {n}." for n in range(20))).subqueries) == 4
    assert parse_query(" ".join(f"Send letter number {n}." for n in range(200))).subqueries == ()


def test_entities_are_searched_as_their_kind_and_tool_names_are_looked_for_in_the_message_itself() -> None:
    query = parse_query("rename report_v2.docx please")
    assert (query.user_text, query.search_text) == ("rename report_v2.docx please", "rename the document file please")


def test_an_expansion_is_matched_by_words_alone() -> None:
    query = Query("bin it", "bin it", expansion="delete")
    assert (query.texts, query.lexical_texts) == (("bin it",), ("bin it delete",))


def test_recent_tool_calls_are_found_in_both_formats() -> None:
    openai = assistant(None, tool_calls=[{"type": "function", "function": {"name": "list_events", "arguments": "{}"}}])
    anthropic = assistant([{"type": "text", "text": "ok"}, {"type": "tool_use", "name": "get_event", "input": {}}])
    odd = assistant("?", tool_calls=[{"function": None}, 7])
    query = parse_query(None, [user("hello"), openai, anthropic, odd, user("and the weather in Oslo tomorrow?")])
    assert query.called == {"list_events", "get_event"}
    assert parse_query(None, [openai, *[user("hello there, my old friend")] * 8]).called == frozenset()


@pytest.mark.parametrize("text", ["-" * 200_000, "a." * 100_000, "and get " * 25_000, "x-./~" * 40_000, "\n" * 200_000])
def test_no_message_takes_long_to_parse(text: str) -> None:
    started = time.thread_time()
    parse_query(text)
    assert time.thread_time() - started < 0.5

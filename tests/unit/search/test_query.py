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


@pytest.mark.parametrize(
    "text", ["do it", "yes please", "and the second one?", "same for Friday", "put that off a week"]
)
def test_an_incomplete_message_is_searched_with_the_turn_before_and_alone(text: str) -> None:
    query = parse_query(None, [*MOVING, user(text)])
    assert query.user_text == text
    assert query.search_text == f"{MOVING[0]['content']}\n{MOVING[1]['content']}\n{text}"
    assert query.subqueries == (text,)


@pytest.mark.parametrize(
    "text", ["What is the weather in Oslo tomorrow?", "Send the report about apples to Jonas today"]
)
def test_a_complete_message_is_searched_alone(text: str) -> None:
    assert parse_query(None, [*MOVING, user(text)]).search_text == text


def test_earlier_turns_are_ignored() -> None:
    query = parse_query(None, [user("about llamas"), assistant("About llamas."), *MOVING, user("do it")])
    assert "llamas" not in query.search_text


def test_a_long_answer_is_shortened() -> None:
    assert len(parse_query(None, [user("list them"), assistant("x " * 9_000), user("go on")]).search_text) < 1_300


def test_a_query_with_context_is_searched_with_it_and_alone() -> None:
    assert parse_query_with_context("send it", "the invoice") == Query("send it", "send it\nthe invoice", ("send it",))
    assert parse_query_with_context("send an invoice", " ") == Query("send an invoice", "send an invoice")


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
            ("find the issue about slow login", "post it to #dev", "schedule a meeting"),
        ),
        ("In Rome, what is the weather like?", ()),
        ("list files, folders and links", ()),
        ("list files and folders", ()),
        ("compare apples and pears", ()),
        ("Thanks! Delete the old branch.", ()),
    ],
)
def test_a_message_is_split_into_subqueries(message: str, subqueries: tuple[str, ...]) -> None:
    query = parse_query(message)
    assert query.search_text == message
    assert query.subqueries == subqueries


@pytest.mark.parametrize(
    "message",
    ["thanks", "Thanks!", "thanks, that is all", "no", "nope, that's it", "Great, thanks a lot!", "never mind"],
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


@pytest.mark.parametrize(
    ("message", "searched"),
    [
        ("rename report_v2.docx please", "rename the file please"),
        ("what does docs/legal/nda.txt say", "what does the file say"),
        ("open https://example.com/a.html now", "open https://example.com/a.html now"),
        ("use node.js or e.g. go", "use the file or e.g. go"),
    ],
)
def test_a_file_name_is_searched_as_the_word_file(message: str, searched: str) -> None:
    query = parse_query(message)
    assert query.search_text == searched
    assert query.user_text == message


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

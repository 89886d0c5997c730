"""What is searched for: the user's words, with what came before where they say too little, and their several aims."""

import time
from typing import Any

import pytest

from app.search.query import LONGEST_SEARCHED, Query, query_in_context, read_query

Turn = dict[str, Any]


def user(content: Any) -> Turn:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> Turn:
    return {"role": "assistant", "content": content, **more}


def test_the_query_is_what_is_searched() -> None:
    assert read_query("  find it ") == Query("find it", "find it")


def test_a_pasted_document_is_searched_by_both_its_ends() -> None:
    whole = read_query("begin " + "x" * 100_000 + " end").whole
    assert whole.startswith("begin")
    assert whole.endswith("end")
    assert len(whole) <= LONGEST_SEARCHED + 1


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
def test_of_messages_the_last_words_of_the_user_count(messages: list[Turn], expected: str) -> None:
    assert read_query(None, messages).said == expected


MOVING = [user("When is my call with Mireille?"), assistant("Tuesday at ten. Shall I move it to Wednesday?")]


@pytest.mark.parametrize(
    "said", ["do it", "yes please", "and the second one?", "same for Friday", "put that off a week"]
)
def test_words_that_say_too_little_are_searched_with_the_turn_before_and_alone(said: str) -> None:
    query = read_query(None, [*MOVING, user(said)])
    assert query.said == said
    assert query.whole == f"{MOVING[0]['content']}\n{MOVING[1]['content']}\n{said}"
    assert query.aims == (said,)


@pytest.mark.parametrize(
    "said", ["What is the weather in Oslo tomorrow?", "Send the report about apples to Jonas today"]
)
def test_words_that_say_enough_are_searched_alone(said: str) -> None:
    assert read_query(None, [*MOVING, user(said)]).whole == said


def test_what_was_said_long_ago_plays_no_part() -> None:
    query = read_query(None, [user("about llamas"), assistant("About llamas."), *MOVING, user("do it")])
    assert "llamas" not in query.whole


def test_a_long_answer_is_not_searched_in_full() -> None:
    assert len(read_query(None, [user("list them"), assistant("x " * 9_000), user("go on")]).whole) < 1_300


def test_who_says_apart_what_it_is_about_is_searched_with_it_and_alone() -> None:
    assert query_in_context("send it", "the invoice") == Query("send it", "send it\nthe invoice", ("send it",))
    assert query_in_context("send an invoice", " ") == Query("send an invoice", "send an invoice")


@pytest.mark.parametrize(
    ("message", "aims"),
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
def test_each_aim_of_a_message_is_searched_for_by_itself(message: str, aims: tuple[str, ...]) -> None:
    query = read_query(message)
    assert query.whole == message
    assert query.aims == aims


@pytest.mark.parametrize(
    "message",
    ["thanks", "Thanks!", "thanks, that is all", "no", "nope, that's it", "Great, thanks a lot!", "never mind"],
)
def test_thanks_and_a_goodbye_want_nothing(message: str) -> None:
    assert read_query(message).closes


@pytest.mark.parametrize(
    "message",
    ["", "ok great", "yes please", "no, the other one", "no 5", "thank the team in #general", "thanks, cancel it"],
)
def test_whatever_else_is_said_may_want_something(message: str) -> None:
    assert not read_query(message).closes


def test_a_message_has_a_few_aims_at_most_and_a_document_none() -> None:
    assert len(read_query(" ".join(f"Send letter number {n}." for n in range(20))).aims) == 4
    assert read_query(" ".join(f"Send letter number {n}." for n in range(200))).aims == ()


@pytest.mark.parametrize(
    ("message", "searched"),
    [
        ("rename report_v2.docx please", "rename the file please"),
        ("what does docs/legal/nda.txt say", "what does the file say"),
        ("open https://example.com/a.html now", "open https://example.com/a.html now"),
        ("use node.js or e.g. go", "use the file or e.g. go"),
    ],
)
def test_a_files_name_is_searched_for_as_a_file(message: str, searched: str) -> None:
    query = read_query(message)
    assert query.whole == searched
    assert query.said == message


def test_tools_that_were_called_lately_are_known_in_both_shapes() -> None:
    openai = assistant(None, tool_calls=[{"type": "function", "function": {"name": "list_events", "arguments": "{}"}}])
    anthropic = assistant([{"type": "text", "text": "ok"}, {"type": "tool_use", "name": "get_event", "input": {}}])
    odd = assistant("?", tool_calls=[{"function": None}, 7])
    query = read_query(None, [user("hello"), openai, anthropic, odd, user("and the weather in Oslo tomorrow?")])
    assert query.called == {"list_events", "get_event"}
    assert read_query(None, [openai, *[user("hello there, my old friend")] * 8]).called == frozenset()


@pytest.mark.parametrize("text", ["-" * 200_000, "a." * 100_000, "and get " * 25_000, "x-./~" * 40_000, "\n" * 200_000])
def test_no_message_takes_long_to_read(text: str) -> None:
    started = time.thread_time()
    read_query(text)
    assert time.thread_time() - started < 0.5

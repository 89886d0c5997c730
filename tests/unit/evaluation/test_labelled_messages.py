"""Labelled messages: the accepted formats, and the error for an invalid line."""

import pytest

from app.errors import InvalidInput
from app.evaluation.labelled_messages import LabelledMessage, parse_labelled_messages


def test_a_message_and_its_tools_are_parsed() -> None:
    [item] = parse_labelled_messages(b'{"message": "open a bug", "tools": ["github.create_issue"], "id": "first"}')
    assert item == LabelledMessage("first", ["github.create_issue"], "open a bug")


def test_the_default_id_is_the_line_number_and_blank_lines_are_skipped() -> None:
    lines = b'\n{"message": "one", "tools": []}\n\n{"message": "two", "tools": ["b"]}\n'
    assert [each.id for each in parse_labelled_messages(lines)] == ["2", "4"]


def test_turns_can_replace_the_message() -> None:
    line = b'{"messages": [{"role": "user", "content": "mail it to Ann"}], "tools": ["send_mail"]}'
    [item] = parse_labelled_messages(line)
    assert item.message is None
    assert item.text == "mail it to Ann"


def test_the_format_of_public_sets_is_accepted() -> None:
    line = b'{"id": "q1", "query": "rain?", "relevant": ["w/f", "w/f"], "meta": {"kind": "terse"}}'
    [item] = parse_labelled_messages(line)
    assert item == LabelledMessage("q1", ["w/f"], "rain?", kind="terse")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"message": bad}', "it is not valid JSON: unexpected character, expected a JSON value (column 13)"),
        (r'{"message": "\u0000", "tools": []}', "it contains a NUL character"),
        ("[]", "it must be an object"),
        ('{"message": "hello"}', "`tools` must be a list of names"),
        ('{"message": "hello", "tools": "a"}', "`tools` must be a list of names"),
        ('{"message": "hello", "tools": [""]}', "`tools` must be a list of names"),
        ('{"message": 1, "tools": []}', "`message` must be a string"),
        ('{"messages": ["hello"], "tools": []}', "`messages` must be a list of turns"),
        ('{"tools": []}', "give either `message` or `messages`"),
        ('{"message": "a", "messages": [], "tools": []}', "give either `message` or `messages`"),
        ('{"message": " ", "tools": []}', "the message has no text to search for"),
        ('{"message": "a", "query": "a", "tools": []}', "`query` is an alias of `message`"),
        ('{"message": "a", "tools": [], "tool": "a"}', "unknown field 'tool'"),
        ('{"message": "a", "tools": [], "id": []}', "`id` must be a string or a number"),
    ],
)
def test_the_error_names_the_invalid_line_and_what_is_wrong_with_it(line: str, message: str) -> None:
    good = '{"message": "hello", "tools": []}'
    assert len(parse_labelled_messages(good.encode())) == 1
    with pytest.raises(InvalidInput) as error:
        parse_labelled_messages(f"{good}\n{line}\n".encode())
    assert error.value.message.startswith(f"line 2: {message}")

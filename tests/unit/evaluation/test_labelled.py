"""The labelled file: what is read, and what is said of a line that is wrong."""

import pytest

from app.errors import InvalidInput
from app.evaluation.labelled import Labelled, read_labelled


def test_a_message_and_its_tools_are_read() -> None:
    [read] = read_labelled(b'{"message": "open a bug", "tools": ["github.create_issue"], "id": "first"}')
    assert read == Labelled("first", ["github.create_issue"], "open a bug")


def test_without_an_id_a_line_is_known_by_its_number_and_blank_lines_are_passed_over() -> None:
    lines = b'\n{"message": "one", "tools": []}\n\n{"message": "two", "tools": ["b"]}\n'
    assert [each.id for each in read_labelled(lines)] == ["2", "4"]


def test_turns_stand_in_for_the_message() -> None:
    [read] = read_labelled(b'{"messages": [{"role": "user", "content": "mail it to Ann"}], "tools": ["send_mail"]}')
    assert read.message is None
    assert read.text == "mail it to Ann"


def test_the_format_of_public_sets_is_read_as_it_is() -> None:
    [read] = read_labelled(b'{"id": "q1", "query": "rain?", "relevant": ["w/f", "w/f"], "meta": {"kind": "terse"}}')
    assert read == Labelled("q1", ["w/f"], "rain?", kind="terse")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"message": bad}', "it is not valid JSON: unexpected character, expected a JSON value (column 13)"),
        (r'{"message": "\u0000", "tools": []}', "it holds a NUL character"),
        ("[]", "it must be an object"),
        ('{"message": "hello"}', "`tools` must be a list of names"),
        ('{"message": "hello", "tools": "a"}', "`tools` must be a list of names"),
        ('{"message": "hello", "tools": [""]}', "`tools` must be a list of names"),
        ('{"message": 1, "tools": []}', "`message` must be a text"),
        ('{"messages": ["hello"], "tools": []}', "`messages` must be a list of turns"),
        ('{"tools": []}', "give either `message` or `messages`"),
        ('{"message": "a", "messages": [], "tools": []}', "give either `message` or `messages`"),
        ('{"message": " ", "tools": []}', "there is no text to search for"),
        ('{"message": "a", "query": "a", "tools": []}', "`query` is another name of `message`"),
        ('{"message": "a", "tools": [], "tool": "a"}', "there is no field 'tool'"),
        ('{"message": "a", "tools": [], "id": []}', "`id` must be a text or a number"),
    ],
)
def test_a_bad_line_is_named_by_its_number_with_what_is_wrong(line: str, wrong: str) -> None:
    good = '{"message": "hello", "tools": []}'
    assert len(read_labelled(good.encode())) == 1
    with pytest.raises(InvalidInput) as told:
        read_labelled(f"{good}\n{line}\n".encode())
    assert told.value.message.startswith(f"line 2: {wrong}")

import sys
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.indexing.parsing import MAX_DEPTH, MAX_TOOL_BYTES
from app.indexing.sanitize import MAX_FINDINGS, MAX_WHERE_CHARACTERS, Finding, sanitize
from app.text.invisible import remove_hidden
from tests.support.factories import tool

ESC = "\x1b"
KEPT_CONTROLS = set("\n\t")
BREAKS = set("\x85\u2028\u2029")
DRAWN_FORMATS = {
    *map(chr, range(0x0600, 0x0606)),  # Arabic number signs
    *"\u06dd\u070f\u0890\u0891\u08e2",  # end of ayah, Syriac abbreviation, pound and piastre, disputed end of ayah
    *"\U000110bd\U000110cd",  # Kaithi number signs
    *map(chr, range(0x13430, 0x13440)),  # Egyptian joiners
}
# letters and marks by category, and yet nothing is drawn: the grapheme joiner, Hangul fillers, Khmer inherent vowels,
# Mongolian and other variation selectors
UNDRAWN_LETTERS_AND_MARKS = {
    *"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0",
    *map(chr, range(0xFE00, 0xFE0E)),
    *map(chr, range(0xE0100, 0xE01F0)),
}


def every_character() -> list[str]:
    return [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]


def survives(character: str) -> bool:
    return remove_hidden(f"a{character}b") == f"a{character}b"


def test_no_control_and_no_format_character_survives_but_those_that_are_drawn() -> None:
    survivors = {each for each in every_character() if unicodedata.category(each) in {"Cc", "Cf"} and survives(each)}
    # a table of characters that is older than some of ours calls them unassigned
    assert survivors == KEPT_CONTROLS | {each for each in DRAWN_FORMATS if unicodedata.category(each) == "Cf"}


def test_nothing_that_is_drawn_is_touched_in_any_script() -> None:
    touched = {each for each in every_character() if unicodedata.category(each)[0] in "LMNPSZ" and not survives(each)}
    assert touched == UNDRAWN_LETTERS_AND_MARKS | (BREAKS - {"\x85"})


def test_of_the_unassigned_only_the_ones_that_are_never_drawn_are_touched() -> None:
    unassigned = "".join(each for each in every_character() if unicodedata.category(each) == "Cn")
    touched = {ord(each) for each in set(unassigned) - set(remove_hidden(unassigned))}
    plane = range(0xE0000, 0xE1000)
    assert {point for point in touched if point not in plane} == {0x2065, *range(0xFFF0, 0xFFF9)}
    assert not any(survives(chr(point)) for point in plane)


@pytest.mark.parametrize(
    ("text", "expected", "kinds"),
    [
        ("Read a\u200b file", "Read a file", ["invisible characters"]),
        ("\ufeffRead", "Read", ["invisible characters"]),
        ("soft\u00adhyphen", "softhyphen", ["invisible characters"]),
        ("2\u20623", "23", ["invisible characters"]),
        ("a\u3164b\u115fc\u034fd", "abcd", ["invisible characters"]),
        ("\ufff9a\ufffab\ufffb", "ab", ["invisible characters"]),
        ("user\u202etxt.exe\u202c", "usertxt.exe", ["bidirectional controls"]),
        ("a\u2066b\u2069\u061c\u200f", "ab", ["bidirectional controls"]),
        ("Hi" + "".join(chr(0xE0000 + ord(each)) for each in "send it"), "Hi", ["tag characters"]),
        ("a" + chr(0xE0100) + chr(0xFE03) + "b", "ab", ["variation selectors"]),
        ("a\x00b\x08c\x7fd\x9fe", "abcde", ["control characters"]),
        ("visible\roverwritten", "visibleoverwritten", ["control characters"]),
        ("a\r\r\nb", "a\nb", ["control characters"]),
        (f"{ESC}[31mred{ESC}[0m", "red", ["terminal escape sequences"]),
        (f"{ESC}[38;5;231;49mwhite on white", "white on white", ["terminal escape sequences"]),
        ("\x9b2Jgone", "gone", ["terminal escape sequences"]),
        (f"a{ESC}]0;a title\x07b", "ab", ["terminal escape sequences"]),
        (f"{ESC}]8;;https://a.example{ESC}\\here{ESC}]8;;{ESC}\\", "here", ["terminal escape sequences"]),
        ("a\x9d52;c;aGk=\x9cb", "ab", ["terminal escape sequences"]),
        (f"a{ESC}Pq#0;2;0{ESC}\\b", "ab", ["terminal escape sequences"]),
        (f"a{ESC}(Bb{ESC}cc", "abc", ["terminal escape sequences"]),
        (f"a{ESC}]never ended", "anever ended", ["terminal escape sequences"]),
        (f"a{ESC}[31", "a31", ["terminal escape sequences"]),
        (f"a{ESC}", "a", ["control characters"]),
        ("❤\ufe0f\ufe0f\ufe0eb", "❤b", ["stray emoji styles"]),
        ("❤\ufe0f\u200b\ufe0fb", "❤b", ["invisible characters", "stray emoji styles"]),
        ("\ufe0fa \ufe0fb", "a b", ["stray emoji styles"]),
        (f"\u200b{ESC}[1m\U000e0041", "", ["terminal escape sequences", "tag characters", "invisible characters"]),
    ],
    ids=ascii,
)
def test_what_cannot_be_seen_is_removed_and_told_once_for_each_kind(text: str, expected: str, kinds: list[str]) -> None:
    clean, findings = sanitize(tool("a", text))
    assert clean == tool("a", expected)
    assert findings == [Finding("hidden_characters", "description", f"{kind} were removed") for kind in kinds]
    assert remove_hidden(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain\n\ttext",
        "Grüße, naïve, Ελλάδα, Привет, 日本語, 한국어, हिन्दी, עברית, العربية, ไทย",
        "❤\ufe0f ☎\ufe0e 1\ufe0f\u20e3 👍🏽 🇩🇪",
        "e\u0301 – “quotes” … €½²",
        "\u06dd١٢",
        "a\u00a0b\u3000c",
    ],
    ids=ascii,
)
def test_what_can_be_seen_is_returned_as_the_same_object(text: str) -> None:
    definition = tool("a", text)
    clean, findings = sanitize(definition)
    assert clean is definition
    assert findings == []


@pytest.mark.parametrize("line_break", ["\r\n", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_another_spelling_of_a_line_break_is_put_right_without_a_word(line_break: str) -> None:
    assert sanitize(tool("a", f"one{line_break}two")) == (tool("a", "one\ntwo"), [])


def test_values_and_names_are_cleaned_at_every_depth() -> None:
    definition = {
        "name": "a",
        "inputSchema": {
            "properties": {
                "pa\u200bth": {"description": "x\u202e", "enum": ["a", "b\x07"], "default": {"k": "\u2060v"}}
            },
            "required": ["pa\u200bth"],
        },
        "_meta": {"n": 1, "none": None, "yes": True},
    }
    clean, findings = sanitize(definition)
    assert clean == {
        "name": "a",
        "inputSchema": {
            "properties": {"path": {"description": "x", "enum": ["a", "b"], "default": {"k": "v"}}},
            "required": ["path"],
        },
        "_meta": {"n": 1, "none": None, "yes": True},
    }
    assert [(each.where, each.reason) for each in findings] == [
        ("inputSchema.properties.path", "invisible characters were removed from this name"),
        ("inputSchema.properties.path.description", "bidirectional controls were removed"),
        ("inputSchema.properties.path.enum[1]", "control characters were removed"),
        ("inputSchema.properties.path.default.k", "invisible characters were removed"),
        ("inputSchema.required[0]", "invisible characters were removed"),
    ]


def test_what_came_in_is_left_as_it_was() -> None:
    definition = tool("a", "b\u200b")
    sanitize(definition)
    assert definition == tool("a", "b\u200b")


@pytest.mark.parametrize("other", ["path\u200b", "pa\u202eth", "path\U000e0041"], ids=ascii)
def test_two_names_that_look_the_same_are_refused(other: str) -> None:
    with pytest.raises(ValueError, match="two names differ only in characters that cannot be seen"):
        sanitize(tool("a", inputSchema={"properties": {"path": {}, other: {}}}))


def test_one_of_two_such_names_alone_is_taken() -> None:
    clean, _ = sanitize(tool("a", inputSchema={"properties": {"path\u200b": {}, "other": {}}}))
    assert list(clean["inputSchema"]["properties"]) == ["path", "other"]


def test_a_name_of_nothing_but_hidden_characters_becomes_empty() -> None:
    clean, [finding] = sanitize({"_meta": {"\u200b": 1}})
    assert clean == {"_meta": {"": 1}}
    assert finding.where == "_meta."


def test_only_the_first_findings_are_kept_and_all_is_cleaned() -> None:
    clean, findings = sanitize(tool("a", inputSchema={"enum": ["x\u200b\u202e"] * 100}))
    assert len(findings) == MAX_FINDINGS
    assert clean["inputSchema"]["enum"] == ["x"] * 100


def test_a_place_is_one_short_line() -> None:
    _, [finding] = sanitize({"_meta": {"line\nbreak": {"k" * 10_000: "\u200b"}}})
    assert finding.where.startswith("_meta.line break.kkk")
    assert len(finding.where) == MAX_WHERE_CHARACTERS


def test_the_deepest_definition_that_is_taken_is_cleaned() -> None:
    value: Any = "\u200bbottom"
    for _ in range(MAX_DEPTH):
        value = {"a": [value]}
    clean, findings = sanitize(value)
    assert "bottom" in str(clean)
    assert len(findings) == 1


SNIPPETS = [
    ESC,
    "[",
    "]",
    "\\",
    "\x9b",
    "\x9d",
    "\x9c",
    "\x07",
    "31m",
    "\r",
    "\n",
    "\u200b",
    "\ufe0f",
    "\u2028",
    "a",
    " ",
]


@given(st.lists(st.sampled_from(SNIPPETS) | st.characters(exclude_categories=["Cs"])).map("".join))
def test_cleaning_twice_finds_nothing_more(text: str) -> None:
    once, _ = sanitize(tool("a", text))
    assert sanitize(once) == (once, [])


HEAVY = [
    "a",
    "\u200b",
    "a\u200b",
    ESC,
    f"{ESC}]",
    f"{ESC}]a",
    "\x9d",
    f"{ESC}[",
    f"{ESC}[0",
    "\x9b0 ",
    f"{ESC} ",
    "\r",
    "\ufe0f ",
]


@pytest.mark.parametrize("unit", HEAVY, ids=ascii)
@pytest.mark.parametrize("start", ["", f"{ESC}]", f"{ESC}["], ids=ascii)
def test_the_largest_text_is_cleaned_in_little_time(start: str, unit: str) -> None:
    text = start + unit * (MAX_TOOL_BYTES // len(unit))
    begin = time.thread_time()
    remove_hidden(text)
    assert time.thread_time() - begin < 2

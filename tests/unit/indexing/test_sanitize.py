"""Hidden characters in definitions: what is removed, what is kept, and what is reported."""

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
ALLOWED_CONTROLS = set("\n\t")
LINE_BREAKS = set("\x85\u2028\u2029")
VISIBLE_FORMATS = {
    *map(chr, range(0x0600, 0x0606)),  # Arabic number signs
    *"\u06dd\u070f\u0890\u0891\u08e2",  # end of ayah, Syriac abbreviation, pound and piastre, disputed end of ayah
    *"\U000110bd\U000110cd",  # Kaithi number signs
    *map(chr, range(0x13430, 0x13440)),  # Egyptian joiners
}
# letters and marks by category, but invisible: the grapheme joiner, Hangul fillers, Khmer inherent vowels,
# Mongolian and other variation selectors
INVISIBLE_LETTERS_AND_MARKS = {
    *"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0",
    *map(chr, range(0xFE00, 0xFE0E)),
    *map(chr, range(0xE0100, 0xE01F0)),
}


def all_characters() -> list[str]:
    return [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]


def is_kept(character: str) -> bool:
    return remove_hidden(f"a{character}b") == f"a{character}b"


def test_control_and_format_characters_are_removed_except_visible_ones() -> None:
    kept = {each for each in all_characters() if unicodedata.category(each) in {"Cc", "Cf"} and is_kept(each)}
    # an older Unicode table lists some of them as unassigned
    assert kept == ALLOWED_CONTROLS | {each for each in VISIBLE_FORMATS if unicodedata.category(each) == "Cf"}


def test_visible_characters_of_every_script_are_kept() -> None:
    removed = {each for each in all_characters() if unicodedata.category(each)[0] in "LMNPSZ" and not is_kept(each)}
    assert removed == INVISIBLE_LETTERS_AND_MARKS | (LINE_BREAKS - {"\x85"})


def test_only_unassigned_characters_that_are_never_visible_are_removed() -> None:
    unassigned = "".join(each for each in all_characters() if unicodedata.category(each) == "Cn")
    removed = {ord(each) for each in set(unassigned) - set(remove_hidden(unassigned))}
    plane = range(0xE0000, 0xE1000)
    assert {point for point in removed if point not in plane} == {0x2065, *range(0xFFF0, 0xFFF9)}
    assert not any(is_kept(chr(point)) for point in plane)


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
def test_invisible_characters_are_removed_and_reported_once_for_each_kind(
    text: str, expected: str, kinds: list[str]
) -> None:
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
def test_a_visible_text_is_returned_as_the_same_object(text: str) -> None:
    definition = tool("a", text)
    clean, findings = sanitize(definition)
    assert clean is definition
    assert findings == []


@pytest.mark.parametrize("line_break", ["\r\n", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_other_line_breaks_are_normalized_without_a_finding(line_break: str) -> None:
    assert sanitize(tool("a", f"one{line_break}two")) == (tool("a", "one\ntwo"), [])


def test_values_and_keys_are_sanitized_at_every_depth() -> None:
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


def test_the_input_is_not_modified() -> None:
    definition = tool("a", "b\u200b")
    sanitize(definition)
    assert definition == tool("a", "b\u200b")


@pytest.mark.parametrize("other", ["path\u200b", "pa\u202eth", "path\U000e0041"], ids=ascii)
def test_two_keys_that_look_the_same_are_refused(other: str) -> None:
    with pytest.raises(ValueError, match="two keys differ only in invisible characters"):
        sanitize(tool("a", inputSchema={"properties": {"path": {}, other: {}}}))


def test_a_single_key_with_hidden_characters_is_accepted() -> None:
    clean, _ = sanitize(tool("a", inputSchema={"properties": {"path\u200b": {}, "other": {}}}))
    assert list(clean["inputSchema"]["properties"]) == ["path", "other"]


def test_a_key_of_only_hidden_characters_becomes_empty() -> None:
    clean, [finding] = sanitize({"_meta": {"\u200b": 1}})
    assert clean == {"_meta": {"": 1}}
    assert finding.where == "_meta."


def test_findings_are_limited_but_everything_is_sanitized() -> None:
    clean, findings = sanitize(tool("a", inputSchema={"enum": ["x\u200b\u202e"] * 100}))
    assert len(findings) == MAX_FINDINGS
    assert clean["inputSchema"]["enum"] == ["x"] * 100


def test_a_path_is_formatted_in_one_short_line() -> None:
    _, [finding] = sanitize({"_meta": {"line\nbreak": {"k" * 10_000: "\u200b"}}})
    assert finding.where.startswith("_meta.line break.kkk")
    assert len(finding.where) == MAX_WHERE_CHARACTERS


def test_the_deepest_accepted_definition_is_sanitized() -> None:
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
def test_sanitizing_twice_changes_nothing(text: str) -> None:
    once, _ = sanitize(tool("a", text))
    assert sanitize(once) == (once, [])


SLOW_UNITS = [
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


@pytest.mark.parametrize("unit", SLOW_UNITS, ids=ascii)
@pytest.mark.parametrize("start", ["", f"{ESC}]", f"{ESC}["], ids=ascii)
def test_the_largest_text_is_sanitized_quickly(start: str, unit: str) -> None:
    text = start + unit * (MAX_TOOL_BYTES // len(unit))
    started = time.thread_time()
    remove_hidden(text)
    assert time.thread_time() - started < 2

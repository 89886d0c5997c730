"""Names that a person cannot see as they are."""

import pytest

from app.text.invisible import describe_problem


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "no visible"),
        ("   ", "no visible"),
        ("\u00a0\u2003\u3000", "no visible"),
        ("\u0301\u0302", "no visible"),
        ("\u2800\u2800", "no visible"),
        ("\u200b", "invisible characters"),
        ("git\u200bhub", "invisible characters"),
        ("\u3164", "invisible characters"),
        ("git\u202ebuh", "bidirectional controls"),
        ("git\U000e0041hub", "tag characters"),
        ("git\x1b[31mhub", "terminal escape sequences"),
        ("git\x07hub", "control characters"),
        ("git\x9b1mhub", "terminal escape sequences"),
        ("git\nhub", "line breaks"),
        ("git\u2028hub", "line breaks"),
        ("git\thub", "line breaks or tabs"),
        ("git\ufe01hub", "variation selectors"),
    ],
    ids=ascii,
)
def test_a_name_that_cannot_be_seen_as_it_is_has_a_problem(name: str, problem: str) -> None:
    assert problem in (describe_problem(name) or "")


@pytest.mark.parametrize(
    "name", ["github", "Müller & Söhne", "文件 服务器", "ملفات", "e\u0301", "🦉", "❤\ufe0f", "-", "a b"]
)
def test_a_visible_name_has_none(name: str) -> None:
    assert describe_problem(name) is None

"""Terms, words and possible tool names in a text."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.search.tokenizer import _stem, extract_possible_names, split_words, stem, tokenize


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("search_issues", {"search_issues", "search", "issu"}),
        ("searchIssues", {"search", "issu", "searchissu"}),
        ("HTTPServer", {"http", "server", "httpserver"}),
        ("list-files", {"list-files", "list", "file"}),
        ("booking, booked, books", {"book"}),
        ("s3 ec2 utf8Text 3f09c1", {"s3", "ec2", "ec", "2", "utf8", "text", "utf8text", "3f09c1"}),
        ("Wetter für Österreich", {"wetter", "fur", "osterreich"}),
        ("Ελλάδα, Россия", {"ελλάδα", "россия"}),
        ("हिन्दी", {"हिन्दी"}),
        ("天气预报 雨", {"天气", "气预", "预报", "雨"}),
        ("天気を知りたい", {"天気", "気を", "を知", "知り", "りた", "たい"}),
        ("ｆｕｌｌｗｉｄｔｈ", {"fullwidth"}),
        ("what is the", set()),
        ("!!! ???", set()),
        ("", set()),
    ],
)
def test_terms_are_stems_and_identifiers_with_their_parts(text: str, expected: set[str]) -> None:
    assert set(tokenize(text)) == expected


def test_words_are_the_spellings_behind_the_terms() -> None:
    assert split_words("Booking searchIssues") == ["booking", "search", "issues", "searchissues"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("run search_issues and list-files", ["search_issues", "list-files"]),
        ('use "search" or `fetch`', ["search", "fetch"]),
        ("call getUserData please", ["getuserdata"]),
        ("Weather", ["weather"]),
        ("search the web", []),
        ("", []),
    ],
)
def test_possible_names_are_identifiers_quoted_words_or_a_single_word(message: str, expected: list[str]) -> None:
    assert extract_possible_names(message) == expected


def test_several_threads_stem_words_at_the_same_time() -> None:
    """Index runs tokenize in threads, while requests tokenize in the event loop."""
    words = [
        f"{start}{end}" for start in ("relat", "organiz", "gener", "hopp") for end in ("ational", "ing", "s", "ed")
    ]
    expected = [_stem.__wrapped__(word) for word in words]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: [_stem.__wrapped__(word) for word in words], range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert all(result == expected for result in results)


def test_words_of_any_length_are_stemmed_and_only_short_ones_are_cached() -> None:
    stem("shortestings")
    before = _stem.cache_info().currsize
    assert stem("a" * 5_000 + "ings") == "a" * 5_000
    assert _stem.cache_info().currsize == before

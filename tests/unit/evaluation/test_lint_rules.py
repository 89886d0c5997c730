"""Which tools read alike, and which say too little: on vectors and words that are made for it."""

from typing import Any

import numpy as np
import pytest

from app.embeddings.base import Vector
from app.evaluation.lint_rules import Described, alike, problems_of

SAID = "Search all repositories of an organisation by language and number of stars."


def described(name: str, description: str = SAID, server: str = "s", **fields: Any) -> Described:
    usual: dict[str, Any] = {"title": None, "input_schema": {}, "vector": None}
    return Described(f"key of {server}.{name}", server, name, description=description, **(usual | fields))


def at(degrees: float) -> Vector:
    radians = np.radians(degrees)
    vector: Vector = np.array([np.cos(radians), np.sin(radians)], np.float32)
    return vector


def test_tools_that_point_the_same_way_are_alike_by_meaning() -> None:
    near, nearer, far = [
        described(name, words, vector=at(degrees))
        for name, words, degrees in [("a", "walk the dog", 0), ("b", "feed one cat", 10), ("c", "sell my car", 40)]
    ]
    [pair] = alike([near, nearer, far], most=10)
    assert (pair.first, pair.second, pair.by) == (near, nearer, ["meaning"])
    assert pair.cosine == pytest.approx(np.cos(np.radians(10)))
    assert pair.shared_words == 0


def test_tools_of_nearly_the_same_words_are_alike_by_words_also_without_vectors() -> None:
    first, second = described("search_repositories"), described("search_repositories", f"{SAID} Fast", server="t")
    other = described("search_users", "Search all users of an organisation by name and number of followers.")
    [pair] = alike([first, other, second], most=10)
    assert (pair.first, pair.second, pair.by, pair.cosine) == (first, second, ["words"], None)
    assert 0.8 <= pair.shared_words < 1


def test_what_is_alike_in_both_ways_comes_first_and_the_rest_is_cut_off() -> None:
    twins = [described("search", server=server, vector=at(0)) for server in "ab"]
    near = described("c", "feed one cat", vector=at(5))
    pairs = alike([near, *twins], most=10)
    assert (pairs[0].by, pairs[0].second) == (["meaning", "words"], twins[1])
    assert len(pairs) == 3
    assert alike([near, *twins], most=1) == pairs[:1]


def test_a_hundred_twins_do_not_make_thousands_of_pairs() -> None:
    twins = [described("search", server=f"server {n}", vector=at(0)) for n in range(100)]
    assert 99 <= len(alike(twins, most=10_000)) < 1_000


def test_no_tools_have_no_pairs() -> None:
    assert alike([], most=10) == []


@pytest.mark.parametrize(
    ("description", "problems"),
    [
        (SAID, []),
        (" ", ["no_description"]),
        ("Searches things.", ["short_description"]),
        ("Search repositories, to search the repositories.", ["short_description"]),
    ],
)
def test_a_description_says_something_that_the_name_does_not(description: str, problems: list[str]) -> None:
    assert problems_of(described("search_repositories", description)) == problems


@pytest.mark.parametrize(
    ("properties", "problems"),
    [
        ({}, []),
        ({"language": {"type": "string"}}, ["parameters_not_described"]),
        ({"language": {"description": "Such as rust."}, "stars": {}}, []),
        ({"language": True}, ["parameters_not_described"]),
    ],
)
def test_some_parameter_is_described(properties: dict[str, Any], problems: list[str]) -> None:
    assert problems_of(described("search", input_schema={"properties": properties})) == problems


@pytest.mark.parametrize(
    ("name", "spoken"),
    [("search_issues", "search issues"), ("searchHTTPIssues", "search http issues"), ("get-page__now", "get page now")],
)
def test_a_name_is_spoken_in_words(name: str, spoken: str) -> None:
    assert described(name).spoken_name == spoken


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("", ""),
        ("Reads v1.2 files. Then more.", "Reads v1.2 files."),
        ("\nReads a file\nand then more", "Reads a file"),
        ("Really? Yes.", "Really?"),
        ("x" * 1_000, "x" * 300),
    ],
)
def test_the_first_sentence_ends_where_it_ends(description: str, sentence: str) -> None:
    assert described("read", description).first_sentence == sentence

"""Similar pairs and poor descriptions, on constructed vectors and words."""

from typing import Any

import numpy as np
import pytest

from app.embeddings.base import Vector
from app.evaluation.lint_rules import DescribedTool, find_problems, find_similar_pairs

DESCRIPTION = "Search all repositories of an organisation by language and number of stars."


def make_tool(name: str, description: str = DESCRIPTION, server: str = "s", **fields: Any) -> DescribedTool:
    defaults: dict[str, Any] = {"title": None, "input_schema": {}, "vector": None}
    return DescribedTool(f"key of {server}.{name}", server, name, description=description, **(defaults | fields))


def vector_at(degrees: float) -> Vector:
    radians = np.radians(degrees)
    vector: Vector = np.array([np.cos(radians), np.sin(radians)], np.float32)
    return vector


def test_tools_with_close_vectors_are_similar_by_meaning() -> None:
    near, nearer, far = [
        make_tool(name, words, vector=vector_at(degrees))
        for name, words, degrees in [("a", "walk the dog", 0), ("b", "feed one cat", 10), ("c", "sell my car", 40)]
    ]
    [pair] = find_similar_pairs([near, nearer, far], limit=10)
    assert (pair.first, pair.second, pair.by) == (near, nearer, ["meaning"])
    assert pair.cosine == pytest.approx(np.cos(np.radians(10)))
    assert pair.shared_words == 0


def test_tools_with_nearly_the_same_words_are_similar_even_without_vectors() -> None:
    first, second = (
        make_tool("search_repositories"),
        make_tool("search_repositories", f"{DESCRIPTION} Fast", server="t"),
    )
    other = make_tool("search_users", "Search all users of an organisation by name and number of followers.")
    [pair] = find_similar_pairs([first, other, second], limit=10)
    assert (pair.first, pair.second, pair.by, pair.cosine) == (first, second, ["words"], None)
    assert 0.8 <= pair.shared_words < 1


def test_pairs_that_are_similar_in_both_ways_come_first_and_the_list_is_limited() -> None:
    twins = [make_tool("search", server=server, vector=vector_at(0)) for server in "ab"]
    near = make_tool("c", "feed one cat", vector=vector_at(5))
    pairs = find_similar_pairs([near, *twins], limit=10)
    assert (pairs[0].by, pairs[0].second) == (["meaning", "words"], twins[1])
    assert len(pairs) == 3
    assert find_similar_pairs([near, *twins], limit=1) == pairs[:1]


def test_a_hundred_identical_tools_do_not_give_thousands_of_pairs() -> None:
    twins = [make_tool("search", server=f"server {n}", vector=vector_at(0)) for n in range(100)]
    assert 99 <= len(find_similar_pairs(twins, limit=10_000)) < 1_000


def test_an_empty_list_has_no_pairs() -> None:
    assert find_similar_pairs([], limit=10) == []


@pytest.mark.parametrize(
    ("description", "problems"),
    [
        (DESCRIPTION, []),
        (" ", ["no_description"]),
        ("Searches things.", ["short_description"]),
        ("Search repositories, to search the repositories.", ["short_description"]),
    ],
)
def test_a_missing_or_short_description_is_a_problem(description: str, problems: list[str]) -> None:
    assert find_problems(make_tool("search_repositories", description)) == problems


@pytest.mark.parametrize(
    ("properties", "problems"),
    [
        ({}, []),
        ({"language": {"type": "string"}}, ["parameters_not_described"]),
        ({"language": {"description": "Such as rust."}, "stars": {}}, []),
        ({"language": True}, ["parameters_not_described"]),
    ],
)
def test_a_schema_without_any_described_parameter_is_a_problem(properties: dict[str, Any], problems: list[str]) -> None:
    assert find_problems(make_tool("search", input_schema={"properties": properties})) == problems


@pytest.mark.parametrize(
    ("name", "spoken"),
    [("search_issues", "search issues"), ("searchHTTPIssues", "search http issues"), ("get-page__now", "get page now")],
)
def test_a_name_is_split_into_words(name: str, spoken: str) -> None:
    assert make_tool(name).spoken_name == spoken


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
def test_the_first_sentence_is_found(description: str, sentence: str) -> None:
    assert make_tool("read", description).first_sentence == sentence

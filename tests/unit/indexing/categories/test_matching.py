from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.indexing.categories.matching import is_same_content, match_groups


def place(**groups: str) -> dict[str, str]:
    """Return the category of each tool; `a="123"` says that the tools 1, 2 and 3 are in a."""
    return {tool: name for name, tools in groups.items() for tool in tools}


def number(*groups: str) -> dict[str, int]:
    return {tool: position for position, tools in enumerate(groups) for tool in tools}


def test_the_same_groups_are_the_same_categories_whatever_their_numbers() -> None:
    assert match_groups(place(a="123", b="45"), number("45", "123")) == {0: "b", 1: "a"}


def test_a_category_that_splits_lives_on_in_its_larger_part() -> None:
    assert match_groups(place(a="12345"), number("12", "345")) == {1: "a"}


def test_the_larger_of_two_categories_that_merge_lives_on() -> None:
    assert match_groups(place(a="12", b="345"), number("12345")) == {0: "b"}


def test_between_equals_the_one_that_a_person_has_named_lives_on() -> None:
    old, new = place(a="12", b="34"), number("1234")
    assert match_groups(old, new) == {0: "a"}
    assert match_groups(old, new, ["b"]) == {0: "b"}


def test_a_group_that_has_little_of_a_category_is_a_new_one() -> None:
    assert match_groups(place(a="12345678"), number("12vwx", "34rst", "56opq", "78lmn")) == {}


def test_a_category_has_the_same_content_while_it_has_most_of_its_tools() -> None:
    assert is_same_content("1234", "1234x")
    assert is_same_content("1234", "12x") is False
    assert is_same_content("1234", "12")


_TOOLS = st.dictionaries(st.integers(0, 30).map(str), st.sampled_from("abcd"), max_size=30)


@given(_TOOLS, st.dictionaries(st.integers(0, 30).map(str), st.integers(0, 4), max_size=30))
def test_no_category_lives_on_twice_and_each_that_does_shares_tools(old: dict[str, str], new: dict[str, int]) -> None:
    matched = match_groups(old, new)
    assert max(Counter(matched.values()).values(), default=1) == 1
    for group, category in matched.items():
        assert any(old.get(tool) == category for tool, each in new.items() if each == group)


@given(_TOOLS)
def test_categories_that_have_not_changed_are_all_recognized(old: dict[str, str]) -> None:
    numbers = {category: position for position, category in enumerate(sorted(set(old.values())))}
    matched = match_groups(old, {tool: numbers[category] for tool, category in old.items()})
    assert matched == {position: category for category, position in numbers.items()}

"""Which tags a message names."""

import pytest

from app.search.named_tags import find_named_tags, make_tag_terms

TAGS = make_tag_terms(["billing", "web-search", "Human Resources", "eCommerce", "finance/tax", "the", "R&D", "q3"])


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("show me the billing overview", ["billing"]),
        ("which bills are open?", ["billing"]),
        ("search the web for bees", ["web-search"]),
        ("a web_search, please", ["web-search"]),
        ("search for bees", []),
        ("ask human resources about it", ["Human Resources"]),
        ("ask a human", []),
        ("our ecommerce shop", ["eCommerce"]),
        ("finance and taxes", ["finance/tax"]),
        ("what is the weather like?", []),
        ("billing in q3", ["billing", "q3"]),
        ("", []),
    ],
)
def test_a_tag_is_named_if_the_message_has_all_of_its_words(message: str, named: list[str]) -> None:
    assert find_named_tags(message, TAGS) == named


def test_a_tag_of_stop_words_alone_is_never_named() -> None:
    assert "the" not in TAGS
    assert find_named_tags("the the the", make_tag_terms(["the", "to do"])) == []

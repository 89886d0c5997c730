"""Which tools are recognized as known ones, and the file that they come from."""

import pytest

from app.indexing.known_tools.matching import (
    BEGINNING_CHARS,
    MAX_EXAMPLES,
    KnownTool,
    KnownTools,
    take_beginning,
)
from app.indexing.known_tools.pack import decode_tools, encode_tools, load_known_tools

REFUND = KnownTool(
    "create-refund",
    "Refund a payment to the customer, fully or in part",
    ("give anna her 20 euros back", "she wants her money back"),
)
SEARCH_WEB = KnownTool("search", "Search the web for pages with Exa", ("what does the internet say about bees",))
SEARCH_MAIL = KnownTool("search", "Find e-mails in the inbox by sender and subject", ("where is the mail from bob",))
KNOWN = KnownTools([REFUND, SEARCH_WEB, SEARCH_MAIL])


@pytest.mark.parametrize("name", ["create-refund", "create_refund", "Create_Refund"])
def test_a_tool_is_recognized_by_its_name_in_any_spelling(name: str) -> None:
    assert KNOWN.find_examples(name, REFUND.description) == REFUND.examples


@pytest.mark.parametrize(
    "description",
    [
        "Refund a payment to the customer, fully or in part.",
        "Refund  a payment\nto the customer, fully or in part",
        "Refunds a customer's payment, fully or in part",
        "Refund a payment to the customer, fully or in part. Args: payment: the id that the dashboard shows, amount: "
        "in cents, reason: one of duplicate, fraudulent, requested, metadata: up to twenty pairs of your own",
        "Refund a payment to",
    ],
)
def test_another_version_of_the_description_is_recognized(description: str) -> None:
    assert KNOWN.find_examples("create_refund", description) == REFUND.examples


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("create_refund", "Open a form in which travellers claim back the tax on what they bought"),
        ("create_refund", "Refund"),
        ("create_refund", ""),
        ("create_refunds", REFUND.description),
        ("refund", REFUND.description),
        ("search", "Search documents of the company's wiki"),
    ],
)
def test_another_tool_is_not_recognized(name: str, description: str) -> None:
    assert KNOWN.find_examples(name, description) == ()


def test_of_two_known_tools_with_one_name_the_better_match_counts() -> None:
    assert KNOWN.find_examples("search", "Search the web for pages") == SEARCH_WEB.examples
    assert KNOWN.find_examples("search", "Find e-mails in the inbox by subject") == SEARCH_MAIL.examples


def test_an_equal_description_is_better_than_one_that_begins_alike() -> None:
    longer = KnownTool("news", "Get news for a stock symbol of Yahoo Finance", ("longer",))
    shorter = KnownTool("news", "Get news for a stock symbol", ("shorter",))
    known = KnownTools([longer, shorter])
    assert known.find_examples("news", shorter.description) == ("shorter",)
    assert known.find_examples("news", longer.description) == ("longer",)


def test_two_equally_good_matches_are_ambiguous_and_give_no_examples() -> None:
    pots, pans = (KnownTool("wash", f"Wash all dirty {what} by hand", (what,)) for what in ("pots", "pans"))
    assert KnownTools([pots, pans]).find_examples("wash", "Wash all dirty plates by hand") == ()
    assert KnownTools([pots]).find_examples("wash", "Wash all dirty plates by hand") == ("pots",)


def test_copies_of_one_tool_share_their_examples_up_to_the_maximum() -> None:
    copies = [KnownTool("add", "Add two numbers", tuple(f"{copy} {n}" for n in range(5))) for copy in ("a", "b")]
    assert KnownTools(copies).find_examples("add", "Adds two numbers.") == (
        ("a 0", "b 0", "a 1", "b 1", "a 2", "b 2", "a 3", "b 3")
    )
    twice = KnownTools([copies[0], copies[0]])
    assert twice.find_examples("add", "Add two numbers") == copies[0].examples


def test_without_known_tools_nothing_is_recognized() -> None:
    assert KnownTools().find_examples("create-refund", REFUND.description) == ()


def test_the_file_is_read_as_it_was_written_and_always_the_same() -> None:
    tools = [REFUND, SEARCH_WEB, KnownTool("größe", "Misst die Größe", ("wie groß ist das?",))]
    assert decode_tools(encode_tools(tools)) == tools
    assert encode_tools(tools) == encode_tools(tools)


def test_the_shipped_tools_are_recognized_by_their_own_definitions() -> None:
    description = "Create a new issue in a GitHub repository"
    assert load_known_tools().find_examples("create_issue", description)
    assert not load_known_tools().find_examples("create_issue", "Print the next number of the magazine")


def test_a_beginning_has_single_spaces_and_a_limit() -> None:
    assert take_beginning(" Reads\n a  file. ") == "Reads a file"
    assert len(take_beginning("word " * 100)) <= BEGINNING_CHARS
    assert MAX_EXAMPLES == 8

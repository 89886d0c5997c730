"""How the client reads answers."""

from typing import Any

from toolscout_client.models import Discovery, Omitted, parse

ANSWER: dict[str, Any] = {
    "discovery_id": "6afb",
    "tools": [],
    "definitions": [],
    "total_searched": 62,
    "search_duration_ms": 4.1,
    "embedding_generated": True,
    "strategy": "hybrid",
    "degraded": False,
    "degraded_reason": None,
    "no_match": False,
    "tokens": {"selected": 0, "all": 10, "saved_percent": 100.0},
    "toolset_hash": "bdf8",
}


def test_the_confidence_is_read_and_is_none_from_a_service_that_does_not_send_it() -> None:
    assert parse(Discovery, ANSWER | {"confidence": "low"}).confidence == "low"
    assert parse(Discovery, ANSWER).confidence is None


def test_what_was_left_out_is_read() -> None:
    left_out = parse(Discovery, ANSWER | {"omitted": {"count": 3, "reason": "max_tokens"}})
    assert left_out.omitted == Omitted(3, "max_tokens")
    assert parse(Discovery, ANSWER | {"omitted": None}).omitted is None


def test_the_reason_why_nothing_was_found_is_read() -> None:
    assert parse(Discovery, ANSWER | {"no_match_reason": "no_tools"}).no_match_reason == "no_tools"
    assert parse(Discovery, ANSWER).no_match_reason is None


def test_fields_of_a_newer_service_are_ignored() -> None:
    assert parse(Discovery, ANSWER | {"added_later": 1}) == parse(Discovery, ANSWER)

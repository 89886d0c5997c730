"""How the client reads answers."""

from typing import Any

from toolscout_client.models import Conversation, Discovery, Omitted, ToolsetChanges, parse, render_keep

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


MESSAGE: dict[str, Any] = {"role": "system", "content": [{"type": "tool_removal"}]}
ITEM: dict[str, Any] = {"type": "additional_tools", "role": "developer", "tools": []}
FOUND: dict[str, Any] = {
    "tool": {},
    "tool_key": "1",
    "alias": "search",
    "server_id": None,
    "server_name": None,
    "similarity": None,
    "score": None,
    "source": "kept",
    "matched_tags": [],
    "tokens": 1,
}


def test_the_betas_of_anthropic_are_apart_from_its_message() -> None:
    found = parse(Discovery, ANSWER | {"added": ["1"], "removed": [], "changes": MESSAGE | {"betas": ["inline"]}})
    assert (found.added, found.removed) == (["1"], [])
    assert found.changes == ToolsetChanges(MESSAGE, ["inline"])
    assert parse(Discovery, ANSWER | {"changes": ITEM}).changes == ToolsetChanges(ITEM, [])
    assert parse(Discovery, ANSWER | {"changes": None}).changes is None
    assert parse(Discovery, ANSWER).added is None


def test_keep_takes_a_discovery_tools_keys_or_a_conversation() -> None:
    found = parse(Discovery, ANSWER | {"tools": [FOUND | {"definition_hash": "a1"}]})
    exact = [{"tool_key": "1", "alias": "search", "definition_hash": "a1"}]
    assert render_keep(found) == render_keep(found.tools) == exact
    assert render_keep(["1", "files.read"]) == ["1", "files.read"]
    assert render_keep(Conversation("chat-7")) == {"conversation_id": "chat-7"}
    assert render_keep(parse(Discovery, ANSWER | {"tools": [FOUND]})) == ["1"], "an older service takes keys alone"

"""Requested actions of messages and actions of tools."""

import pytest

from app.search.intents import Action, compare_actions, detect_requested_actions, detect_tool_action

LOOK, MAKE, CHANGE, REMOVE = Action.LOOK, Action.MAKE, Action.CHANGE, Action.REMOVE


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ("Show the history of past commits", LOOK),
        ("could you please tell me who is on call", LOOK),
        ("What edits have I made?", LOOK),
        ("Add brand-new nodes to my knowledge graph", MAKE),
        ("I'd like you to schedule a meeting", MAKE),
        ("rename it to final", CHANGE),
        ("Get rid of the old records", REMOVE),
        ("getting rid of it would be nice", REMOVE),
        ("deleting that branch is fine", REMOVE),
    ],
)
def test_the_first_verb_decides_which_action_a_message_requests(message: str, action: Action) -> None:
    assert detect_requested_actions([message]) is action


@pytest.mark.parametrize("message", ["", "the weather in Lisbon", "zeig mir die Rechnungen", "天気を教えて"])
def test_without_a_known_verb_the_action_is_unknown(message: str) -> None:
    assert detect_requested_actions([message]) is Action.UNKNOWN


def test_the_actions_of_subqueries_are_combined() -> None:
    assert detect_requested_actions(["find the paper", "delete the draft", "that one"]) == LOOK | REMOVE


@pytest.mark.parametrize(
    ("name", "description", "action"),
    [
        ("git_log", "Shows the commit logs", LOOK),
        ("delete_event", "Takes an event out of the calendar", REMOVE),
        ("deleteEvent", "", REMOVE),
        ("HTTPGet", "", LOOK),
        ("create_or_update_file", "", MAKE),
        ("git_commit", "Records changes to the repository", MAKE),
        ("move-card", "", CHANGE),
        ("weather", "The weather of the coming days. Delete nothing.", Action.UNKNOWN),
        ("", "", Action.UNKNOWN),
    ],
)
def test_a_tools_action_is_in_its_name_or_the_first_word_of_its_description(
    name: str, description: str, action: Action
) -> None:
    assert detect_tool_action(name, description) is action


def test_actions_agree_or_disagree_only_if_both_are_known() -> None:
    assert compare_actions(LOOK, LOOK) == compare_actions(LOOK | REMOVE, REMOVE) == 1
    assert compare_actions(LOOK, REMOVE) == compare_actions(MAKE, CHANGE) == -1
    assert compare_actions(Action.UNKNOWN, LOOK) == compare_actions(LOOK, Action.UNKNOWN) == 0

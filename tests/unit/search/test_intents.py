"""A message that wants to look at something finds what shows it before what removes it."""

import pytest

from app.search.intents import Action, action_of_tool, actions_wanted, agreement

LOOK, MAKE, CHANGE, REMOVE = Action.LOOK, Action.MAKE, Action.CHANGE, Action.REMOVE


@pytest.mark.parametrize(
    ("message", "wanted"),
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
def test_the_first_verb_tells_what_a_message_wants(message: str, wanted: Action) -> None:
    assert actions_wanted([message]) is wanted


@pytest.mark.parametrize("message", ["", "the weather in Lisbon", "zeig mir die Rechnungen", "天気を教えて"])
def test_without_a_verb_that_we_know_nothing_is_wanted(message: str) -> None:
    assert actions_wanted([message]) is Action.UNKNOWN


def test_each_aim_wants_its_own() -> None:
    assert actions_wanted(["find the paper", "delete the draft", "that one"]) == LOOK | REMOVE


@pytest.mark.parametrize(
    ("name", "description", "does"),
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
def test_a_tools_name_tells_what_it_does_or_else_its_descriptions_first_word(
    name: str, description: str, does: Action
) -> None:
    assert action_of_tool(name, description) is does


def test_only_what_is_known_of_both_agrees_or_disagrees() -> None:
    assert agreement(LOOK, LOOK) == agreement(LOOK | REMOVE, REMOVE) == 1
    assert agreement(LOOK, REMOVE) == agreement(MAKE, CHANGE) == -1
    assert agreement(Action.UNKNOWN, LOOK) == agreement(LOOK, Action.UNKNOWN) == 0

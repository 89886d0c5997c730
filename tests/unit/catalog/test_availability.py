"""Tests of what is said about a tool: whether it is found, and who runs it."""

import pytest

from app.catalog.availability import Availability, describe_availability, get_availability


@pytest.mark.parametrize(
    ("server_status", "visible", "availability"),
    [
        ("connected", True, "runnable"),
        ("push", True, "backend"),
        (None, True, "backend"),  # a core tool
        ("error", True, "failing"),
        ("disconnected", True, "failing"),
        ("connected", False, "hidden"),
        ("push", False, "hidden"),
    ],
)
def test_the_availability_follows_from_the_visibility_and_the_servers_status(
    server_status: str | None, visible: bool, availability: Availability
) -> None:
    assert get_availability(server_status, visible=visible) == availability


def test_only_a_tool_that_toolscout_runs_is_said_to_be_run_by_it() -> None:
    texts = {each: describe_availability(each) for each in ("runnable", "backend", "failing", "hidden")}
    assert {each for each, text in texts.items() if "run by Toolscout" in text} == {"runnable"}
    assert {each for each, text in texts.items() if "found by Toolscout" in text or "found and run" in text} == {
        "runnable",
        "backend",
        "failing",
    }

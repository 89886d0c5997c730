"""The switch "Context optimization" of a project's page."""

import re

import pytest

from tests.support.clients import TestUser, new_user
from tests.support.cloud_server import running_cloud
from tests.support.console_client import ConsoleClient, find_error, open_console
from tests.support.factories import OpenService

_CHOICE = re.compile(r'<input type="radio" name="optimization" value="(\w*)"([^>]*)>')


def find_choices(page: str) -> dict[str, str]:
    """Return the attributes of each choice of the switch, by its value."""
    assert "<legend>Context optimization</legend>" in page
    return dict(_CHOICE.findall(page))


@pytest.mark.parametrize("optimization", ["", "bm25", "semantic", "hybrid"])
async def test_a_project_is_switched_to_each_strategy_and_off(
    console: ConsoleClient, user: TestUser, optimization: str
) -> None:
    fields = {"do": "store", "name": "p", "members": "all", "optimization": optimization}
    location = (await console.submit("/console/projects", **fields)).headers["location"]
    [project] = (await user.http.get("/projects")).json()["items"]
    assert project["optimization"] == (optimization or None)
    choices = find_choices(await console.get_page(location))
    assert list(choices) == ["", "bm25", "semantic", "hybrid", "cloud"]
    assert [value for value, attributes in choices.items() if "checked" in attributes] == [optimization]


async def test_without_a_cloud_its_choice_is_disabled_with_a_hint(console: ConsoleClient) -> None:
    page = await console.get_page("/console/projects/new")
    choices = find_choices(page)
    assert [value for value, attributes in choices.items() if "disabled" in attributes] == ["cloud"]
    assert "There is no cloud: the operator sets <code>TOOLSCOUT_CLOUD_URL</code>" in page
    fields = {"do": "store", "name": "p", "members": "all", "optimization": "cloud"}
    assert "TOOLSCOUT_CLOUD_URL" in find_error((await console.submit("/console/projects", **fields)).text)


async def test_with_a_cloud_it_can_be_chosen(open_service: OpenService) -> None:
    with running_cloud() as cloud:
        async with (
            open_service(**cloud.settings()) as service,
            new_user(service) as user,
            open_console(service, user.key) as console,
        ):
            page = await console.get_page("/console/projects/new")
            assert not any("disabled" in attributes for attributes in find_choices(page).values())
            assert "There is no cloud" not in page
            fields = {"do": "store", "name": "p", "members": "all", "optimization": "cloud"}
            location = (await console.submit("/console/projects", **fields)).headers["location"]
            assert "checked" in find_choices(await console.get_page(location))["cloud"]
            assert ">cloud</td>" in await console.get_page("/console/projects")

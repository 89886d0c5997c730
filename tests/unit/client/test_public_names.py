"""Tests of the public names of the client package."""

import toolscout_client
from toolscout_client import DiscoveredTool, Found


def test_every_public_name_can_be_imported() -> None:
    assert all(hasattr(toolscout_client, name) for name in toolscout_client.__all__)


def test_the_former_name_of_a_discovered_tool_is_an_alias() -> None:
    assert Found is DiscoveredTool

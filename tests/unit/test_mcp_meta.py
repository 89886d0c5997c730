"""What of a server's `_meta` is passed on."""

from typing import Any

import pytest
from mcp_types import SERVER_INFO_META_KEY

from app.mcp_meta import filter_meta, filter_tool_meta


def test_keys_of_toolscout_and_of_the_protocols_server_are_removed_and_others_stay() -> None:
    kept = {"ui": {"resourceUri": "ui://a/b"}, "openai/outputTemplate": "ui://c", "com.example/toolscout/x": 1}
    reserved = {"toolscout/error": {}, "toolscout/tools": {}, SERVER_INFO_META_KEY: {"name": "x"}}
    assert filter_meta(kept | reserved) == kept


@pytest.mark.parametrize("meta", [None, [], "text", 1], ids=str)
def test_what_is_no_object_is_no_meta(meta: Any) -> None:
    assert filter_meta(meta) == {}


@pytest.mark.parametrize("uri", ["https://example.com/", "javascript:alert(1)", "file:///etc/passwd", None, 1], ids=str)
def test_a_link_to_a_user_interface_that_is_no_ui_resource_is_removed(uri: Any) -> None:
    meta = {"ui": {"resourceUri": uri, "visibility": ["model"]}, "ui/resourceUri": uri, "a": 1}
    assert filter_tool_meta(meta) == {"ui": {"visibility": ["model"]}, "a": 1}


def test_a_link_to_a_ui_resource_stays() -> None:
    meta = {"ui": {"resourceUri": "ui://a/b.html"}, "ui/resourceUri": "ui://a/b.html"}
    assert filter_tool_meta(meta) == meta
    assert filter_tool_meta({"ui": "text"}) == {"ui": "text"}

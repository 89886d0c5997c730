"""Our URIs for the resources of servers: they lead back to the server and to its own URI."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.execution.resource_uris import OwnUri, make_uri, parse_uri, rewrite_block, rewrite_ui_links

SERVER_ID = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("own", "ours"),
    [
        ("file:///a/b.txt", f"toolscout://{SERVER_ID}/file:///a/b.txt"),
        ("https://example.com/?a=1&b=2#c", f"toolscout://{SERVER_ID}/https://example.com/?a=1&b=2#c"),
        ("ui://clock/app.html", f"ui://toolscout/{SERVER_ID}/clock/app.html"),
        ("note://{+path}{?day}", f"toolscout://{SERVER_ID}/note://{{+path}}{{?day}}"),
    ],
)
def test_a_uri_begins_with_the_server_and_ends_with_its_own(own: str, ours: str) -> None:
    assert make_uri(SERVER_ID, own) == ours
    assert parse_uri(ours) == OwnUri(SERVER_ID, own)


@given(st.text(), st.sampled_from(["", "ui://", "ui://toolscout/", "toolscout://", "file:///"]))
def test_every_uri_is_found_again(text: str, prefix: str) -> None:
    assert parse_uri(make_uri(SERVER_ID, prefix + text)) == OwnUri(SERVER_ID, prefix + text)


@pytest.mark.parametrize(
    "uri", ["", "file:///a", "ui://clock/app.html", "toolscout://", "toolscout://x", "ui://toolscout/x"]
)
def test_other_uris_are_not_ours(uri: str) -> None:
    assert parse_uri(uri) is None


def test_resources_in_content_get_our_uris_and_texts_stay() -> None:
    assert rewrite_block("s", {"type": "resource_link", "uri": "a:b", "name": "x"}) == {
        "type": "resource_link",
        "uri": "toolscout://s/a:b",
        "name": "x",
    }
    assert rewrite_block("s", {"type": "resource", "resource": {"uri": "a:b", "text": "x"}}) == {
        "type": "resource",
        "resource": {"uri": "toolscout://s/a:b", "text": "x"},
    }
    text = {"type": "text", "text": "a:b"}
    assert rewrite_block("s", text) == text


def test_links_to_user_interfaces_get_our_uris_and_other_keys_stay() -> None:
    meta = {"ui": {"resourceUri": "ui://a/b", "visibility": ["app"]}, "ui/resourceUri": "ui://a/b", "x": "ui://a/b"}
    assert rewrite_ui_links("s", meta) == {
        "ui": {"resourceUri": "ui://toolscout/s/a/b", "visibility": ["app"]},
        "ui/resourceUri": "ui://toolscout/s/a/b",
        "x": "ui://a/b",
    }
    assert rewrite_ui_links("s", {"ui": "text", "x": 1}) == {"ui": "text", "x": 1}

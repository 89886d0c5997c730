"""Which URIs are those of a template."""

import time

import pytest

from app.mcp_client.content import matches_template


@pytest.mark.parametrize(
    ("template", "uri", "expected"),
    [
        ("file:///{name}.txt", "file:///a.txt", True),
        ("file:///{name}.txt", "file:///a.md", False),
        ("file:///{name}.txt", "http:///a.txt", False),
        ("file:///{+path}", "file:///a/b/c", True),
        ("{scheme}://a", "file://a", False),
        ("{+uri}", "file:///a", False),
        ("file:///{", "file:///{", False),
        ("", "", False),
    ],
)
def test_a_uri_belongs_to_the_template_that_can_make_it(template: str, uri: str, expected: bool) -> None:
    assert matches_template(template, uri) is expected


def test_no_template_takes_long() -> None:
    started = time.perf_counter()
    assert not matches_template("a:" + "{x}a" * 200 + "b", "a:" + "a" * 5_000)
    assert time.perf_counter() - started < 2

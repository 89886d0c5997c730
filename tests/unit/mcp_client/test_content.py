"""Which URIs are those of a template."""

import time

import pytest

from app.mcp_client.content import matches_any_template


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
    assert matches_any_template([template], uri) is expected


def test_one_of_several_templates_is_enough() -> None:
    templates = ["file:///{name}.txt", "a:{", "file:///{name}.md"]
    assert matches_any_template(templates, "file:///a.md")
    assert not matches_any_template(templates, "file:///a.html")
    assert not matches_any_template([], "file:///a.md")


@pytest.mark.parametrize("variables", [19, 250])
@pytest.mark.parametrize("length", [1_990, 65_000])
def test_templates_do_not_take_long(variables: int, length: int) -> None:
    """Matching begins at the end, and only the first variable tells that the URI does not fit."""
    slow = "a:{x}z" + "".join(f"{{x{number}}}a" for number in range(variables)) + "b"
    started = time.process_time()
    assert not matches_any_template([slow] * 1_000, f"a:{'a' * length}b")
    assert time.process_time() - started < 1


def test_only_so_many_templates_are_tried_but_all_are_looked_at() -> None:
    assert matches_any_template(["a:{x}z"] * 1_000 + ["b:{x}"], "b:c")
    assert matches_any_template(["a:{x}z"] * 10 + ["a:{x}"], "a:b")
    assert not matches_any_template(["a:{x}z"] * 1_000 + ["a:{x}"], "a:b")

"""Aliases lead back to the right tool, and to no other."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.catalog.definitions import ToolDefinitionView
from app.catalog.tool_names import is_alias_of, make_aliases, parse_digest

VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")
ODD = ["read file", "a.b:c", "a.b/c", "天气", "ü", "x" * 128, "x" * 127 + "y", "_" * 70, "%", "search_abcdef", "-"]


def make_definition(
    number: int, name: str, server: str | None = "codehub", *, shared: bool = False
) -> ToolDefinitionView:
    return ToolDefinitionView(
        tool_id=f"00000000-0000-0000-0000-{number:012}",
        server_id=None if server is None else f"id of {server}",
        server_name=server,
        name=name,
        title=None,
        description="",
        input_schema="{}",
        output_schema=None,
        annotations=None,
        tokens=1,
        has_shared_name=shared,
    )


def find_by_alias(alias: str, definitions: Sequence[ToolDefinitionView]) -> list[int]:
    """Return the indexes of the tools that the alias may mean."""
    return [index for index, each in enumerate(definitions) if is_alias_of(alias, each)]


NAMES = st.sampled_from([*ODD, "search", "read"]) | st.text(
    st.characters(exclude_categories=["C"]), min_size=1, max_size=128
)


@given(
    st.lists(st.tuples(NAMES, st.sampled_from(["codehub", "team chat", "日本"])), min_size=1, max_size=8, unique=True)
)
def test_every_alias_is_valid_and_leads_back_to_its_own_tool_only(tools: list[tuple[str, str]]) -> None:
    names = [name for name, _ in tools]
    definitions = [
        make_definition(i, name, server, shared=names.count(name) > 1) for i, (name, server) in enumerate(tools)
    ]
    made = make_aliases(definitions)
    assert len(set(made)) == len(definitions)
    for index, alias in enumerate(made):
        assert VALID.fullmatch(alias)
        assert find_by_alias(alias, definitions) == [index]


def test_a_generated_alias_ends_with_a_digest_of_the_tools_id() -> None:
    odd = make_definition(7, "read file")
    [alias] = make_aliases([odd])
    assert alias.startswith("codehub_read_file_")
    assert hashlib.sha256(odd.tool_id.encode()).hexdigest().startswith(parse_digest(alias))


def test_a_generated_alias_stays_valid_when_the_name_becomes_unique() -> None:
    shared = make_definition(1, "search", shared=True)
    [alias] = make_aliases([shared])
    assert is_alias_of(alias, replace(shared, has_shared_name=False))
    assert not is_alias_of(alias, replace(shared, tool_id="another"))
    assert not is_alias_of(alias, replace(shared, server_name="another"))


def test_a_tool_that_is_named_like_an_alias_does_not_take_it_over() -> None:
    victim = make_definition(1, "search", shared=True)
    [alias] = make_aliases([victim])
    pretender = make_definition(2, alias, "evil")
    longer, kept = make_aliases([victim, pretender])
    assert kept == alias
    assert find_by_alias(longer, [victim, pretender]) == [0]
    assert find_by_alias(alias, [victim, pretender]) == [0, 1], "which is refused as ambiguous"


@pytest.mark.parametrize("name", ["good\n", "a" * 65, "", "a b"])
def test_an_invalid_name_gets_an_alias(name: str) -> None:
    [alias] = make_aliases([make_definition(1, name)])
    assert alias != name
    assert VALID.fullmatch(alias)

"""Changes of a toolset: what is added and removed, and their shapes in the vendors' own types."""

from dataclasses import replace
from typing import Any, get_args

import orjson
import pytest
from anthropic.lib.tools._tool_dispatch import available_tool_names
from anthropic.types import AnthropicBetaParam
from anthropic.types.beta import BetaSystemMessageParam
from openai.types.responses.response_input_item_param import AdditionalTools, ResponseInputItemParam
from pydantic import TypeAdapter, ValidationError

from app.catalog.definitions import ToolDefinitionView
from app.discovery.changes import (
    ANTHROPIC_BETAS,
    GivenTool,
    RenderedTool,
    ToolsetChanges,
    compare_toolsets,
    hash_toolset,
    render_changes,
    render_toolset,
)
from app.discovery.formats import Format

SCHEMA: dict[str, object] = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def make_tool(tool_id: str, name: str = "", description: str = "Finds issues.") -> ToolDefinitionView:
    return ToolDefinitionView(
        tool_id=tool_id,
        server_id="server",
        server_name="codehub",
        name=name or tool_id,
        title=None,
        description=description,
        input_schema=orjson.dumps(SCHEMA).decode(),
        output_schema=None,
        annotations=None,
        tokens=10,
        has_shared_name=False,
    )


def give(*tools: RenderedTool) -> list[GivenTool]:
    return [GivenTool(tool.tool_key, tool.alias, tool.definition_hash) for tool in tools]


def keys(changes: ToolsetChanges) -> tuple[list[str], list[str]]:
    return [tool.tool_key for tool in changes.added], [tool.tool_key for tool in changes.removed]


def to_json(changes: ToolsetChanges, api_format: Format) -> Any:
    return orjson.loads(orjson.dumps(render_changes(changes, api_format)))


MAIL, NEWS, SEARCH = render_toolset([make_tool("mail"), make_tool("news"), make_tool("search")], "anthropic")
FOUND_ONE, FOUND_TWO = make_tool("one"), make_tool("two")


def test_what_is_missing_is_added_and_what_is_gone_is_removed() -> None:
    assert keys(compare_toolsets(give(MAIL, NEWS), [NEWS, SEARCH])) == (["search"], ["mail"])
    assert keys(compare_toolsets([], [NEWS])) == (["news"], [])
    assert keys(compare_toolsets(give(NEWS), [NEWS])) == ([], [])


@pytest.mark.parametrize(
    "before", [replace(NEWS, alias="codehub_news_1a2b3c"), replace(NEWS, definition_hash="0" * 16)]
)
def test_another_definition_or_alias_is_a_removal_and_an_addition(before: RenderedTool) -> None:
    assert keys(compare_toolsets(give(before), [NEWS])) == (["news"], ["news"])


def test_a_key_alone_stands_for_the_tool_as_it_is_now() -> None:
    assert keys(compare_toolsets([GivenTool("news")], [NEWS])) == ([], [])


def test_a_tool_that_is_named_twice_counts_once() -> None:
    assert keys(compare_toolsets([GivenTool("mail"), *give(MAIL), GivenTool("news")], [NEWS])) == ([], ["mail"])


def test_the_hash_before_is_that_of_the_last_answer() -> None:
    hash_of_both = hash_toolset([MAIL.definition_hash, NEWS.definition_hash])
    assert compare_toolsets(give(MAIL, NEWS), [SEARCH]).hash_before == hash_of_both
    by_key = [GivenTool("mail"), GivenTool("news")]
    assert compare_toolsets(by_key, [MAIL, NEWS, SEARCH]).hash_before == hash_of_both
    assert compare_toolsets(by_key, [MAIL]).hash_before is None, "the definition of the other one is not known"
    assert compare_toolsets([], [MAIL]).hash_before == hash_toolset([])


def test_different_toolsets_have_different_hashes() -> None:
    one, two = (tool.definition_hash for tool in render_toolset([FOUND_ONE, FOUND_TWO], "mcp"))
    assert hash_toolset([one, two]) == hash_toolset([one, two])
    assert len({hash_toolset([one, two]), hash_toolset([two, one]), hash_toolset([one]), hash_toolset([])}) == 4


@pytest.mark.parametrize(("api_format", "differs"), [("mcp", False), ("openai", True), ("anthropic", True)])
def test_a_definition_has_another_hash_in_another_format(api_format: Format, differs: bool) -> None:
    [as_mcp], [rendered] = render_toolset([FOUND_ONE], "mcp"), render_toolset([FOUND_ONE], api_format)
    assert (as_mcp.definition_hash != rendered.definition_hash) is differs


def test_a_removal_never_names_a_tool_that_stays() -> None:
    """Two tools cannot have had one name: the list is not the one that was given."""
    changes = compare_toolsets([GivenTool("gone", NEWS.alias), GivenTool("news")], [NEWS])
    assert (keys(changes), render_changes(changes, "anthropic")) == (([], ["gone"]), None)


def test_a_likely_alias_is_used_unless_a_tool_that_stays_has_it() -> None:
    changes = compare_toolsets([GivenTool("gone"), GivenTool("lost"), GivenTool("news")], [NEWS, SEARCH])
    named = changes.name_removed({"gone": "old_name", "lost": "news"}, [NEWS, SEARCH])
    assert [tool.alias for tool in named.removed] == ["old_name", None]
    assert keys(named) == (["search"], ["gone", "lost"])
    names = [block["tool"].get("name") for block in to_json(named, "anthropic")["content"]]
    assert names == ["old_name", None], "a removal without a name has no block"


EXPECTED: BetaSystemMessageParam = {
    "role": "system",
    "content": [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "mail"}},
        {
            "type": "tool_addition",
            "tool": {
                "type": "tool_definition",
                "definition": {"name": "search", "description": "Finds issues.", "input_schema": SCHEMA},
            },
        },
    ],
}


ANTHROPIC_MESSAGE = TypeAdapter(BetaSystemMessageParam)


def validate_anthropic(message: Any) -> None:
    """Validate against the SDK's types. It calls `content` an iterable, whose items are checked when they are read."""
    validated = ANTHROPIC_MESSAGE.validate_python(message)
    assert len(list(validated["content"])) == len(message["content"])


def test_the_changes_for_anthropic_are_a_system_message_of_its_sdk() -> None:
    message = to_json(compare_toolsets(give(MAIL, NEWS), [NEWS, SEARCH]), "anthropic")
    betas = message.pop("betas")
    assert message == EXPECTED
    validate_anthropic(message)
    with pytest.raises(ValidationError):
        validate_anthropic({**message, "content": [{"type": "tool_addition", "tool": {"type": "tool_definition"}}]})
    assert betas == list(ANTHROPIC_BETAS)
    known = str(AnthropicBetaParam)
    assert all(f"'{beta}'" in known for beta in betas)


def test_anthropics_own_runner_reads_the_changes_as_they_are_meant() -> None:
    message = to_json(compare_toolsets(give(MAIL, NEWS), [NEWS, SEARCH]), "anthropic")
    message.pop("betas")
    assert available_tool_names([message], ["mail", "news"]) == {"news", "search"}


def test_a_changed_tool_is_removed_before_it_is_added() -> None:
    message = to_json(compare_toolsets(give(replace(NEWS, definition_hash="0" * 16)), [NEWS]), "anthropic")
    assert [block["type"] for block in message["content"]] == ["tool_removal", "tool_addition"]
    assert available_tool_names([{"role": "system", "content": message["content"]}], ["news"]) == {"news"}


EXPECTED_ITEM: AdditionalTools = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [
        {
            "type": "function",
            "name": "search",
            "description": "Finds issues.",
            "parameters": SCHEMA,
            "strict": False,
        }
    ],
}


OPENAI_ITEM = TypeAdapter(AdditionalTools)


def validate_openai(item: Any) -> None:
    validated = OPENAI_ITEM.validate_python(item)
    assert len(list(validated["tools"])) == len(item["tools"])


def test_the_changes_for_openai_are_an_input_item_of_its_sdk() -> None:
    after = render_toolset([make_tool("search")], "openai_responses")
    item = to_json(compare_toolsets(give(MAIL), after), "openai_responses")
    assert item == EXPECTED_ITEM
    assert AdditionalTools in get_args(ResponseInputItemParam)
    validate_openai(item)
    with pytest.raises(ValidationError):
        validate_openai({**item, "tools": [{"type": "function"}]})


def test_openai_knows_no_removal() -> None:
    changes = compare_toolsets(give(MAIL, NEWS), [NEWS])
    assert keys(changes) == ([], ["mail"])
    assert render_changes(changes, "openai_responses") is None
    assert to_json(changes, "anthropic")["content"][0]["type"] == "tool_removal"


@pytest.mark.parametrize("api_format", ["mcp", "openai"])
def test_other_formats_have_no_changes_for_the_wire(api_format: Format) -> None:
    assert render_changes(compare_toolsets([], [NEWS]), api_format) is None


@pytest.mark.parametrize("api_format", ["anthropic", "openai_responses"])
def test_nothing_to_change_is_none(api_format: Format) -> None:
    assert render_changes(compare_toolsets(give(NEWS), [NEWS]), api_format) is None
    assert render_changes(compare_toolsets([], [NEWS]), api_format) is not None

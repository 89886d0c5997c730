"""Tests of the scripted client, and what compact results cost on real definitions."""

from collections.abc import Sequence

import pytest

from app.catalog.definitions import ToolDefinitionView
from app.discovery.selection import SelectedTool
from app.embeddings.token_counter import load_token_counter
from app.mcp_server.tool_results import Detail, render_tools
from app.text.strict_json import Json, dump_json
from bench.mcp_tokens import Calls, Costs, format_report, make_catalogue, try_call
from bench.relevance.sets import BenchTool
from bench.scripted_client import NeedsDefinition, fill_arguments, read_tools
from tests.support.mcp_client import get_text


@pytest.mark.parametrize(
    ("signature", "arguments"),
    [
        ("f()", {}),
        ("f(a: string, b?: integer)", {"a": "text"}),
        ("f(a: integer 5..9, b: number <0, c: string<date>)", {"a": 5, "b": -1, "c": "2026-11-18"}),
        ('f(a: "x, y"|"z", b: ("p"|"q")[2..], c: boolean)', {"a": "x, y", "b": ["p", "p"], "c": True}),
        ('f(a: {b: {c: string(8..)}[], "d e"?: any}, f: object)', {"a": {"b": [{"c": "textxxxx"}]}, "f": {}}),
        ("f(a: string/^(x|y), z$/, b: [string, integer], c: {[key]: null})", {"b": ["text", 1], "c": {"key": None}}),
        ("f({url: string}|{path: string})", {"url": "text"}),
        ("f(a: string, b?: …, c?: {d: …}, …)", {"a": "text"}),
        ("f(a: {…}|string)", {"a": "text"}),
    ],
)
def test_the_client_fills_required_arguments_by_their_types(signature: str, arguments: Json) -> None:
    assert fill_arguments(signature).items() >= arguments.items()


@pytest.mark.parametrize("signature", ["f(a: …)", "f(a: {b: …}, c: string)", "f(a: {…}[])", "f(…[])"])
def test_the_client_asks_for_a_definition_that_was_cut(signature: str) -> None:
    with pytest.raises((NeedsDefinition, ValueError)):
        fill_arguments(signature)


def test_the_client_does_not_take_the_hint_for_a_tool(selected: Sequence[SelectedTool]) -> None:
    for hint in (None, "The results are uncertain."):
        shown = list(read_tools(get_text(render_tools(selected[:3], hint, detail="compact"))))
        assert [tool.tool_key.rpartition(".")[2] for tool in shown] == [tool.definition.name for tool in selected[:3]]


def test_invalid_arguments_are_noticed() -> None:
    schema = '{"properties": {"a": {"type": "string", "pattern": "^0x"}}, "required": ["a"]}'
    assert "does not match" in try_call("f(a: string/^0x/)", schema)
    assert try_call("f(a: string)", '{"properties": {"a": {"type": "string"}}, "required": ["a"]}') == "valid"
    assert try_call("f(a: …)", schema) == "cut"


def to_selected(position: int, tool: BenchTool) -> SelectedTool:
    definition = ToolDefinitionView(
        tool_id=f"00000000-0000-4000-8000-{position:012}",
        server_id="server",
        server_name=tool.server,
        name=tool.name,
        title=None,
        description=tool.description,
        input_schema=dump_json(tool.definition["inputSchema"]).decode(),
        output_schema=None,
        annotations=None,
        tokens=100,
        has_shared_name=False,
    )
    return SelectedTool(definition, "semantic", 0.5, 0.5, explanation="matches “word”, “other”")


@pytest.fixture(scope="module")
def selected() -> Sequence[SelectedTool]:
    return [to_selected(position, tool) for position, tool in enumerate(make_catalogue().tools)]


def count_tokens(selected: Sequence[SelectedTool], detail: Detail) -> tuple[int, int]:
    """Return the tokens of the texts and of the structured contents of results with five tools each."""
    count, texts, structured = load_token_counter(), 0, 0
    for first in range(0, len(selected), 5):
        result = render_tools(selected[first : first + 5], None, detail=detail)
        texts += count(get_text(result))
        structured += count(dump_json(result["structuredContent"]).decode())
    return texts, structured


def test_compact_results_of_real_tools_save_most_of_the_tokens(selected: Sequence[SelectedTool]) -> None:
    full, compact = count_tokens(selected, "full"), count_tokens(selected, "compact")
    assert compact[0] < 0.33 * full[0]
    assert compact[1] < 0.5 * full[1]


def test_nearly_all_real_tools_are_called_with_valid_arguments(selected: Sequence[SelectedTool]) -> None:
    schemas = {f"{tool.definition.server_name}.{tool.definition.name}": tool.definition for tool in selected}
    schemas |= {tool.definition.tool_id: tool.definition for tool in selected}
    shown = list(read_tools(get_text(render_tools(selected, None, detail="compact"))))
    assert len(shown) == len(selected) == 500
    outcomes = [try_call(tool.signature, schemas[tool.tool_key].input_schema) for tool in shown]
    assert outcomes.count("valid") >= 495


def test_the_report_compares_with_full_results() -> None:
    costs: dict[str | None, Costs] = {"full": Costs([100], [200]), "compact": Costs([25], [80])}
    calls = Calls(named=1, found=1, valid=0, refused=["a.b: no"])
    report = format_report(make_catalogue(5), costs, calls)
    assert "| compact | 25 | 25 | 25 | 75% | 80 | 60% |" in report
    assert "a.b: no" in report

"""How a discovery tells people its confidence."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.catalog.definitions import ToolDefinitionView
from app.catalog.visibility import Scope
from app.discovery.models import Discovery
from app.discovery.selection import SelectedTool, Source
from app.search.confidence import Confidence
from app.search.query import parse_query
from app.search.searcher import SearchOptions

DEFINITION = ToolDefinitionView.__new__(ToolDefinitionView)
"""Without fields: the text depends only on how many tools were found."""


def describe(confidence: Confidence, sources: Sequence[Source], **options: Any) -> str:
    discovery = Discovery(
        id="",
        tools=[SelectedTool(DEFINITION, source) for source in sources],
        options=SearchOptions(
            Scope("user", "model"), **{"strategy": "hybrid", "threshold": None, "limit": 8, **options}
        ),
        embedding=None,
        searched=10,
        tokens_all=0,
        confidence=confidence,
        query=parse_query("message"),
    )
    return discovery.confidence_text


@pytest.mark.parametrize(
    ("confidence", "sources", "text"),
    [
        ("high", ["semantic"], "high confidence"),
        ("none", ["core"], "no tool fits"),
        ("low", ["semantic"], "low confidence: the best one"),
        ("low", ["kept", "core", "semantic", "lexical"], "low confidence: the best 2"),
        ("low", ["fallback", "fallback"], "low confidence"),
    ],
)
def test_the_text_counts_the_tools_that_were_searched_for(
    confidence: Confidence, sources: Sequence[Source], text: str
) -> None:
    assert describe(confidence, sources) == text


@pytest.mark.parametrize("options", [{"fill": True}, {"threshold": 0.2}])
def test_an_answer_that_is_not_cut_does_not_claim_to_be_the_best_few(options: dict[str, Any]) -> None:
    assert describe("low", ["semantic"] * 3, **options) == "low confidence"
    assert describe("low", ["semantic"] * 3) == "low confidence: the best 3"

"""The answer of a discovery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.discovery.changes import RenderedTool, ToolsetChanges
from app.discovery.cloud_search import CloudAnswer
from app.discovery.selection import Omission, OmissionReason, SelectedTool, count_tokens, summarize_omitted
from app.embeddings.base import Vector
from app.search.confidence import Confidence
from app.search.query import Query
from app.search.scoring import AnsweredStrategy
from app.search.searcher import QueryEmbedding, SearchOptions

NoMatchReason = Literal["no_tools", "no_match", "discovery_off", "filtered_out"]

_NO_MATCH_TEXTS: Mapping[NoMatchReason, str] = {
    "no_tools": "there are no tools to search: add a server, or check the user's id (X-User-Id)",
    "no_match": "no tool fits this message",
    "discovery_off": "the project does not search, because its `optimization` is null",
    "filtered_out": "there are tools, but switches, rules, the project or the request's filters leave none to search",
}


@dataclass(frozen=True)
class Discovery:
    id: str
    tools: Sequence[SelectedTool]
    options: SearchOptions
    embedding: QueryEmbedding | None
    """None: the project does not search."""
    searched: int
    tokens_all: int
    confidence: Confidence
    """`none` if no tool was found."""
    query: Query
    """The query as it was searched for."""
    vector: Vector | None = field(default=None, repr=False)
    """What the message is remembered by if one of the tools proves right; None: it is not remembered."""
    chance: float | None = None
    """The chance that any tool fits; None if it is not known."""
    duration_ms: float = 0.0
    no_match_reason: NoMatchReason | None = None
    """Why no tool was found; None if one was."""
    omitted_tools: Mapping[str, OmissionReason] = field(default_factory=dict)
    """Why there was no room for a tool, by its id."""
    cloud: CloudAnswer | None = None
    """What the cloud found; None if the cloud was not asked, or could not answer."""
    connect_urls: Mapping[str, str] | None = field(default=None, repr=False)
    """Where the user signs in to servers that want it, by the server's id; None: the request did not ask."""
    rendered: Sequence[RenderedTool] | None = field(default=None, repr=False)
    """The tools in the request's format; None if nobody has compared them with those that the model has."""
    changes: ToolsetChanges | None = field(default=None, repr=False)
    """What has changed since the model was last given tools; None: the request did not say what it has."""

    @property
    def omitted(self) -> Omission | None:
        return summarize_omitted(self.omitted_tools)

    @property
    def omitted_text(self) -> str | None:
        """What was left out, in words, for people; None if there was room for all."""
        if self.omitted is None:
            return None
        tools = "1 more tool" if self.omitted.count == 1 else f"{self.omitted.count} more tools"
        setting = "max_tokens" if self.omitted.reason == "max_tokens" else "TOOLSCOUT_MAX_TOOLS"
        return f"no room for {tools}: raise {setting}"

    @property
    def no_match(self) -> bool:
        return self.confidence == "none"

    @property
    def no_match_text(self) -> str | None:
        """Why no tool was found, in words, for people."""
        return None if self.no_match_reason is None else _NO_MATCH_TEXTS[self.no_match_reason]

    @property
    def confidence_text(self) -> str:
        """The confidence in words, for people."""
        if self.confidence != "low":
            return "high confidence" if self.confidence == "high" else "no tool fits"
        found = sum(tool.source in ("semantic", "lexical") for tool in self.tools)
        if not found or self.options.fill or self.options.threshold is not None:
            return "low confidence"
        return f"low confidence: the best {'one' if found == 1 else found}"

    @property
    def strategy(self) -> AnsweredStrategy | None:
        if self.cloud is not None:
            return "cloud"
        return None if self.embedding is None else self.embedding.strategy

    @property
    def degraded_reason(self) -> str | None:
        return None if self.embedding is None else self.embedding.reason

    @property
    def embedding_generated(self) -> bool:
        return self.embedding is not None and self.embedding.generated

    @property
    def tokens_selected(self) -> int:
        return count_tokens(tool.definition for tool in self.tools)

    @property
    def saved_percent(self) -> float:
        """How much smaller the selected definitions are than all of them."""
        return max(0.0, 100 * (1 - self.tokens_selected / self.tokens_all)) if self.tokens_all else 0.0

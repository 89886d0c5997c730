"""Models of the stateless search, of evaluations, and of what was used: statistics, audit events, selections."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from toolscout_client.models import ChosenTool, Confidence, Json

Step = Literal["hour", "day"]
Time = datetime | str
"""A `datetime`, or a text in ISO 8601. Without a zone it is in UTC."""


class _CatalogToolKeys(TypedDict):
    toolKey: str
    toolName: str
    serverName: str


class CatalogTool(_CatalogToolKeys, total=False):
    """A tool to search, as `POST /catalog/search` takes it. `toolKey` is your own, unique in the list."""

    description: str | None
    inputSchema: Json | None
    outputSchema: Json | None
    annotations: Json | None


@dataclass(frozen=True)
class CatalogResult:
    tool_key: str
    tool_name: str
    server_name: str
    description: str
    relevance: float
    explanation: str
    output_schema: Json | None = None
    annotations: Json | None = None


@dataclass(frozen=True)
class RefusedTool:
    tool_key: str
    reason: str


@dataclass(frozen=True)
class CatalogSearch:
    results: list[CatalogResult]
    total_searched: int
    degraded: bool
    degraded_reason: str | None
    pending: int
    """The number of tools without an embedding yet: repeat the request to embed the rest."""
    no_match: bool
    refused: list[RefusedTool]


class LabelledMessage(TypedDict, total=False):
    """A message, or turns as `messages`, and the tools that it needs: `SERVER.TOOL`, names or keys; none if empty."""

    id: str
    message: str
    messages: list[Json]
    tools: list[str]


@dataclass(frozen=True)
class Measures:
    hit_at_1: float
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    mrr: float


@dataclass(frozen=True)
class EvaluatedAnswer:
    id: str
    ranked: list[str]
    measures: Measures | None
    """None if no tool is needed."""
    confidence: Confidence
    no_match: bool
    tokens: int
    saved_percent: float
    degraded_reason: str | None


@dataclass(frozen=True)
class Miss:
    """A relevant tool that is not among the first five."""

    id: str
    tool: str
    tool_key: str
    place: int | None
    reason: str | None
    message: str | None


@dataclass(frozen=True)
class NotFirst:
    id: str
    tool: str
    tool_key: str
    place: int
    first: str
    first_key: str


@dataclass(frozen=True)
class UnknownLabel:
    id: str
    label: str


@dataclass(frozen=True)
class SimilarTools:
    first: str
    first_key: str
    second: str
    second_key: str
    by: list[str]
    cosine: float | None
    shared_words: float
    first_path: str | None = None
    """The path of the tool in the API and, below `/console`, in the console: `tools.update` writes a better
    description. None from the release 0.2.0 and older ones."""
    second_path: str | None = None


@dataclass(frozen=True)
class PoorTool:
    tool: str
    tool_key: str
    problems: list[str]
    path: str | None = None
    """As in `SimilarTools`."""


@dataclass(frozen=True)
class Suggestions:
    tools: int
    probed: int
    pairs: list[SimilarTools]
    poor: list[PoorTool]


@dataclass(frozen=True)
class Evaluation:
    messages: int
    measures: Measures | None
    abstained: float | None
    lost: float | None
    low_confidence: float | None
    mean_tools: float | None
    mean_unneeded_tools: float | None
    median_tokens: float | None
    median_saved_percent: float | None
    median_ms: float | None
    degraded: int
    answers: list[EvaluatedAnswer]
    misses: list[Miss]
    not_first: list[NotFirst]
    unknown_labels: list[UnknownLabel]
    suggestions: Suggestions | None = None


@dataclass(frozen=True)
class Figures:
    discoveries: int
    degraded: int
    no_match: int
    cache_hits: int
    tokens_saved: int
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True)
class StatsPoint(Figures):
    at: datetime


@dataclass(frozen=True)
class StatsTotals(Figures):
    degraded_rate: float
    no_match_rate: float
    cache_hit_rate: float
    tokens_saved_percent: float


@dataclass(frozen=True)
class NamedTool:
    tool_key: str
    server_name: str
    name: str


@dataclass(frozen=True)
class UsedTool(NamedTool):
    discovered: int
    called: int
    succeeded: int


@dataclass(frozen=True)
class Stats:
    since: datetime
    until: datetime
    step: str
    points: list[StatsPoint]
    totals: StatsTotals
    most_used: list[UsedTool]
    never_found: list[NamedTool]
    never_found_count: int | None


class AuditFilter(TypedDict, total=False):
    action: str | None
    actor: str | None
    target: str | None
    outcome: str | None
    since: Time | None
    until: Time | None
    limit: int
    """The page size; all pages are read."""


@dataclass(frozen=True)
class AuditEvent:
    id: str
    user_id: str
    at: datetime
    actor: str
    action: str
    target: str | None
    outcome: str
    duration_ms: float | None
    request_id: str | None


@dataclass(frozen=True)
class Selection:
    """A message and the tools that were selected for it."""

    discovery_id: str
    user_id: str
    at: datetime
    message: str
    tools: list[ChosenTool]
    strategy: str
    degraded_reason: str | None
    no_match: bool

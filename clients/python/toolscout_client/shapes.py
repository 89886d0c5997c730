"""What Toolscout answers with, and what it takes. Fields that a newer Toolscout adds are passed over."""

from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from toolscout_client.errors import NotFound

T = TypeVar("T")

Json = dict[str, Any]
Format = Literal["mcp", "openai", "openai_responses", "anthropic"]
Strategy = Literal["hybrid", "semantic", "bm25"]
Outcome = Literal["called", "succeeded", "failed", "irrelevant"]
Transport = Literal["streamable_http", "sse", "stdio", "push"]
KeyKind = Literal["user", "service", "admin"]


def read(shape: type[T], told: Json) -> T:
    value: T = _value(shape, told)
    return value


@cache
def _hints(shape: Any) -> dict[str, Any]:
    hints = get_type_hints(shape)
    return {each.name: hints[each.name] for each in fields(shape)}


def _value(hint: Any, told: Any) -> Any:
    if told is None:
        return None
    if is_dataclass(hint):
        known: Any = hint
        return known(**{name: _value(each, told[name]) for name, each in _hints(known).items() if name in told})
    if hint is datetime:
        return datetime.fromisoformat(told)
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], each) for each in told]
    if get_origin(hint) is UnionType:
        return _value(next(each for each in get_args(hint) if each is not NoneType), told)
    return told


@dataclass(frozen=True)
class Page(Generic[T]):
    items: list[T]
    next_cursor: str | None


class Wishes(TypedDict, total=False):
    """How to search; None is the same as not saying it."""

    messages: list[Any] | None
    """Recent turns, OpenAI or Anthropic shaped, instead of a query."""
    limit: int | None
    similarity_threshold: float | None
    include_core_tools: bool
    server_ids: list[str] | None
    tags: list[str] | None
    project_id: str | None
    strategy: Strategy | None
    max_tokens: int | None
    keep: list[str] | None
    """The tool keys that the model was given before: they come first, in order."""
    format: Format
    explain: bool


@dataclass(frozen=True)
class Found:
    tool: Json
    tool_key: str
    alias: str
    """The tool's name in `definitions`."""
    server_id: str | None
    server_name: str | None
    similarity: float | None
    score: float | None
    source: str
    matched_tags: list[str]
    tokens: int
    flags: list[str] = field(default_factory=list)
    server_status: str | None = None
    explanation: Json | None = None


@dataclass(frozen=True)
class Tokens:
    selected: int
    all: int
    saved_percent: float


@dataclass(frozen=True)
class Discovery:
    discovery_id: str
    tools: list[Found]
    definitions: list[Json]
    """Ready for the model, in the `format` that was asked for."""
    total_searched: int
    search_duration_ms: float
    embedding_generated: bool
    strategy: str | None
    degraded: bool
    degraded_reason: str | None
    no_match: bool
    tokens: Tokens
    toolset_hash: str

    @property
    def tool_keys(self) -> list[str]:
        """What to `keep` when the conversation goes on."""
        return [found.tool_key for found in self.tools]

    def key_of(self, alias: str) -> str:
        """Which tool the model means by this name; `NotFound` where it made the name up."""
        for found in self.tools:
            if found.alias == alias:
                return found.tool_key
        raise NotFound(f"there is no tool {alias!r} among those that were found", code="TOOL_NOT_FOUND")


@dataclass(frozen=True)
class Reason:
    """Why a tool is, or is not, in an answer."""

    tool_key: str | None
    name: str | None
    server_name: str | None
    included: bool
    reason: str
    message: str
    rule: int | None = None
    rank: int | None = None
    explanation: Json | None = None


@dataclass(frozen=True)
class Execution:
    result: Json
    tool_key: str
    server_id: str
    duration_ms: float
    truncated: bool

    @property
    def is_error(self) -> bool:
        """The tool ran, and says itself that it failed: for the model to read."""
        return self.result.get("isError") is True

    @property
    def text(self) -> str:
        """Of all text blocks; `result` has images and structured content, too."""
        blocks = self.result.get("content", [])
        return "\n".join(block["text"] for block in blocks if block.get("type") == "text")


class ServerFields(TypedDict, total=False):
    description: str
    url: str | None
    headers: dict[str, str] | None
    tags: list[str]
    enabled: bool
    tool_permissions: dict[str, bool]


class ServerChanges(ServerFields, total=False):
    name: str
    transport: Transport


@dataclass(frozen=True)
class Server:
    id: str
    name: str
    description: str
    transport: str
    url: str | None
    header_names: list[str]
    tags: list[str]
    tool_permissions: dict[str, bool]
    enabled: bool
    status: str
    last_error: str | None
    last_cause: str | None
    tool_count: int
    pending_count: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class Progress:
    done: int
    total: int


@dataclass(frozen=True)
class Run:
    id: str
    server_id: str
    state: str
    progress: Progress
    counts: dict[str, int]
    refused: list[Json]
    warnings: list[str]
    error: Json | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.state in ("succeeded", "failed")


class ToolFilter(TypedDict, total=False):
    server_id: str | None
    name: str | None
    tag: str | None
    enabled: bool | None
    visible: bool | None
    state: Literal["approved", "changed"] | None
    flag: str | None
    project_id: str | None
    limit: int
    """Of a page; all pages are read."""


class ToolChanges(TypedDict, total=False):
    enabled: bool | None
    """Stands above the rules; None: they decide again."""
    tags: list[str]
    pinned: bool


@dataclass(frozen=True)
class Tool:
    id: str
    """The `tool_key` everywhere."""
    server_id: str
    server_name: str
    name: str
    title: str | None
    description: str
    input_schema: Json
    output_schema: Json | None
    annotations: Json | None
    enabled: bool
    enabled_by: str
    visible: bool
    hidden_by: str | None
    tags: list[str]
    own_tags: list[str]
    pinned: bool
    state: str
    definition_hash: str
    flags: list[str]
    findings: list[Json]
    tokens: int
    embedded: bool
    updated_at: datetime


@dataclass(frozen=True)
class ToolChange:
    id: str
    at: datetime
    run_id: str
    fields: list[str]
    old: Json
    new: Json


@dataclass(frozen=True)
class Tag:
    tag: str
    count: int


class Rule(TypedDict, total=False):
    """As it goes in and as it comes out."""

    pattern: list[str]
    server: str | None
    enabled: bool | None
    tags: list[str]


@dataclass(frozen=True)
class Rules:
    rules: list[Rule]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RuleOutcome:
    """What the previewed rules would do with one tool."""

    tool_key: str
    name: str
    server_name: str
    enabled: bool
    enabled_by: str
    rule: int | None
    visible: bool
    hidden_by: str | None
    outside_by: str | None
    tags: list[str]
    was_visible: bool


@dataclass(frozen=True)
class Preview:
    items: list[RuleOutcome]
    rules: list[Json]
    visible: int
    hidden: int
    changes: int


class ProjectFields(TypedDict, total=False):
    server_ids: list[str] | None
    optimization: Strategy | None
    rules: list[Rule]
    read_only: bool
    limit: int | None
    similarity_threshold: float | None


class ProjectChanges(ProjectFields, total=False):
    name: str


@dataclass(frozen=True)
class Project:
    id: str
    name: str
    server_ids: list[str] | None
    optimization: str | None
    rules: list[Rule]
    read_only: bool
    limit: int | None
    similarity_threshold: float | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class CoreTools:
    tools: list[Json]


class UserChanges(TypedDict, total=False):
    name: str | None
    discovery_enabled: bool
    settings: Json


@dataclass(frozen=True)
class User:
    id: str
    name: str | None
    settings: Json
    discovery_enabled: bool
    tool_count: int
    created_at: datetime


class KeyFields(TypedDict, total=False):
    name: str | None
    user_id: str | None
    project_id: str | None
    expires_at: datetime | None


@dataclass(frozen=True)
class Key:
    id: str
    kind: str
    name: str | None
    prefix: str
    user_id: str | None
    project_id: str | None
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime
    key: str | None = field(default=None, repr=False)
    """Only where it was made just now: it is shown once."""


@dataclass(frozen=True)
class Health:
    status: str
    model: str | None = None
    warnings: list[str] = field(default_factory=list)

"""The request and response models. Fields that a newer Toolscout adds are ignored."""

from collections.abc import Sequence
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
Transport = Literal["streamable_http", "http", "streamable-http", "sse", "stdio", "push"]
"""`http` and `streamable-http` are stored as `streamable_http`."""
ExampleSource = Literal["use", "person"]
KeyKind = Literal["user", "service", "admin"]
Confidence = Literal["high", "low", "none"]


def parse(model: type[T], data: Json) -> T:
    value: T = _convert(model, data)
    return value


@cache
def _field_types(model: Any) -> dict[str, Any]:
    hints = get_type_hints(model)
    return {model_field.name: hints[model_field.name] for model_field in fields(model)}


def _to_camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _convert(hint: Any, data: Any) -> Any:
    if data is None:
        return None
    if hint is ToolsetChanges:
        return ToolsetChanges({name: value for name, value in data.items() if name != "betas"}, data.get("betas", []))
    if is_dataclass(hint):
        model: Any = hint
        types = _field_types(model)
        # `/catalog/search` answers in camelCase
        keys = {name: name if name in data else _to_camel(name) for name in types}
        return model(**{name: _convert(types[name], data[key]) for name, key in keys.items() if key in data})
    if hint is datetime:
        return datetime.fromisoformat(data)
    if get_origin(hint) is list:
        return [_convert(get_args(hint)[0], item) for item in data]
    if get_origin(hint) is UnionType:
        return _convert(next(part for part in get_args(hint) if part is not NoneType), data)
    return data


@dataclass(frozen=True)
class Page(Generic[T]):
    items: list[T]
    next_cursor: str | None


@dataclass(frozen=True)
class Conversation:
    """A conversation whose tools Toolscout remembers: pass it as `keep`."""

    id: str
    """Your own id of the chat."""


class DiscoveryOptions(TypedDict, total=False):
    """Options of `discover` and `why`. None is the same as leaving the option out."""

    messages: list[Any] | None
    """Recent messages, in OpenAI's or Anthropic's format, instead of a query."""
    limit: int | None
    fill: bool
    """Find as many tools as `limit` allows, not only those that the message needs."""
    similarity_threshold: float | None
    include_core_tools: bool
    server_ids: list[str] | None
    tags: list[str] | None
    categories: list[str] | None
    """Search only tools of these categories, by id or name."""
    project_id: str | None
    strategy: Strategy | None
    max_tokens: int | None
    keep: "Keep | None"
    """The tools that the model was given earlier: the last `Discovery`, its tools, their keys, or a `Conversation`.
    They come first, and the answer says what has changed."""
    turn: int | None
    """The number of the user's message in the `Conversation`, from 1: a retry sends the same one."""
    format: Format
    explain: bool
    connect: bool
    """Add a `connect_url` to each tool whose server wants the user to sign in."""


@dataclass(frozen=True)
class DiscoveredTool:
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
    """`needs_authorization`: the user must sign in to the server before the tool can run."""
    connect_url: str | None = None
    """Where the user signs in, if the discovery asked for it with `connect`."""
    explanation: Json | None = None
    definition_hash: str | None = None
    """Of its definition in the requested format; None from the release 0.2.0 and older ones."""


Found = DiscoveredTool
"""The former name of `DiscoveredTool`, which the next release removes."""


@dataclass(frozen=True)
class Tokens:
    selected: int
    all: int
    saved_percent: float


@dataclass(frozen=True)
class Omitted:
    """What was left out for want of room."""

    count: int
    reason: str
    """`max_tokens` or `max_tools`."""


@dataclass(frozen=True)
class ToolsetChanges:
    """What to append to the conversation, so that `tools` need not change."""

    message: Json
    """For Anthropic a message, for OpenAI's Responses API an item of `input`."""
    betas: list[str] = field(default_factory=list)
    """For Anthropic, the `betas` of the request."""


@dataclass(frozen=True)
class Discovery:
    discovery_id: str
    tools: list[DiscoveredTool]
    definitions: list[Json]
    """The definitions for the model, in the requested `format`."""
    total_searched: int
    search_duration_ms: float
    embedding_generated: bool
    strategy: str | None
    degraded: bool
    degraded_reason: str | None
    no_match: bool
    tokens: Tokens
    toolset_hash: str
    confidence: Confidence | None = None
    """How likely it is that one of the tools fits; None from the release 0.2.0 and older ones."""
    omitted: Omitted | None = None
    no_match_reason: str | None = None
    """Why no tool was found: `no_tools`, `no_match`, `discovery_off` or `filtered_out`."""
    added: list[str] | None = None
    """With `keep`, the keys of tools that are new or have changed; None without, as are the next three."""
    removed: list[str] | None = None
    """The keys of tools that the model must not use any more; a changed one is in `added`, too."""
    changes: ToolsetChanges | None = None
    """Both for the wire, if the format has a way to say it and there is something to say."""
    toolset_hash_before: str | None = None
    """The `toolset_hash` of the tools in `keep`; None also if one of them is not known any more."""

    @property
    def tool_keys(self) -> list[str]:
        """The keys of the tools. As `keep`, the discovery itself says more: also which definitions the model has."""
        return [tool.tool_key for tool in self.tools]

    def key_of(self, alias: str) -> str:
        """Return the key of the tool that the model calls by this name. Raise `NotFound` if the model made it up."""
        for tool in self.tools:
            if tool.alias == alias:
                return tool.tool_key
        raise NotFound(f"the discovery has no tool named {alias!r}", code="TOOL_NOT_FOUND")


Keep = Discovery | Conversation | Sequence[str | DiscoveredTool]
"""What `discover` takes as `keep`."""


def render_keep(keep: Keep) -> Json | list[str | Json]:
    """Return `keep` as `POST /discover` takes it."""
    if isinstance(keep, Conversation):
        return {"conversation_id": keep.id}
    tools = keep.tools if isinstance(keep, Discovery) else keep
    return [tool if isinstance(tool, str) else _render_kept(tool) for tool in tools]


def _render_kept(tool: DiscoveredTool) -> str | Json:
    if tool.definition_hash is None:  # from a service that takes nothing but keys
        return tool.tool_key
    return {"tool_key": tool.tool_key, "alias": tool.alias, "definition_hash": tool.definition_hash}


@dataclass(frozen=True)
class Reason:
    """Why a discovery does, or does not, return a tool."""

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
        """The tool ran and reported a failure, which the model can read."""
        return self.result.get("isError") is True

    @property
    def text(self) -> str:
        """The text of all text blocks. Images and structured content are in `result`."""
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
class AuthorizationLink:
    """Where the user's browser signs in to a server."""

    authorization_url: str
    expires_at: datetime


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
    signed_in: bool = False
    """Whether the user has signed in to the server through Toolscout."""
    shared: bool = False
    """Whether an administrator manages it for many users, so that it cannot be changed."""
    shared_credentials: str | None = None
    """Of a shared server, whose credentials calls use: `member` or `operator`."""


class SharingFields(ServerFields, total=False):
    everyone: bool
    groups: list[str]
    user_ids: list[str]
    credentials: Literal["member", "operator"]


class SharedServerChanges(SharingFields, total=False):
    name: str
    transport: Transport


@dataclass(frozen=True)
class Members:
    total: int
    ready: int
    """Those whose copy is up to date."""


@dataclass(frozen=True)
class SharedServer(Server):
    everyone: bool = False
    groups: list[str] = field(default_factory=list)
    user_ids: list[str] = field(default_factory=list)
    credentials: str = "member"
    members: Members = Members(0, 0)


@dataclass(frozen=True)
class RegistryInput:
    """A header, or a variable in the URL or in a header, that a server of the registry takes."""

    kind: Literal["header", "variable"]
    name: str
    description: str
    required: bool
    secret: bool
    default: str | None
    placeholder: str | None
    choices: list[str]


@dataclass(frozen=True)
class RegistryRemote:
    transport: str
    url: str
    """Variables stand in it as `{name}`."""
    inputs: list[RegistryInput]


@dataclass(frozen=True)
class RegistryServer:
    name: str
    title: str
    description: str
    version: str
    status: str
    status_message: str
    website_url: str | None
    repository_url: str | None
    usable: bool
    unusable_reason: str | None
    suggested_name: str
    remotes: list[RegistryRemote]
    """The one that is taken unless another one is chosen comes first."""


@dataclass(frozen=True)
class AddedServer:
    server: Server
    registry_name: str
    version: str
    remote_url: str
    notes: list[str]
    """What to know about it, such as that it is deprecated."""


class RegistryFields(TypedDict, total=False):
    name: str | None
    remote_url: str | None
    headers: dict[str, str]
    variables: dict[str, str]
    description: str | None
    tags: list[str]
    enabled: bool


@dataclass(frozen=True)
class SkippedServer:
    name: str
    reason: str
    """Why it was not imported, and what to do."""


@dataclass(frozen=True)
class ImportNote:
    name: str
    note: str
    """What of an imported server was left out."""


@dataclass(frozen=True)
class ServerImport:
    imported: list[Server]
    skipped: list[SkippedServer]
    notes: list[ImportNote] = field(default_factory=list)


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
    state: Literal["approved", "changed", "new"] | None
    flag: str | None
    own_texts: bool | None
    original_changed: bool | None
    categories: list[str] | None
    """By id or name."""
    project_id: str | None
    limit: int
    """The page size; all pages are read."""


class ToolChanges(TypedDict, total=False):
    enabled: bool | None
    """Overrides the rules; None removes the override."""
    tags: list[str]
    pinned: bool
    title: str | None
    """Your own; None restores the server's. So do `description` and `annotations`."""
    description: str | None
    annotations: Json | None
    """Such as `{"readOnlyHint": True}`: over the server's, by name."""


@dataclass(frozen=True)
class ToolTexts:
    title: str | None
    description: str | None
    annotations: Json | None


@dataclass(frozen=True)
class Tool:
    id: str
    """The `tool_key` of other calls."""
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
    runnable: bool | None = None
    """Whether `execute` runs it; None from the release 0.2.0 and older ones."""
    server_status: str | None = None
    known_examples: list[str] | None = None
    """Messages that ship with Toolscout for a known tool; None in lists, and from the release 0.2.0 and older ones."""
    icons: list[Json] | None = None
    """As the server lists them; None in lists. So is `execution`."""
    execution: Json | None = None
    original: ToolTexts | None = None
    """The server's texts, where your own replace some of them in the fields above."""
    own_texts: ToolTexts | None = None
    """Your own texts alone; None if there are none, and from the release 0.2.0 and older ones."""
    own_texts_at: datetime | None = None
    original_changed: bool = False
    """Whether the server's definition has changed since you wrote your texts."""
    own_findings: list[Json] | None = None
    """What of your own texts reads like an instruction to the model; None in lists."""
    category_id: str | None = None
    category: str | None = None
    """The name of its category; None until it is in one, and from the release 0.2.0 and older ones."""
    run_id: str | None = None
    """After `update`: the index run that was queued, because tags or texts have changed. See `runs.wait`."""
    warnings: list[str] = field(default_factory=list)
    """After `update`: about your texts."""


@dataclass(frozen=True)
class ToolChange:
    id: str
    at: datetime
    run_id: str
    fields: list[str]
    old: Json
    new: Json


@dataclass(frozen=True)
class ToolExamples:
    """What a tool is for, by examples."""

    messages: list[str]
    """Written by a person."""
    learned: int
    """How many were learnt from successful uses."""
    learned_against: int
    """How many were learnt from reports that the tool was irrelevant."""


@dataclass(frozen=True)
class Tag:
    tag: str
    count: int


@dataclass(frozen=True)
class Category:
    """A group of tools that do similar things."""

    id: str
    name: str
    """Your own name, or else the automatic one."""
    own_name: str | None
    words: list[str]
    tools: int
    servers: list[str]


class Rule(TypedDict, total=False):
    """A tool rule, in requests and in responses."""

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
    optimization: Strategy | Literal["cloud"] | None
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
    discovery_enabled: bool | None
    """None leaves the choice to the roll-out."""
    settings: Json


@dataclass(frozen=True)
class User:
    id: str
    name: str | None
    settings: Json
    discovery_enabled: bool
    """Whether the user's messages are searched."""
    tool_count: int
    created_at: datetime
    discovery_decided_by: Literal["global", "user", "percent"] | None = None
    """None from a service that does not send it."""
    groups: list[str] = field(default_factory=list)
    """As the identity provider named them at the user's last sign-in."""


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
    """Set only in the response of `keys.create`."""


@dataclass(frozen=True)
class Health:
    status: str
    model: str | None = None
    warnings: list[str] = field(default_factory=list)


class DecisionFilter(TypedDict, total=False):
    discovery_id: str | None
    request_id: str | None
    project_id: str | None
    degraded: bool | None
    no_match: bool | None
    since: datetime | str | None
    """A `datetime`, or a text in ISO 8601, as is `until`."""
    until: datetime | str | None


@dataclass(frozen=True)
class ChosenTool:
    tool_key: str
    server_name: str | None
    name: str
    source: str
    similarity: float | None
    score: float | None


@dataclass(frozen=True)
class Decision:
    """A search and the tools that it chose, without its message."""

    discovery_id: str
    user_id: str
    at: datetime
    request_id: str | None
    actor: str
    interface: str
    project_id: str | None
    strategy: str | None
    degraded_reason: str | None
    confidence: str
    no_match: bool
    no_match_reason: str | None
    searched: int
    omitted: Omitted | None
    tools: list[ChosenTool]
    returned: dict[str, int]
    """The number of tools by source."""
    duration_ms: float

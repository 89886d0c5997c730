"""The types of an execution: the request, the tool that it names, and the result."""

from dataclasses import dataclass, field

from app.catalog.definitions import ToolDefinitionView
from app.catalog.visibility import Scope
from app.conversations.repository import ConversationKey
from app.errors import CalledTool
from app.mcp_types import Dialogue, Endpoint
from app.text.strict_json import Json, load_json


@dataclass(frozen=True)
class ExecutionRequest:
    """Name the tool by `tool_key`, or by `alias`: the name that the model was given for it, or a key instead."""

    scope: Scope
    actor: str
    arguments: Json = field(repr=False)
    tool_key: str | None = None
    given_key: str | None = None
    """The key that the caller has sent, once `tool_key` is the id that it stands for."""
    alias: str | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    discovery_id: str | None = None
    """The discovery that returned the tool, if the caller says so."""
    conversation: ConversationKey | None = None
    """The conversation in which the tool is called, if the caller says so."""
    dialogue: Dialogue | None = None
    """Set if the caller can answer questions of the tool."""
    confirmation_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TargetTool:
    definition: ToolDefinitionView
    endpoint: Endpoint

    @property
    def names(self) -> CalledTool:
        return CalledTool(self.endpoint.server_name, self.definition.name)

    @property
    def says_destructive(self) -> bool:
        """Whether the annotations say so. Without them, MCP would have every tool that writes count as destructive."""
        annotations = load_json(self.definition.annotations or "{}")
        return annotations.get("destructiveHint") not in (None, False)


@dataclass(frozen=True)
class ExecutionResult:
    result: Json = field(repr=False)
    tool_key: str
    server_id: str
    duration_ms: float
    truncated: bool

"""A call of a meta-tool, as its handler gets it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.catalog.visibility import Scope
from app.container import Container
from app.mcp_types import Dialogue
from app.text.strict_json import Json


@dataclass(frozen=True)
class ToolCall:
    """A call of a meta-tool and its caller."""

    container: Container
    caller: Caller
    project_id: str | None
    arguments: Json
    on_progress: Callable[[Json], Awaitable[None]] | None = None
    """Receives progress reports; None if the client did not ask for them."""
    dialogue: Dialogue | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.caller.require_user().id, self.container.model.id, project_id=self.project_id)

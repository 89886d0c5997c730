"""Request and response models of index runs."""

from datetime import datetime
from typing import Any

from pydantic import Field

from app.indexing.queue import Run, RunState
from app.schemas.base import Input, Output


class PushBody(Input):
    tools: list[Any] = Field(
        max_length=100_000,
        description="the server's complete list of MCP tools",
        examples=[
            [{"name": "search_repositories", "description": "Search repositories", "inputSchema": {"type": "object"}}]
        ],
    )


class RunProgressOut(Output):
    done: int
    total: int


class RunOut(Output):
    id: str
    server_id: str
    state: RunState
    progress: RunProgressOut
    counts: dict[str, int] = Field(
        description="`added`, `changed`, `unchanged`, `removed` and `refused` tools; `embedded`: vectors that are new "
        "for this user, even if other users have the same tools"
    )
    refused: list[dict[str, Any]]
    warnings: list[str]
    error: dict[str, str] | None = Field(
        description="`cause`, one stable word, and `message`; also set after a failed attempt that will be retried"
    )
    created_at: datetime
    finished_at: datetime | None


def render_run(run: Run) -> RunOut:
    progress = {"done": run.done, "total": run.total}
    return RunOut.model_validate({**vars(run), "counts": run.all_counts, "progress": progress})

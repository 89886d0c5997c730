"""The tools of an answer as the logs hold them: by name, since the tool may be gone when the log is read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """A tool of the result."""

    tool_key: str
    server_name: str | None
    name: str
    source: str
    similarity: float | None
    score: float | None

    @property
    def qualified_name(self) -> str:
        return self.name if self.server_name is None else f"{self.server_name}.{self.name}"

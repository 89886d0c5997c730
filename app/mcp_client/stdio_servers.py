"""The operator's list of MCP servers that run as local programs. Users choose from it and cannot add to it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from app.errors import ConfigurationError, InvalidInput, ServerUnreachable


class StdioProgram(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    argv: list[str] = Field(min_length=1)
    env: Mapping[str, str] = {}


class _File(RootModel[dict[str, StdioProgram]]):
    # The environment variables are secrets, and a traceback would show them.
    model_config = ConfigDict(hide_input_in_errors=True)


class StdioServerRegistry:
    def __init__(self, programs: Mapping[str, StdioProgram]) -> None:
        self.programs = programs

    @classmethod
    def read(cls, path: Path | None) -> "StdioServerRegistry":
        if path is None:
            return cls({})
        try:
            return cls(_File.model_validate_json(path.read_bytes()).root)
        except (OSError, ValidationError) as error:
            raise ConfigurationError(
                f"TOOLSCOUT_STDIO_SERVERS: {path} does not contain "
                f'{{"name": {{"argv": ["program", "argument"], "env": {{}}}}}}: {_describe_error(error)}'
            ) from error

    def check(self, name: str) -> None:
        """Raise `InvalidInput` unless a server of this name may be registered."""
        if name not in self.programs:
            raise InvalidInput(
                "stdio servers run programs: only those that the operator lists in TOOLSCOUT_STDIO_SERVERS can be "
                "registered, by their name"
            )

    def get_program(self, name: str) -> StdioProgram:
        if name not in self.programs:
            raise ServerUnreachable(
                "not_listed", f"TOOLSCOUT_STDIO_SERVERS, as read at startup, has no server named {name!r}"
            )
        return self.programs[name]


def _describe_error(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    # Leave out the values: the environment variables are secrets.
    return "; ".join(": ".join(filter(None, (_join(item["loc"]), item["msg"]))) for item in error.errors()[:3])


def _join(path: Sequence[int | str]) -> str:
    """Return an empty string if the error concerns the whole file."""
    return ".".join(map(str, path))

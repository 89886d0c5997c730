"""The operator's own list of programs that speak MCP over stdio. Users choose from it; they never add to it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from app.errors import ConfigurationError, InvalidInput, ServerUnreachable


class StdioProgram(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    argv: list[str] = Field(min_length=1)
    env: Mapping[str, str] = {}


class _File(RootModel[dict[str, StdioProgram]]):
    # an environment holds secrets, and a traceback would show them
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
                f"TOOLSCOUT_STDIO_SERVERS: {path} does not hold "
                f'{{"name": {{"argv": ["program", "argument"], "env": {{}}}}}}: {_reason(error)}'
            ) from error

    def check(self, name: str) -> None:
        """Before a server is stored."""
        if name not in self.programs:
            raise InvalidInput(
                "stdio servers run code: only those that the operator has listed can be chosen, by their name"
            )

    def program(self, name: str) -> StdioProgram:
        if name not in self.programs:
            raise ServerUnreachable(
                "not_listed", f"the operator's file, as it was read at the start, has no stdio server named {name!r}"
            )
        return self.programs[name]


def _reason(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    # without the values: an environment holds secrets
    return "; ".join(": ".join(filter(None, (_path(item["loc"]), item["msg"]))) for item in error.errors()[:3])


def _path(places: Sequence[int | str]) -> str:
    """Empty where the whole file is meant."""
    return ".".join(map(str, places))

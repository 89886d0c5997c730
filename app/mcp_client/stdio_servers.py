"""The MCP servers that run as local programs. Users choose from the operator's list and cannot add to it.

Where the demo is on, the list also has the demo's own program, for the demo user alone.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from app.errors import ConfigurationError, InvalidInput, ServerUnreachable
from app.settings import DEMO_USER, Settings

DEMO_PROGRAM = "toolbox"
_PACKAGES = Path(__file__).parents[2]
"""Where Python finds `app`: the program does not get our environment, and a project of its own may have an `app`."""


class StdioProgram(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    argv: list[str] = Field(min_length=1)
    env: Mapping[str, str] = {}
    users: list[str] | None = None
    """Who may use it; None: everyone."""

    def is_open_to(self, user_id: str) -> bool:
        return self.users is None or user_id in self.users


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

    def list_names(self, user_id: str) -> list[str]:
        """Return the names of the programs that the user may register."""
        return [name for name, program in self.programs.items() if program.is_open_to(user_id)]

    def check(self, name: str, user_id: str) -> None:
        """Raise `InvalidInput` unless the user may register a server of this name."""
        if name not in self.list_names(user_id):
            raise InvalidInput(
                "stdio servers run programs: only those that the operator lists in TOOLSCOUT_STDIO_SERVERS can be "
                "registered, by their name"
            )

    def get_program(self, name: str, user_id: str) -> StdioProgram:
        if name not in self.list_names(user_id):
            demo = "; the demo's own needs TOOLSCOUT_DEMO=1" if (name, user_id) == (DEMO_PROGRAM, DEMO_USER) else ""
            raise ServerUnreachable(
                "not_listed", f"TOOLSCOUT_STDIO_SERVERS, as last read, has no server named {name!r}{demo}"
            )
        return self.programs[name]


def read_stdio_servers(settings: Settings) -> StdioServerRegistry:
    """Return the operator's programs and, where the demo is on, the demo's. The operator's win."""
    listed = StdioServerRegistry.read(settings.stdio_servers).programs
    return StdioServerRegistry({**({DEMO_PROGRAM: _make_demo_program()} if settings.seeds_demo else {}), **listed})


def _make_demo_program() -> StdioProgram:
    """Only for the demo user: a process of its own for everybody who registers it would exhaust the machine."""
    # -P: without the working folder, which may have another `app`
    argv = [sys.executable, "-P", "-m", "app.demo.server"]
    return StdioProgram(argv=argv, env={"PYTHONPATH": str(_PACKAGES)}, users=[DEMO_USER])


def _describe_error(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    # Leave out the values: the environment variables are secrets.
    return "; ".join(": ".join(filter(None, (_join(item["loc"]), item["msg"]))) for item in error.errors()[:3])


def _join(path: Sequence[int | str]) -> str:
    """Return an empty string if the error concerns the whole file."""
    return ".".join(map(str, path))

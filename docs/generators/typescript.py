"""The types of the TypeScript client, made from the OpenAPI document by openapi-typescript, a program from npm."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from app.main import create_routes

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = _ROOT / "tests/third_party/node_modules/.bin/openapi-typescript"
_OPTIONS = ("--default-non-nullable", "false")
"""By default the generator requires fields that have a default, also in requests."""
TYPES = _ROOT / "clients/typescript/src/openapi.ts"


def render_types() -> str:
    """Return the generated file."""
    with TemporaryDirectory() as folder:
        document, output = Path(folder) / "openapi.json", Path(folder) / "openapi.ts"
        document.write_text(json.dumps(create_routes().openapi()))
        command: list[str | Path] = [_PROGRAM, document, *_OPTIONS, "--output", output]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 our own program
        return output.read_text()


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` say whether it is up to date. Do neither where the program is missing."""
    name = TYPES.relative_to(_ROOT)
    if not _PROGRAM.exists():
        print(f"{name} was left as it is: openapi-typescript is not installed", file=sys.stderr)  # noqa: T201
        return 0
    types = render_types()
    is_outdated = not TYPES.exists() or TYPES.read_text() != types
    if arguments == ["--check"]:
        if is_outdated:
            print(f"{name} is out of date: run `make docs`", file=sys.stderr)  # noqa: T201
        return int(is_outdated)
    if is_outdated:
        TYPES.write_text(types)
    return 0

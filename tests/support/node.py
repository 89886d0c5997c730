"""Programs of Node.js that tests run.

They run with the Node.js that Playwright brings, as the packages of the tests need version 20 or 22, and Debian 12 has
18. npm itself runs with the one that it was installed with.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

from tests.support.paths import NPM_PACKAGES

Done = subprocess.CompletedProcess[str]


def find_node() -> str:
    return compute_driver_executable()[0]


def run_node(folder: Path, *arguments: str | Path, **variables: str) -> Done:
    return _run([find_node(), *arguments], folder, variables)


def run_npm(folder: Path, *arguments: str, **variables: str) -> Done:
    """Run npm, whose scripts find Playwright's Node.js first in their PATH."""
    npm, node = shutil.which("npm"), shutil.which("node")
    assert npm is not None
    script = os.path.realpath(npm)
    command = [node, script] if node is not None and script.endswith(".js") else [npm]
    return _run([*command, *arguments], folder, variables)


def run_tsc(folder: Path, *arguments: str | Path) -> Done:
    return run_node(folder, NPM_PACKAGES / "typescript/bin/tsc", *arguments)


def _run(command: Sequence[str | Path], folder: Path, variables: dict[str, str]) -> Done:
    path = os.pathsep.join([str(Path(find_node()).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )

"""The guides as tests read them: their pages, anchors, links, and the commands that a reader may copy."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.paths import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "clients/python/README.md", *sorted(DOCS.glob("*.md"))]

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_RUNNABLE = re.compile(r"^<!-- runnable -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(text: str) -> list[tuple[str, str]]:
    """Those that stay among our files: the path, empty where it is the page itself, and the anchor."""
    targets = re.findall(r"\]\(([^)\s]+)\)", _FENCED.sub("", text))
    local = (target.partition("#") for target in targets if "://" not in target)
    return [(path, anchor) for path, _, anchor in local]


def runnable(text: str) -> str:
    """All commands that the page marks so, as somebody would enter them into one shell."""
    return "\n".join(_RUNNABLE.findall(text))


def run_as_a_reader(
    commands: str, folder: Path, port: int, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """In an empty folder, with the service on another port. A request that is refused is a command that fails."""
    (folder / ".curlrc").write_text("fail-with-body\nshow-error\n")
    here = commands.replace(":8000", f":{port}").replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        ["sh", "-euc", here], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

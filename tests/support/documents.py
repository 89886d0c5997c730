"""The documentation as tests read it: its pages, anchors, links, and the commands that a reader may copy."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.paths import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "clients/python/README.md",
    ROOT / "clients/typescript/README.md",
    ROOT / "examples/nextjs-chat/README.md",
    ROOT / "deploy/helm/toolscout/README.md",
    *sorted(DOCS.rglob("*.md")),
]

_CODE_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_RUNNABLE_BLOCK = re.compile(r"^<!-- runnable -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def list_anchors(text: str) -> set[str]:
    """The anchors of all headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _CODE_BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def list_links(text: str) -> list[tuple[str, str]]:
    """The links to files of this repository: path (empty: the page itself) and anchor."""
    targets = re.findall(r"\]\(([^)\s]+)\)", _CODE_BLOCK.sub("", text))
    local = (target.partition("#") for target in targets if "://" not in target)
    return [(path, anchor) for path, _, anchor in local]


def get_section(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def list_code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def join_runnable_blocks(text: str) -> str:
    """All commands that the page marks as runnable, as a reader would enter them into one shell."""
    return "\n".join(_RUNNABLE_BLOCK.findall(text))


def list_runnable_scripts(text: str, language: str = "python") -> list[str]:
    """The programs that the page marks as runnable."""
    return re.findall(rf"^<!-- runnable -->\n```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_commands(
    commands: str, folder: Path, port: int, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """In an empty folder, against a service on another port than 8000. A refused request makes its command fail."""
    (folder / ".curlrc").write_text("fail-with-body\nshow-error\n")
    adapted = commands.replace(":8000", f":{port}").replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        ["sh", "-euc", adapted], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

"""Write the pages of the reference, the schema of the Helm chart and the types of the TypeScript client, from the code.

Needs no database.

    python -m docs.generate

With `--check` nothing is written, and the exit status says whether all of it is up to date.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from app.cli.main import build_cli
from docs.generators import api, cli, helm, metrics, settings, typescript

REFERENCE = Path(__file__).with_name("reference")
PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api.render_page,
    "settings.md": settings.render_page,
    "metrics.md": metrics.render_page,
    "cli.md": lambda: cli.render_page(build_cli()),
    "helm.md": helm.render_page,
}


def main(arguments: list[str]) -> int:
    outdated = [name for name, render in PAGES.items() if _read(REFERENCE / name) != render()]
    if arguments == ["--check"]:
        for name in outdated:
            print(f"docs/reference/{name} is out of date: run `make docs`", file=sys.stderr)  # noqa: T201
        return 1 if outdated else 0
    for name in outdated:
        (REFERENCE / name).write_text(PAGES[name]())
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    arguments = sys.argv[1:]
    # the page of the chart is made from its schema
    sys.exit(max([helm.main(arguments), main(arguments), typescript.main(arguments)]))

"""A pytest plugin: measures which lines and branches of the application the tests run.

    pytest -p tests.support.coverage --min-branches=90

It uses SlipCover, which removes its probes once they have fired. coverage.py makes the whole suite nearly twice as slow
on Python 3.11, since it traces every line of every library each time.

The plugin starts when it is imported, which must be before anything imports the application: with `-p`, not from a
conftest. With xdist every worker measures; the controller merges the results and reports them.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import slipcover

from tests.support.paths import ROOT

SOURCE = Path(os.environ.get("COVERAGE_SOURCE", ROOT / "app"))
EXCLUDED = [r"if TYPE_CHECKING:", r"\.\.\.$", r"raise NotImplementedError"]

_measured = slipcover.Slipcover(source=[str(SOURCE)], branch=True, exclude_also=EXCLUDED)
slipcover.ImportManager(_measured, slipcover.FileMatcher(sources=[str(SOURCE)])).__enter__()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--min-branches", type=float, default=0, help="fail if fewer percent of all branches ran")
    parser.addoption("--coverage-out", type=Path, help="write what was measured to this file, and report nothing")


def pytest_configure(config: pytest.Config) -> None:
    kind = _WorkerCoverage if hasattr(config, "workerinput") else CoverageReport
    config.pluginmanager.register(kind(config), "coverage-report")


class _WorkerCoverage:
    def __init__(self, config: Any) -> None:
        self._config = config

    def pytest_sessionfinish(self) -> None:
        self._config.workeroutput["coverage"] = json.dumps(_measured.get_coverage())


class CoverageReport:
    """Runs in the process that reports, which with xdist is the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._min_branches: float = config.getoption("--min-branches")
        self._out: Path | None = config.getoption("--coverage-out")
        self._parts: list[Any] = []
        self._total: Any = None

    def add(self, part: str) -> None:
        """Add what another process has measured, as JSON."""
        self._parts.append(json.loads(part))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if part := getattr(node, "workeroutput", {}).get("coverage"):
            self.add(part)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        self._total = _measured.get_coverage()
        for part in self._parts:
            slipcover.merge_coverage(self._total, part)
        if self._out is not None:
            self._out.write_text(json.dumps(self._total))
        elif self._branches < self._min_branches:
            session.testsfailed += 1
        return result

    @property
    def _branches(self) -> float:
        """How many percent of all branches ran."""
        covered, missing = (self._total["summary"][f"{kind}_branches"] for kind in ("covered", "missing"))
        return float(100 * covered / (covered + missing or 1))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._total is None or self._out is not None:
            return
        terminalreporter.section("coverage")
        slipcover.print_coverage(self._total, outfile=terminalreporter, missing_width=80, skip_covered=True)
        failed = self._branches < self._min_branches
        terminalreporter.write_line(
            f"{self._branches:.1f} % of all branches ran; at least {self._min_branches:g} % are required",
            red=failed,
        )

"""A pytest plugin: with `--retry-failed`, runs every failed test once more, alone, in a fresh process.

The run fails only if a test fails again. A test that passes the second time is flaky: its first failure is printed, and
the last lines of the run name it. Four kinds of failures are final at once:

- tests with the marker `no_retry`: isolation, kills, races, fairness. There one failure in a hundred runs is a defect;
- a `FinalFailure`: what was found is true, and would not be found a second time;
- a worker process of xdist that crashed;
- more than `MAX_RETRIES` failed tests, which no chance explains.

The second run uses the seed of the first, so that a failure that depends on the seed repeats itself.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

MAX_RETRIES = 10
TIMEOUT_S = 600


class FinalFailure(AssertionError):
    """A failure that a second run of the test would hide, since it depends on what has run before."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--retry-failed", action="store_true", help="run failed tests once more, each in a fresh process")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_retry: a failure of the test is final, also with --retry-failed")
    if config.getoption("--retry-failed") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_RetryPlugin(config), "retry-failed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Mark the test, whose report is about to be made."""
    if call.excinfo is not None and _is_final(call.excinfo.value):
        item.add_marker("no_retry")


def _is_final(error: BaseException) -> bool:
    """Return whether it is a `FinalFailure`, or one of several errors of a teardown is."""
    return isinstance(error, FinalFailure) or (
        isinstance(error, BaseExceptionGroup) and any(_is_final(each) for each in error.exceptions)
    )


class _RetryPlugin:
    """Runs in the process that reports, which with xdist is the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failures: defaultdict[str, list[pytest.TestReport]] = defaultdict(list)
        self._flaky: list[str] = []
        self._note = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures[report.nodeid].append(report)

    # inside the hook of the coverage plugin, so that it counts what the second runs have measured
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if len(self._failures) > MAX_RETRIES:
            self._note = f"no test was retried: {len(self._failures)} tests failed, more than {MAX_RETRIES}"
            return result
        for nodeid, reports in self._failures.items():
            if _may_retry(reports) and self._passes_alone(nodeid):
                self._flaky.append(nodeid)
                session.testsfailed -= len(reports)
        return result

    def _passes_alone(self, nodeid: str) -> bool:
        command = [sys.executable, "-m", "pytest", nodeid, "-n", "0", "-q", "-p", "no:cacheprovider"]
        command += [f"--rootdir={self._config.rootpath}"]
        seed = self._config.getoption("randomly_seed", None)
        command += ["-p", "no:randomly"] if seed is None else [f"--randomly-seed={seed}"]
        with TemporaryDirectory() as folder:
            coverage = self._config.pluginmanager.get_plugin("coverage-report")
            measured = Path(folder) / "coverage.json"
            if coverage is not None:
                command += ["-p", "tests.support.coverage", f"--coverage-out={measured}"]
            try:
                done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                return False
            if coverage is not None and measured.exists():
                coverage.add(measured.read_text())
        return done.returncode == 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Move the flaky tests out of the failures, and print their first failure under a heading of their own."""
        for category in ("failed", "error"):
            reports = terminalreporter.stats.pop(category, [])
            flaky = [report for report in reports if report.nodeid in self._flaky]
            if rest := [report for report in reports if report.nodeid not in self._flaky]:
                terminalreporter.stats[category] = rest
            if flaky:
                terminalreporter.stats.setdefault("flaky", []).extend(flaky)
        for report in terminalreporter.stats.get("flaky", []):
            terminalreporter.section(f"failed once, passed alone: {report.nodeid}", sep="_")
            terminalreporter.write_line(report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        if self._note:
            terminal.write_line(self._note)
        for nodeid in self._flaky:
            terminal.write_line(f"flaky: {nodeid}")


def _may_retry(reports: list[pytest.TestReport]) -> bool:
    ran = all(report.when in ("setup", "call", "teardown") for report in reports)
    return ran and not any("no_retry" in report.keywords for report in reports)

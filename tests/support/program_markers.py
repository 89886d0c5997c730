"""A pytest plugin: skips the tests whose programs are missing, and says at the end what that cost.

A test that needs nginx carries `@pytest.mark.needs_nginx`, and so on for every program in `programs.py`. The last lines
of the run count the tests that were skipped for each missing program. With REQUIRE_ALL_PROGRAMS=1, as in CI, every
skipped test counts as a failure, whatever the reason for the skip.
"""

from collections import Counter
from collections.abc import Generator

import pytest

from tests.support.programs import PROGRAMS, all_are_required, find_missing


def pytest_configure(config: pytest.Config) -> None:
    for program in PROGRAMS:
        config.addinivalue_line("markers", f"{program.marker}: the test needs {program.name}")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SkipReport(), "skip-report")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [program for program in PROGRAMS if any(item.get_closest_marker(program.marker) for item in items)]
    missing = [program for program in missing if program.find() is None]
    for item in items:
        for program in missing:
            if item.get_closest_marker(program.marker):
                item.add_marker(pytest.mark.skip(reason=f"{program.name} is not installed"))


class _SkipReport:
    """Runs in the process that reports, which with xdist is the controller."""

    def __init__(self) -> None:
        self._skipped_tests: Counter[str] = Counter()
        self._skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.append(report.nodeid)
            self._skipped_tests.update(each.name for each in PROGRAMS if each.marker in report.keywords)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped.append(report.nodeid)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if all_are_required():
            session.testsfailed += len(self._skipped)
        return result

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        if all_are_required():
            for nodeid in self._skipped:
                terminal.write_line(f"skipped, although REQUIRE_ALL_PROGRAMS is set: {nodeid}", red=True)
        for program in find_missing() if self._skipped_tests else []:
            if count := self._skipped_tests[program.name]:
                tests = "1 test" if count == 1 else f"{count} tests"
                terminal.write_line(f"skipped: {tests} without {program.name}; to run: {program.install_command}")

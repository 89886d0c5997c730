"""The plugin that runs failed tests a second time, on small suites in other processes."""

import os
import sys
from textwrap import dedent

import pytest

from tests.support.paths import ROOT
from tests.support.retry import MAX_RETRIES

FLAKY = """
    from pathlib import Path
    import pytest
    import measured

    def fail_once(name):
        flag = Path(name)
        if not flag.exists():
            flag.touch()
            raise AssertionError(f"first run of {name}")
"""
SUITE = f"""{FLAKY}
    def test_flaky():
        fail_once("flaky")
        assert measured.second_branch(True) == "second"

    def test_sound():
        assert measured.second_branch(False) == "first"
"""
MEASURED = """
    def second_branch(wanted):
        if wanted:
            return "second"
        return "first"
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the others take longer to import than these suites run
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist -p randomly")
    (pytester.mkpydir("measured") / "__init__.py").write_text(dedent(MEASURED))
    return pytester


def run(suite: pytest.Pytester, *options: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-p", "tests.support.retry", "--retry-failed", "-q", *options)


def last_lines(result: pytest.RunResult, count: int) -> list[str]:
    return [line for line in result.outlines if line][-count:]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_test_that_passes_the_second_time_is_named_and_does_not_fail_the_run(
    suite: pytest.Pytester, workers: str
) -> None:
    suite.makepyfile(test_it=SUITE)
    result = run(suite, "-n", workers)
    assert result.ret == 0
    assert last_lines(result, 1) == ["flaky: test_it.py::test_flaky"]
    result.stdout.fnmatch_lines(["*failed once, passed alone: test_it.py::test_flaky*", "*first run of flaky*"])
    assert "FAILED" not in result.stdout.str()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_second_run_counts_for_coverage(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv("COVERAGE_SOURCE", str(suite.path / "measured"))
    suite.makepyfile(test_it=SUITE)
    options = ("-n", workers, "-p", "tests.support.coverage", "--min-branches=100")
    result = run(suite, *options)
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["100.0 % of all branches ran; at least 100 % are required"])
    # without the second run, half of the branches are missing
    (suite.path / "flaky").unlink()
    result = suite.runpytest_subprocess(*options)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["50.0 % of all branches ran; at least 100 % are required"])


def test_a_test_that_fails_twice_fails_the_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_it=f"{SUITE}\n    def test_broken():\n        assert 1 == 2\n")
    result = run(suite, "-n", "2")
    assert result.ret == 1
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "flaky": 1}
    assert last_lines(result, 1) == ["flaky: test_it.py::test_flaky"]


def test_a_failure_in_a_fixture_is_retried_too(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_it=f"""{FLAKY}
    @pytest.fixture
    def fragile():
        fail_once("setup")
        yield
        fail_once("teardown")

    def test_it(fragile):
        pass
"""
    )
    first = run(suite)
    assert first.ret == 1, "the second run got further and failed in the teardown"
    assert run(suite).ret == 0


def test_a_marked_test_is_never_run_twice(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_it=SUITE.replace("    def test_flaky", "    @pytest.mark.no_retry\n    def test_flaky"))
    result = run(suite, "-n", "2")
    assert result.ret == 1
    assert "flaky:" not in result.stdout.str()


def test_a_final_failure_is_never_run_twice(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_it=f"""{FLAKY}
    from tests.support.retry import FinalFailure

    @pytest.fixture
    def checked():
        yield
        try:
            fail_once("checked")
        except AssertionError as error:
            raise FinalFailure("found") from error

    @pytest.fixture
    def fragile():
        yield
        fail_once("fragile")

    def test_it(checked, fragile):
        pass
"""
    )
    result = run(suite, "-n", "2")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*found*"])
    assert "flaky:" not in result.stdout.str()
    assert run(suite).ret == 0


def test_too_many_failures_are_no_chance(suite: pytest.Pytester) -> None:
    many = f"""{FLAKY}
    @pytest.mark.parametrize("number", range({MAX_RETRIES + 1}))
    def test_flaky(number):
        fail_once(str(number))
"""
    suite.makepyfile(test_it=many)
    result = run(suite)
    assert result.ret == 1
    assert last_lines(result, 1) == [f"no test was retried: {MAX_RETRIES + 1} tests failed, more than {MAX_RETRIES}"]
    assert run(suite).ret == 0


def test_a_failure_that_depends_on_the_seed_repeats_itself(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_it="import random\n\ndef test_seeded():\n    assert random.random() == 2\n")
    result = run(suite, "--randomly-seed=77")
    assert result.ret == 1


def test_a_worker_that_crashes_is_not_retried(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_it=f"""{FLAKY}
    import os

    def test_crash():
        try:
            fail_once("crash")
        except AssertionError:
            os._exit(1)
"""
    )
    result = run(suite, "-n", "1")
    assert result.ret == 1
    assert "flaky:" not in result.stdout.str()


def test_without_the_option_nothing_is_retried(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_it=SUITE)
    assert suite.runpytest_subprocess("-p", "tests.support.retry").ret == 1
    assert suite.runpytest_subprocess("-p", "tests.support.retry").ret == 0

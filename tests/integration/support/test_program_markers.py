"""The plugin that skips tests whose programs are missing, and the set-up that looks for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.programs import NGINX, PROGRAMS

SUITE = """
    import pytest

    @pytest.mark.needs_nginx
    def test_proxy():
        pass

    @pytest.mark.needs_nginx
    @pytest.mark.needs_promtool
    def test_both():
        pass

    def test_sound():
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the others take longer to import than these suites run
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist")
    monkeypatch.delenv("REQUIRE_ALL_PROGRAMS", raising=False)
    pytester.makepyfile(test_it=SUITE)
    return pytester


def run(suite: pytest.Pytester, folder: Path, *options: str) -> pytest.RunResult:
    """Run the suite where programs are found in this folder alone."""
    suite.makeconftest("from tests.support import programs\n\nprograms._SYSTEM_FOLDERS = ()\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))
        return suite.runpytest_subprocess("-p", "tests.support.program_markers", "-q", *options)


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_without_their_program_are_skipped_and_counted_at_the_end(
    suite: pytest.Pytester, tmp_path: Path, workers: str
) -> None:
    install(tmp_path, "promtool")
    result = run(suite, tmp_path, "-n", workers)
    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": 1, "skipped": 2}
    last = [line for line in result.outlines if line][-1]
    assert last == "skipped: 2 tests without nginx; to run: install nginx with the package manager of this system"


def test_tests_run_where_their_programs_are(suite: pytest.Pytester, tmp_path: Path) -> None:
    install(tmp_path, "promtool", "nginx")
    result = run(suite, tmp_path)
    assert (result.ret, result.parseoutcomes()) == (0, {"passed": 3})
    assert "skipped:" not in result.stdout.str()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_skip_fails_the_run_where_all_programs_are_required(
    suite: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv("REQUIRE_ALL_PROGRAMS", "1")
    install(tmp_path, "promtool", "nginx")
    assert run(suite, tmp_path, "-n", workers).ret == 0
    suite.makepyfile(test_other="import pytest\n\ndef test_skipped():\n    pytest.skip('for another reason')\n")
    result = run(suite, tmp_path, "-n", workers)
    assert result.ret == 1
    last = [line for line in result.outlines if line][-1]
    assert last == "skipped, although REQUIRE_ALL_PROGRAMS is set: test_other.py::test_skipped"


def test_a_module_that_skips_itself_fails_the_run_where_all_programs_are_required(
    suite: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUIRE_ALL_PROGRAMS", "1")
    install(tmp_path, "promtool", "nginx")
    suite.makepyfile(test_other="import pytest\n\npytest.importorskip('no_such_module')\n")
    assert run(suite, tmp_path, "-n", "2").ret == 1


def list_programs(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up as `make test` does, where nothing can be installed."""
    script = (
        "from tests.support import programs\n"
        "programs._SYSTEM_FOLDERS, programs._can_install = (), lambda: False\n"
        "raise SystemExit(programs.main())"
    )
    environment = {"PATH": str(folder), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)


def test_every_missing_program_is_listed_with_its_purpose(tmp_path: Path) -> None:
    install(tmp_path, "nginx")
    listed = list_programs(tmp_path)
    assert listed.returncode == 0
    for program in PROGRAMS:
        assert (f"  {program.name} " in listed.stdout) is (program is not NGINX)
    assert "tests the alerts" in listed.stdout
    assert listed.stdout.endswith("The tests that need them will be skipped.\n")


def test_a_missing_program_is_an_error_where_all_are_required(tmp_path: Path) -> None:
    install(tmp_path, *(command for program in PROGRAMS[1:] for command in program.commands))
    refused = list_programs(tmp_path, REQUIRE_ALL_PROGRAMS="1")
    assert (refused.returncode, PROGRAMS[0].purpose in refused.stdout) == (1, True)
    install(tmp_path, *PROGRAMS[0].commands)
    complete = list_programs(tmp_path, REQUIRE_ALL_PROGRAMS="1")
    assert (complete.returncode, complete.stdout) == (0, "")


def test_a_stub_that_does_not_run_is_not_taken_for_the_program(tmp_path: Path) -> None:
    install(tmp_path, *(command for program in PROGRAMS for command in program.commands))
    for command in ("chromium", "chromium-browser", "google-chrome"):
        (tmp_path / command).write_text("#!/bin/sh\necho install the snap\nexit 10\n")
    assert "chromium" in list_programs(tmp_path).stdout
    (tmp_path / "google-chrome").write_text("#!/bin/sh\n")
    assert list_programs(tmp_path).stdout == ""

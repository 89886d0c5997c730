"""The programs that some tests need beside Python: what each is for, where it is, how to install it.

`make test` runs this file before the virtual environment exists, so it uses the standard library alone:

    python3 tests/support/programs.py

It lists the missing programs. As root on Debian or Ubuntu (a container, CI) it installs them; elsewhere the tests that
need them are skipped. With REQUIRE_ALL_PROGRAMS=1 a program that is still missing is an error.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# nginx and pgbouncer are installed where an ordinary user's PATH does not lead
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")
_POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True)
class Program:
    name: str
    purpose: str
    commands: tuple[str, ...]
    apt_packages: str
    brew_package: str

    @property
    def marker(self) -> str:
        """The pytest marker of the tests that need this program."""
        return f"needs_{self.name}"

    def find(self) -> str | None:
        """Return the path of the program, or None."""
        folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
        found = (shutil.which(command, path=folders) for command in self.commands)
        return next((path for path in found if path is not None and _can_run(path)), None)

    @property
    def install_command(self) -> str:
        if shutil.which("apt-get"):
            return f"sudo apt-get install --no-install-recommends {self.apt_packages}"
        if shutil.which("brew"):
            return f"brew install {self.brew_package}"
        return f"install {self.name} with the package manager of this system"


CURL = Program("curl", "runs the requests of the documentation", ("curl",), "curl", "curl")
NPM = Program("npm", "installs MCP servers and clients of others, and axe-core", ("npm",), "nodejs npm", "node")
PROMTOOL = Program("promtool", "tests the alerts", ("promtool",), "prometheus", "prometheus")
NGINX = Program("nginx", "stands before the replicas", ("nginx",), "nginx-light", "nginx")
CHROMIUM = Program(
    "chromium",
    "shows the pages of the console",
    ("chromium", "chromium-browser", "google-chrome"),
    "chromium fonts-dejavu-core libatomic1",  # the last one is for the Node.js that drives it
    "--cask chromium",
)
PGBOUNCER = Program("pgbouncer", "pools the connections to Postgres", ("pgbouncer",), "pgbouncer", "pgbouncer")
PROGRAMS = (CURL, NPM, PROMTOOL, NGINX, PGBOUNCER, CHROMIUM)


def all_are_required() -> bool:
    return os.environ.get("REQUIRE_ALL_PROGRAMS", "") not in ("", "0")


def find_missing() -> list[Program]:
    return [program for program in PROGRAMS if program.find() is None]


def main() -> int:
    missing = find_missing()
    if not missing:
        return 0
    _print("Some tests need programs that are not installed:", missing)
    if _can_install():
        _install(missing)
        missing = find_missing()
        if not missing:
            return 0
        _print("These could not be installed:", missing)
    if all_are_required():
        print("REQUIRE_ALL_PROGRAMS is set: install them, or unset it.")
        return 1
    print("The tests that need them will be skipped.", flush=True)
    return 0


def _can_run(path: str) -> bool:
    """Ubuntu's `chromium-browser` may be a script that only asks for the snap."""
    if "chrom" not in path:
        return True
    return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0


def _print(heading: str, programs: list[Program]) -> None:
    print(heading)
    for program in programs:
        print(f"  {program.name:<9} {program.purpose}: {program.install_command}")


def _can_install() -> bool:
    return os.geteuid() == 0 and Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


def _install(programs: list[Program]) -> None:
    with _no_services_started():
        _apt_get("update")
        for program in programs:
            print(f"installing {program.name} …", flush=True)
            _apt_get("install", "--yes", "--no-install-recommends", *program.apt_packages.split())


def _apt_get(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "--quiet=2", "--option=Dpkg::Use-Pty=0", *arguments]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout, f"apt-get {arguments[0]} failed (exit status {done.returncode})", sep="\n", flush=True)


@contextmanager
def _no_services_started() -> Iterator[None]:
    """Packages such as that of nginx start a service when they are installed; the tests start their own."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


if __name__ == "__main__":
    sys.exit(main())

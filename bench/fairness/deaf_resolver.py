"""Starts Toolscout with a resolver that never answers for names in `unresolved.test`, as a name server that is down."""

import runpy
import socket
import time
from typing import Any

_SILENT_S = 30.0
"""As long as the C library asks three times in a row, and gives up."""

_getaddrinfo = socket.getaddrinfo


def _resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name.endswith(".unresolved.test"):
        time.sleep(_SILENT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")
    return _getaddrinfo(host, *args, **kwargs)


if __name__ == "__main__":
    socket.getaddrinfo = _resolve
    runpy.run_module("app", run_name="__main__", alter_sys=True)

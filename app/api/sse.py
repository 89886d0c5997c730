"""Server-sent events: what a long job has to tell while it runs."""

from collections.abc import AsyncIterator

import orjson
from starlette.responses import StreamingResponse

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_S = 15.0
HEARTBEAT = b": still here\n\n"
"""A comment, so that no proxy takes silence for the end."""


def event(kind: str, data: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data, default=str) + b"\n\n"


def stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers=headers)

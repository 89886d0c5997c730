"""Server-sent events, for jobs that report progress."""

from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from app.text.strict_json import dump_json

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_S = 15.0
HEARTBEAT = b": still here\n\n"
"""A comment line, so that no proxy closes a silent connection."""


def render_event(kind: str, data: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dump_json(data, default=str) + b"\n\n"


def stream_response(events: AsyncIterator[bytes]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers=headers)

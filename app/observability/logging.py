"""Structured logs: JSON lines, or readable text on a terminal. No log line contains a message, an argument or a key."""

import logging
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson
from rich.console import Console
from rich.text import Text

LogFormat = Literal["auto", "json", "text"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
request_started: ContextVar[float | None] = ContextVar("request_started", default=None)

_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_LEVEL_STYLES = {"debug": "dim", "info": "green", "warning": "yellow", "error": "red", "critical": "bold red"}


def elapsed_ms() -> float:
    """Return the time since the current request arrived, or 0 outside of a request."""
    started = request_started.get()
    return 0.0 if started is None else (time.perf_counter() - started) * 1000


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object per line; JSON escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextFormatter(logging.Formatter):
    """Format the fields of the JSON lines for people, in colour if `stream` is a terminal.

    Text from outside can neither add a line nor move the cursor, because control characters are escaped; rich does not
    look for markup in it, because it is passed as `Text`. Lines of a traceback are indented, so that none of them looks
    like a record.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._console = Console(file=stream)

    def format(self, record: logging.LogRecord) -> str:
        with self._console.capture() as capture:
            self._console.print(self._render(record), soft_wrap=True, end="")
        return capture.get()

    def _render(self, record: logging.LogRecord) -> Text:
        level = record.levelname.lower()
        line = Text()
        line.append(datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S "), "dim")
        line.append(f"{level:<8} ", _LEVEL_STYLES.get(level, ""))
        line.append(f"{_escape(record.name)}: {_escape(record.getMessage())}")
        for key, value in _extra_fields(record).items():
            line.append(f" {_escape(key)}=", "dim")
            line.append(_escape(str(value)))
        if record.exc_info:
            for row in self.formatException(record.exc_info).split("\n"):
                line.append(f"\n    {_escape(row)}", "dim")
        return line


def configure_logging(level: str, log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Log to `stream`, by default stderr. `auto` writes text to a terminal and JSON lines to everything else."""
    stream = stream or sys.stderr
    as_text = stream.isatty() if log_format == "auto" else log_format == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter(stream) if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    set_log_level(level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def set_log_level(level: str) -> None:
    logging.getLogger("toolscout").setLevel(level)


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the request id, if there is one, and the fields that were passed as `extra`."""
    fields = {key: value for key, value in record.__dict__.items() if key not in _STANDARD_ATTRIBUTES}
    identifier = request_id.get()
    return fields if identifier is None else {"request_id": identifier, **fields}


def _escape(text: str) -> str:
    """Replace control, format and other non-printable characters by their escape sequences."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)

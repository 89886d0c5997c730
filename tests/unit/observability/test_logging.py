"""The log formats: one record is one line, and foreign text cannot leave its place in it."""

import io
import json
import logging
import sys
from typing import Any

import pytest

from app.observability.logging import JsonFormatter, TextFormatter, configure_logging, request_id

NASTY = "a\nb\rc\x1b[31md\x07e\x9bf\u202eg\u2028h [bold red]markup[/] :smile: \ud800"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _colour_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def make_record(message: str, *args: object, **extra: Any) -> logging.LogRecord:
    record = logging.getLogger("toolscout.test").makeRecord(
        "toolscout.test", logging.WARNING, __file__, 1, message, args, None, extra=extra
    )
    record.created = 1_800_000_000.123
    return record


def record_with_exception(text: str) -> logging.LogRecord:
    record = make_record("index run failed")
    try:
        raise ValueError(text)
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def format_text(record: logging.LogRecord, stream: io.StringIO | None = None) -> str:
    return TextFormatter(stream or io.StringIO()).format(record)


def test_a_text_line_has_the_level_the_logger_the_message_and_the_fields() -> None:
    line = format_text(make_record("%s cannot be written", "usage", users=3, reason="timeout"))
    assert line.split(" ", 1)[1] == "warning  toolscout.test: usage cannot be written users=3 reason=timeout"


def test_a_text_line_has_the_request_id() -> None:
    token = request_id.set("abc123")
    try:
        assert format_text(make_record("request")).endswith("toolscout.test: request request_id=abc123")
    finally:
        request_id.reset(token)


def test_both_formats_show_the_same_fields() -> None:
    record = make_record("request", method="GET", route="/tools", status=200, ms=1.5)
    fields = json.loads(JsonFormatter().format(record))
    assert fields.keys() == {"time", "level", "logger", "message", "method", "route", "status", "ms"}
    line = format_text(record)
    assert line.split(": ", 1)[1] == "request method=GET route=/tools status=200 ms=1.5"
    for hidden in (record.pathname, record.processName, record.threadName, record.funcName):
        assert hidden is None or hidden not in line


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
@pytest.mark.parametrize("place", ["message", "argument", "field", "key"])
def test_foreign_text_stays_in_one_line_and_is_not_interpreted(place: str, stream: io.StringIO) -> None:
    records = {
        "message": make_record(NASTY),
        "argument": make_record("%s", NASTY),
        "field": make_record("failed", reason=NASTY),
        "key": make_record("failed", **{NASTY: 1}),
    }
    line = format_text(records[place], stream)
    ours = {"\x1b[2m", "\x1b[33m", "\x1b[0m"}  # dim, yellow, reset
    for code in ours:
        line = line.replace(code, "")
    assert line.isprintable()
    escaped = r"a\nb\rc\x1b[31md\x07e\x9bf\u202eg\u2028h [bold red]markup[/] :smile: \ud800"
    assert escaped in line


def test_foreign_text_in_an_exception_is_escaped_and_indented() -> None:
    head, *trace = format_text(record_with_exception("first\n12:00:00 error    toolscout: forged\x1b[2J")).split("\n")
    assert head.endswith("index run failed")
    assert trace[0] == "    Traceback (most recent call last):"
    assert all(row.startswith("    ") and row.isprintable() for row in trace)
    assert trace[-1] == r"    12:00:00 error    toolscout: forged\x1b[2J"


def test_a_json_line_is_one_line_with_the_exception_in_it() -> None:
    line = JsonFormatter().format(record_with_exception(NASTY.rstrip("\ud800")))
    assert "\n" not in line
    assert "\x1b" not in line
    assert "ValueError: a\nb" in json.loads(line)["exception"]


def test_a_long_line_is_not_wrapped() -> None:
    assert "\n" not in format_text(make_record("word " * 200), Terminal())


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record("failed")
    assert "\x1b[33m" in format_text(record, Terminal())
    assert "\x1b" not in format_text(record, io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in format_text(record, Terminal())


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        ("auto", io.StringIO, True),
        ("auto", Terminal, False),
        ("json", Terminal, True),
        ("text", io.StringIO, False),
    ],
)
def test_auto_writes_text_to_a_terminal_and_json_elsewhere(
    log_format: Any, stream: type[io.StringIO], is_json: bool
) -> None:
    output = stream()
    configure_logging("INFO", log_format, output)
    logging.getLogger("toolscout.test").info("service started")
    logging.getLogger("other.library").info("chatter")
    [line] = output.getvalue().splitlines()
    assert line.startswith("{") == is_json
    assert "service started" in line

"""Tables: styled on a terminal, plain lines anywhere else, and never interpreted."""

import io

import pytest

from app.cli.output import print_table
from app.cli.text import make_printable
from tests.support.terminal import FakeTerminal

ROWS = [("[bold]files[/bold]", "\033[31mdown"), ("time", "up")]
LINES = [f"{name}  {status}" for name, status in ROWS]


@pytest.fixture(autouse=True)
def _terminal_with_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def render(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stdout", stream)
    print_table(["name", "status"], ROWS, LINES)
    return stream.getvalue()


def test_in_a_pipe_the_lines_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert render(io.StringIO(), monkeypatch) == "[bold]files[/bold]  \N{REPLACEMENT CHARACTER}[31mdown\ntime  up\n"


def test_on_a_terminal_there_is_a_table_whose_cells_are_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    table = render(FakeTerminal(), monkeypatch)
    assert "\033[1m" in table
    assert "name" in table
    assert "[bold]files[/bold]" in table
    assert "\N{REPLACEMENT CHARACTER}[31mdown" in table


def test_with_no_color_a_table_has_no_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in render(FakeTerminal(), monkeypatch)


def test_what_nobody_can_see_is_not_printed() -> None:
    assert make_printable("git\u3164hub\ufe01") == "github"
    assert make_printable("❤\ufe0f") == "❤\ufe0f"


def test_control_characters_are_replaced_and_line_breaks_stay() -> None:
    assert make_printable("a\x1b[2J\x00\r\x9b\u202eb\n\tü…") == "a�[2J����b\n\tü…"

"""The progress bar: redrawn in place on a terminal, a few plain lines anywhere else."""

import io
import sys

import pytest

from app.cli.progress import ProgressBar
from tests.support.terminal import FakeTerminal

Step = tuple[int, int, str]
STEPS: list[Step] = [(0, 0, "queued"), (0, 0, "queued"), (1, 4, "running"), (4, 4, "succeeded")]


@pytest.fixture(autouse=True)
def _terminal_with_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def draw(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, steps: list[Step], title: str = "files") -> str:
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressBar(title) as bar:
        for step in steps:
            bar.show(*step)
    return stream.getvalue()


def read_counts(steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the counts in the lines that are written to a file."""
    return [line.split()[-1] for line in draw(io.StringIO(), monkeypatch, steps).splitlines()]


def test_on_a_terminal_the_bar_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(FakeTerminal(), monkeypatch, STEPS)
    assert "\033[2K" in drawn
    last_frame = drawn.split("\033[2K")[-1]
    assert "files" in last_frame
    assert "4/4" in last_frame
    assert "\n" in last_frame
    assert drawn.rstrip().endswith("\033[?25h"), "the cursor is shown again"


def test_with_no_color_the_bar_has_no_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\033[38" in draw(FakeTerminal(), monkeypatch, STEPS)
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = draw(FakeTerminal(), monkeypatch, STEPS)
    assert "4/4" in drawn
    assert "m" not in drawn.replace("\033[?25l", "").replace("\033[?25h", "")


def test_the_cursor_is_shown_again_if_the_task_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr("sys.stderr", terminal)

    def fail() -> None:
        with ProgressBar("files") as bar:
            bar.show(1, 4, "")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert terminal.getvalue().rstrip().endswith("\033[?25h")


@pytest.mark.parametrize("stream", [io.StringIO, FakeTerminal])
def test_a_title_is_neither_markup_nor_terminal_commands(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]
) -> None:
    drawn = draw(stream(), monkeypatch, STEPS, title="[red]a[/red] :smile: \033[31mb")
    assert "[red]a[/red] :smile: \N{REPLACEMENT CHARACTER}[31mb" in drawn


def test_output_to_stdout_is_not_redirected_through_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with ProgressBar("files") as bar:
        bar.show(1, 4, "")
        sys.stdout.write("a result\n")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in terminal.getvalue()


def test_elsewhere_lines_are_plain_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_counts(STEPS, monkeypatch) == ["queued", "1/4", "4/4"]
    drawn = draw(io.StringIO(), monkeypatch, STEPS)
    assert "\033" not in drawn
    assert [line.count("#") for line in drawn.splitlines()] == [0, 7, 30]


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert draw(FakeTerminal(), monkeypatch, STEPS) == draw(io.StringIO(), monkeypatch, STEPS)


def test_elsewhere_a_long_task_has_a_line_for_its_start_each_quarter_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [(done, 1_000, "") for done in range(1, 1_001)]
    assert read_counts(steps, monkeypatch) == ["1/1000", "250/1000", "500/1000", "750/1000", "1000/1000"]


def test_elsewhere_an_interrupted_task_shows_its_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_counts([(0, 10, ""), (1, 10, ""), (2, 10, "")], monkeypatch) == ["0/10", "2/10"]
    assert read_counts([(0, 0, "queued"), (0, 0, "running"), (0, 0, "failed")], monkeypatch) == ["queued", "failed"]

import io

import pytest

from app.cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Step = tuple[int, int, str]
STEPS: list[Step] = [(0, 0, "queued"), (0, 0, "queued"), (1, 4, "running"), (4, 4, "succeeded")]


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, steps: list[Step]) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    bar = ProgressBar("files")
    for step in steps:
        bar.show(*step)
    bar.end()
    return stream.getvalue()


def counts(steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the lines that a file gets."""
    return [line.split()[-1] for line in shown(io.StringIO(), monkeypatch, steps).splitlines()]


def test_on_a_terminal_the_bar_grows_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = shown(Terminal(), monkeypatch, STEPS)
    assert drawn.count("\r\033[K") == 3
    assert [frame.count("#") for frame in drawn.split("\r")[1:]] == [0, 7, 30]
    assert drawn.endswith("4/4\n")


def test_elsewhere_there_are_plain_lines_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(STEPS, monkeypatch) == ["queued", "1/4", "4/4"]
    assert "\033" not in shown(io.StringIO(), monkeypatch, STEPS)


def test_elsewhere_a_long_way_has_a_line_for_its_start_each_quarter_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [(done, 1_000, "") for done in range(1, 1_001)]
    assert counts(steps, monkeypatch) == ["1/1000", "250/1000", "500/1000", "750/1000", "1000/1000"]
    assert shown(Terminal(), monkeypatch, steps).count("\r") == 1_000


def test_elsewhere_what_breaks_off_shows_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts([(0, 10, ""), (1, 10, ""), (2, 10, "")], monkeypatch) == ["0/10", "2/10"]
    assert counts([(0, 0, "queued"), (0, 0, "running"), (0, 0, "failed")], monkeypatch) == ["queued", "failed"]

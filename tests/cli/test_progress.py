import io

import pytest

from app.cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    bar = ProgressBar("files")
    for done, total, state in [(0, 0, "queued"), (0, 0, "queued"), (1, 4, "running"), (4, 4, "succeeded")]:
        bar.show(done, total, state)
    bar.end()
    return stream.getvalue()


def test_on_a_terminal_the_bar_grows_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = shown(Terminal(), monkeypatch)
    assert drawn.count("\r\033[K") == 3
    assert [frame.count("#") for frame in drawn.split("\r")[1:]] == [0, 7, 30]
    assert drawn.endswith("4/4\n")


def test_elsewhere_there_is_a_line_for_each_step_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(io.StringIO(), monkeypatch).splitlines()
    assert [line.split()[-1] for line in lines] == ["queued", "1/4", "4/4"]
    assert "\033" not in "".join(lines)

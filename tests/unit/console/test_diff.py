"""Two definitions side by side."""

from app.console.diff import DiffRow, differences


def marked(row: DiffRow) -> tuple[list[str], list[str]]:
    old, new = ([piece.text for piece in side or () if piece.marked] for side in (row.old, row.new))
    return old, new


def test_only_what_differs_in_a_line_is_marked() -> None:
    [row] = [
        row for row in differences({"description": "a small file"}, {"description": "a large file"}) if row.changed
    ]
    assert marked(row) == (["small"], ["large"])


def test_what_was_added_or_taken_away_stands_alone() -> None:
    rows = [row for row in differences({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}) if row.changed and row.old is None]
    assert [marked(row)[1] for row in rows] == [['  "c": 3']]


def test_the_same_in_another_order_is_no_difference() -> None:
    assert differences({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


def test_far_apart_changes_have_a_gap_between_them() -> None:
    old = {f"key_{n:02}": n for n in range(40)}
    rows = differences(old, old | {"key_01": "x", "key_38": "y"})
    assert [row for row in rows if row.old is None and row.new is None]
    assert len(rows) < 20


def test_a_very_long_line_is_marked_as_a_whole() -> None:
    [row] = [row for row in differences({"d": "word " * 2_000}, {"d": "word " * 2_000 + "!"}) if row.changed]
    assert len(marked(row)[0]) == 1

"""The side-by-side diff of two definitions."""

from app.console.definition_diff import DiffRow, diff_definitions


def marked_texts(row: DiffRow) -> tuple[list[str], list[str]]:
    old, new = ([segment.text for segment in side or () if segment.marked] for side in (row.old, row.new))
    return old, new


def test_only_the_changed_words_of_a_line_are_marked() -> None:
    rows = diff_definitions({"description": "a small file"}, {"description": "a large file"})
    [row] = [row for row in rows if row.changed]
    assert marked_texts(row) == (["small"], ["large"])


def test_an_added_line_has_no_counterpart() -> None:
    rows = diff_definitions({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3})
    assert [marked_texts(row)[1] for row in rows if row.changed and row.old is None] == [['  "c": 3']]


def test_the_order_of_keys_makes_no_difference() -> None:
    assert diff_definitions({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


def test_distant_changes_have_a_gap_between_them() -> None:
    old = {f"key_{n:02}": n for n in range(40)}
    rows = diff_definitions(old, old | {"key_01": "x", "key_38": "y"})
    assert [row for row in rows if row.old is None and row.new is None]
    assert len(rows) < 20


def test_a_very_long_line_is_marked_as_a_whole() -> None:
    rows = diff_definitions({"d": "word " * 2_000}, {"d": "word " * 2_000 + "!"})
    [row] = [row for row in rows if row.changed]
    assert len(marked_texts(row)[0]) == 1

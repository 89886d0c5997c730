"""Tests of the demo's notes and of its text statistics."""

import pytest

from app.demo.notes import MAX_NOTES, NoteStore
from app.demo.text_statistics import Statistics, measure


def test_notes_are_added_listed_and_deleted() -> None:
    notes = NoteStore()
    first, second = notes.add(" buy milk "), notes.add("call Kim")
    assert [(note.id, note.text) for note in notes.list_all()] == [(1, "buy milk"), (2, "call Kim")]
    assert notes.delete(first.id) == first
    assert notes.list_all() == [second]
    assert notes.add("again").id == 3  # an id is not used twice


def test_a_note_that_does_not_exist_is_refused_with_the_ids_that_do() -> None:
    notes = NoteStore()
    notes.add("one")
    notes.add("two")
    with pytest.raises(ValueError, match="no note 7; the ids of the notes: 1, 2"):
        notes.delete(7)


def test_notes_are_limited_in_number() -> None:
    notes = NoteStore()
    for number in range(MAX_NOTES):
        notes.add(str(number))
    with pytest.raises(ValueError, match="delete one"):
        notes.add("one more")
    notes.delete(1)
    notes.add("one more")


def test_a_blank_note_is_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        NoteStore().add(" \n ")


def test_a_text_is_counted() -> None:
    text = 'It\'s a well-known fact. Is it? "Yes!"\n\nThe end'
    assert measure(text) == Statistics(
        characters=46,
        characters_without_spaces=37,
        words=9,
        unique_words=9,
        sentences=4,
        paragraphs=2,
        average_word_length=3.56,
        reading_seconds=3,
    )


@pytest.mark.parametrize("text", ["", " \n\n ", "...!"])
def test_a_text_without_words_has_no_sentences(text: str) -> None:
    counted = measure(text)
    assert (counted.words, counted.sentences, counted.average_word_length, counted.reading_seconds) == (0, 0, 0.0, 0)


def test_sentences_in_other_scripts_are_counted() -> None:
    assert measure("我喜欢猫。你呢？").sentences == 2

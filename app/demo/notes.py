"""Notes in memory, limited in number. They last as long as the process."""

from dataclasses import dataclass
from datetime import UTC, datetime

MAX_NOTES = 100


@dataclass(frozen=True)
class Note:
    id: int
    text: str
    created_at: datetime


class NoteStore:
    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}
        self._next_id = 1

    def add(self, text: str) -> Note:
        if not text.strip():
            raise ValueError("the note has no text")
        if len(self._notes) >= MAX_NOTES:
            raise ValueError(f"there are {MAX_NOTES} notes already: delete one with delete_note first")
        note = Note(self._next_id, text.strip(), datetime.now(UTC))
        self._notes[note.id] = note
        self._next_id += 1
        return note

    def list_all(self) -> list[Note]:
        """Return the notes, oldest first."""
        return list(self._notes.values())

    def delete(self, note_id: int) -> Note:
        if note_id not in self._notes:
            known = ", ".join(map(str, self._notes)) or "none"
            raise ValueError(f"there is no note {note_id}; the ids of the notes: {known}")
        return self._notes.pop(note_id)

"""Count what a text consists of."""

import re
from dataclasses import dataclass

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]")
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")
WORDS_PER_MINUTE = 200


@dataclass(frozen=True)
class Statistics:
    characters: int
    characters_without_spaces: int
    words: int
    unique_words: int
    sentences: int
    paragraphs: int
    average_word_length: float
    reading_seconds: int


def measure(text: str) -> Statistics:
    words = _WORD.findall(text)
    return Statistics(
        characters=len(text),
        characters_without_spaces=len("".join(text.split())),
        words=len(words),
        unique_words=len({word.casefold() for word in words}),
        sentences=_count_sentences(text),
        paragraphs=sum(1 for part in _PARAGRAPH_BREAK.split(text) if part.strip()),
        average_word_length=round(sum(map(len, words)) / len(words), 2) if words else 0.0,
        reading_seconds=round(len(words) * 60 / WORDS_PER_MINUTE),
    )


def _count_sentences(text: str) -> int:
    """A last sentence without a full stop counts too."""
    return sum(1 for part in _SENTENCE_END.split(text) if _WORD.search(part))

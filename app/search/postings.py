"""The terms of tools in memory, by term, so that a query reads only its own terms. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from app.search.pgvector_binary import SparseElements
from app.search.term_stats import TermStats

Scores = npt.NDArray[np.float64]
Spans = Mapping[int, tuple[int, int]]
"""Where the tools of each term begin and end in the postings, by term id."""


@dataclass(frozen=True)
class Postings:
    """The tools of each term with its saturated frequency in them, one term after another."""

    tools: int
    """The number of tools."""
    _term_ids: npt.NDArray[np.int32]
    """Ascending."""
    _starts: npt.NDArray[np.int64]
    """Where the tools of each term begin, and where those of the last term end."""
    _rows: npt.NDArray[np.int32]
    """Ascending for each term."""
    _frequencies: npt.NDArray[np.float32]

    @classmethod
    def build(cls, elements: SparseElements, tools: int) -> Self:
        """Build postings from the BM25 document vectors of the tools."""
        order = np.argsort(elements.indices, kind="stable")
        ordered = elements.indices[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        return cls(
            tools, ordered[starts], np.append(starts, len(ordered)), elements.rows[order], elements.values[order]
        )

    @property
    def memory_bytes(self) -> int:
        return self._term_ids.nbytes + self._starts.nbytes + self._rows.nbytes + self._frequencies.nbytes

    def find(self, term_ids: Sequence[int]) -> Spans:
        """Return where the tools of each term begin and end, by term id. A term of no tool has an empty span."""
        if not term_ids or not len(self._term_ids):
            return dict.fromkeys(term_ids, (0, 0))
        wanted = np.array(term_ids, np.int32)
        positions = np.minimum(np.searchsorted(self._term_ids, wanted), len(self._term_ids) - 1)
        starts = self._starts[positions]
        ends = np.where(self._term_ids[positions] == wanted, self._starts[positions + 1], starts)
        return dict(zip(term_ids, zip(starts.tolist(), ends.tolist(), strict=True), strict=True))

    def compute_bm25(self, term_ids: Sequence[int], stats: TermStats, spans: Spans) -> Scores:
        """Return the BM25 of each tool for these terms.

        The sum is in double precision and in the order of the terms, so that it does not depend on the other tools.
        """
        rows, weighted = [], []
        for term_id in term_ids:
            start, end = spans[term_id]
            if end > start:
                rows.append(self._rows[start:end])
                weighted.append(stats.idf[term_id] * self._frequencies[start:end].astype(np.float64))
        if not rows:
            return np.zeros(self.tools)
        bm25: Scores = np.bincount(np.concatenate(rows), np.concatenate(weighted), self.tools)  # type: ignore[assignment]
        return bm25

    def find_terms(self, row: int, term_ids: Sequence[int]) -> set[int]:
        """Return those of the terms that a tool contains."""
        return {term_id for term_id, span in self.find(term_ids).items() if self._contains(row, *span)}

    def _contains(self, row: int, start: int, end: int) -> bool:
        position = start + int(np.searchsorted(self._rows[start:end], row))
        return position < end and int(self._rows[position]) == row

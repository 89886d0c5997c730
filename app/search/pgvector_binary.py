"""Decode the binary format of pgvector's types, many values at once. Pure.

A `halfvec` is sent as its dimension and an unused number (2 bytes each), then a half-precision number for each
dimension. A `sparsevec` is sent as its dimension, the number of its elements and an unused number (4 bytes each), then
all indices (4 bytes each, from 0), then all values (4 bytes each). All numbers are big-endian.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.embeddings.base import Vectors

_HALFVEC_HEADER = 4
_SPARSEVEC_HEADER_WORDS = 3


class SparseElements(NamedTuple):
    """The elements of many sparse vectors: for each element, the number of its vector, its index and its value."""

    rows: npt.NDArray[np.int32]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


def decode_halfvecs(sent: bytes, dimension: int) -> Vectors:
    """Return a row for each of the vectors, whose binary forms follow one another."""
    rows = np.frombuffer(sent, np.uint8).reshape(-1, _HALFVEC_HEADER + 2 * dimension)
    vectors: Vectors = rows[:, _HALFVEC_HEADER:].copy().view(">f2").astype(np.float32)
    return vectors


def decode_sparsevecs(sent: bytes) -> SparseElements:
    """Return the elements of the vectors, whose binary forms follow one another."""
    words = np.frombuffer(sent, ">i4")
    starts, sizes, position = [], [], 0
    while position < len(words):
        size = int(words[position + 1])
        starts.append(position + _SPARSEVEC_HEADER_WORDS)
        sizes.append(size)
        position += _SPARSEVEC_HEADER_WORDS + 2 * size
    counts = np.array(sizes, np.int64)
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if sizes else 0) - np.repeat(ends - counts, counts)
    positions = np.repeat(np.array(starts, np.int64), counts) + within
    return SparseElements(
        np.repeat(np.arange(len(sizes), dtype=np.int32), counts),
        words[positions].astype(np.int32),
        words.view(">f4")[positions + np.repeat(counts, counts)].astype(np.float32),
    )

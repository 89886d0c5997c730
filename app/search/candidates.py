"""The exact evidence for candidates, wherever they were found. Pure.

Postgres and numpy compute the evidence for all tools in single precision, and their last digits differ. The evidence
for the few candidates is therefore computed again, from the stored vectors, in double precision. Cosines are rounded to
nine digits: the last bits of a matrix product depend on its shape. Equal tools then have equal evidence, and an answer
is the same to the last byte, whichever way it was found.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from app.embeddings.base import Vectors

COSINE_ERROR = 1e-5
"""More than a cosine in single precision differs from the exact one."""

_DIGITS = 9


def round_to_half(vectors: npt.NDArray[Any]) -> Vectors:
    """Round to the precision that rows store, and scale to unit length again."""
    return scale_to_unit(vectors.astype(np.float16).astype(np.float32))


def scale_to_unit(vectors: Vectors) -> Vectors:
    unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def compute_exact_cosines(tools: Vectors, texts: Vectors) -> npt.NDArray[np.float64]:
    """Return a row for each tool and a column for each text; all vectors have unit length."""
    cosines: npt.NDArray[np.float64] = (tools.astype(np.float64) @ texts.astype(np.float64).T).round(_DIGITS)
    return cosines

import numpy as np
import pytest

from app.embeddings.base import Vectors, check_vectors
from app.errors import EmbeddingFailed


def make_vectors(*rows: list[float]) -> Vectors:
    return np.array(rows, np.float32)


def test_vectors_are_normalized_and_keep_their_order() -> None:
    unit = check_vectors(make_vectors([3, 4], [0, 2]), count=2, dimension=2)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(unit, make_vectors([0.6, 0.8], [0, 1]), rtol=1e-6)


def test_any_dimension_is_accepted_if_none_is_expected() -> None:
    assert check_vectors(make_vectors([1, 0, 0]), count=1, dimension=None).shape == (1, 3)


@pytest.mark.parametrize(
    ("returned", "count", "reason"),
    [
        (make_vectors([1, 0]), 2, "wrong_count"),
        (make_vectors([1, 0], [0, 1]), 1, "wrong_count"),
        (np.array([1, 0], np.float32), 1, "wrong_count"),
        (np.ones((1, 2, 2), np.float32), 1, "wrong_count"),
        (make_vectors([1, 0, 0]), 1, "wrong_dimension"),
        (make_vectors([1]), 1, "wrong_dimension"),
        (make_vectors([1, float("nan")]), 1, "not_finite"),
        (make_vectors([1, 0], [float("inf"), 0]), 2, "not_finite"),
        (make_vectors([1, 0], [0, 0]), 2, "no_direction"),
        (make_vectors([1e-9, 0]), 1, "no_direction"),
    ],
)
def test_unusable_vectors_are_rejected(returned: Vectors, count: int, reason: str) -> None:
    with pytest.raises(EmbeddingFailed) as failure:
        check_vectors(returned, count=count, dimension=2)
    assert failure.value.reason == reason


def test_a_vector_whose_norm_overflows_is_rejected() -> None:
    with np.errstate(over="ignore"), pytest.raises(EmbeddingFailed):
        check_vectors(make_vectors([3e38, 3e38]), count=1, dimension=2)

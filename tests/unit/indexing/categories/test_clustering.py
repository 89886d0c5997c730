import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embeddings.base import Vectors
from app.indexing.categories.clustering import MAX_CLUSTERS, assign, center, cluster, compute_centroids


def make_groups(groups: int, size: int, noise: float = 0.3, seed: int = 1) -> Vectors:
    """Return `size` vectors around each of so many directions, group after group."""
    random = np.random.default_rng(seed)
    directions = random.normal(size=(groups, 32)).repeat(size, axis=0)
    return (directions + noise * random.normal(size=directions.shape)).astype(np.float32)


def group(vectors: Vectors) -> list[int]:
    labels: list[int] = cluster(center(vectors, vectors.mean(axis=0))).tolist()
    return labels


def partition(labels: list[int]) -> set[frozenset[int]]:
    return {frozenset(row for row, label in enumerate(labels) if label == each) for each in labels}


@pytest.mark.parametrize("groups", [2, 3, 8, 12])
def test_the_groups_and_their_number_are_found(groups: int) -> None:
    labels = group(make_groups(groups, 6))
    assert partition(labels) == {frozenset(range(start, start + 6)) for start in range(0, 6 * groups, 6)}


def test_there_are_never_more_groups_than_the_maximum() -> None:
    labels = group(make_groups(60, 3))
    assert 20 < len(set(labels)) <= MAX_CLUSTERS


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_vectors_are_one_group(count: int) -> None:
    assert group(make_groups(count, 1)) == [0] * count


def test_equal_vectors_are_one_group() -> None:
    assert group(np.ones((12, 8), np.float32)) == [0] * 12


@given(st.integers(2, 40), st.integers(0, 2**16))
def test_every_vector_has_a_group_and_the_numbers_have_no_gaps(count: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    labels = group(vectors)
    assert len(labels) == count
    assert set(labels) == set(range(max(labels) + 1))
    assert group(vectors) == labels


def test_the_order_of_the_rows_does_not_matter() -> None:
    vectors = make_groups(7, 5)
    order = np.random.default_rng(2).permutation(len(vectors))
    shuffled = group(vectors[order])
    moved = {frozenset(int(order[row]) for row in rows) for rows in partition(shuffled)}
    assert moved == partition(group(vectors))


def test_a_further_vector_joins_the_group_that_it_is_near_to() -> None:
    vectors = make_groups(5, 8)
    known, new = np.delete(vectors, [3, 20], axis=0), vectors[[3, 20]]
    mean = known.mean(axis=0)
    labels = cluster(center(known, mean))
    joined = assign(center(new, mean), compute_centroids(center(known, mean), labels)).tolist()
    assert joined == [labels[0], labels[17]]

"""Find groups of similar vectors, and how many there are. Pure functions, the same result for the same rows.

The vectors are centered first: all tools of a user have much in common, and what is left tells them apart. Groups are
merged by average linkage, for each number of groups they are refined by k-means, and the silhouette decides on the
number. The decision record compares this with other methods.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.embeddings.base import Vector, Vectors
from app.indexing.categories.pacing import Checkpoint, never_pause

MAX_CLUSTERED = 4_000
"""Linkage compares every vector with every other: of more tools a sample is clustered, and the others are assigned."""
MAX_CLUSTERS = 40
_MAX_ROUNDS = 15
_ENOUGH_SILHOUETTE = 0.95
"""The fewest groups win whose silhouette is at least this share of the best one."""

Labels = npt.NDArray[np.int64]
"""The number of the group of each row, from 0, without gaps."""


def center(vectors: Vectors, mean: Vector) -> Vectors:
    """Subtract the mean, and scale the rest to unit length."""
    return _scale_rows(vectors - mean)


def _scale_rows(vectors: Vectors) -> Vectors:
    norms = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    scaled: Vectors = (vectors / norms).astype(np.float32)
    return scaled


def cluster(vectors: Vectors, max_clusters: int = MAX_CLUSTERS, *, checkpoint: Checkpoint = never_pause) -> Labels:
    """Return the group of each of at most `MAX_CLUSTERED` vectors of unit length, see `center`."""
    count = len(vectors)
    most = min(max_clusters, count // 2)
    candidates = [np.zeros(count, np.int64)]
    if most >= 2:
        merges = _link(1 - vectors @ vectors.T, checkpoint)
        candidates += [_refine(vectors, _cut(merges, count, number), checkpoint) for number in range(2, most + 1)]
    silhouettes = [_compute_silhouette(vectors, labels) for labels in candidates]
    enough = _ENOUGH_SILHOUETTE * max(silhouettes)
    return next(labels for labels, quality in zip(candidates, silhouettes, strict=True) if quality >= enough)


def compute_centroids(vectors: Vectors, labels: Labels) -> Vectors:
    """Return the direction of each group's mean."""
    return _scale_rows(_sum_groups(vectors, labels))


def _sum_groups(vectors: Vectors, labels: Labels) -> Vectors:
    belongs = np.zeros((int(labels.max()) + 1, len(labels)), np.float32)
    belongs[labels, np.arange(len(labels))] = 1
    return belongs @ vectors


def assign(vectors: Vectors, centroids: Vectors) -> Labels:
    """Return the nearest group of each vector."""
    return np.asarray((vectors @ centroids.T).argmax(axis=1), np.int64)


def _link(distances: Vectors, checkpoint: Checkpoint) -> list[tuple[int, int]]:
    """Merge the two groups with the smallest mean distance until one is left. Return the merges in this order.

    A group has the number of its first row.
    """
    count = len(distances)
    np.fill_diagonal(distances, np.inf)
    sizes, alive = np.ones(count, np.float32), np.ones(count, np.bool_)
    nearest = distances.argmin(axis=1)
    nearest_distances = distances[np.arange(count), nearest]
    merges = []
    for _ in range(count - 1):
        checkpoint()
        found = int(nearest_distances.argmin())
        kept, merged = sorted((found, int(nearest[found])))
        merges.append((kept, merged))
        sizes_sum = sizes[kept] + sizes[merged]
        row = (sizes[kept] * distances[kept] + sizes[merged] * distances[merged]) / sizes_sum
        row[kept] = row[merged] = np.inf
        sizes[kept], alive[merged] = sizes_sum, False
        distances[kept] = distances[:, kept] = row
        distances[merged] = distances[:, merged] = nearest_distances[merged] = np.inf
        for outdated in [kept, *np.flatnonzero(alive & ((nearest == kept) | (nearest == merged))).tolist()]:
            nearest[outdated] = distances[outdated].argmin()
            nearest_distances[outdated] = distances[outdated, nearest[outdated]]
        nearer = alive & (row < nearest_distances)
        nearest[nearer], nearest_distances[nearer] = kept, row[nearer]
    return merges


def _cut(merges: Sequence[tuple[int, int]], count: int, number: int) -> Labels:
    """Return the groups after so many merges that `number` are left."""
    groups = np.arange(count)
    for kept, merged in merges[: count - number]:
        groups[groups == merged] = kept
    return _number(groups)


def _number(groups: npt.NDArray[np.int64]) -> Labels:
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _refine(vectors: Vectors, labels: Labels, checkpoint: Checkpoint) -> Labels:
    """Move each vector to the group that is nearest, until none moves."""
    for _ in range(_MAX_ROUNDS):
        checkpoint()
        moved = _number(assign(vectors, compute_centroids(vectors, labels)))
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels


def _compute_silhouette(vectors: Vectors, labels: Labels) -> float:
    """Return how much nearer the vectors are to their own group than to the next one: 1 at best, 0 if not at all."""
    rows, sizes = np.arange(len(labels)), np.bincount(labels)
    if len(sizes) < 2:
        return 0.0
    similarities = vectors @ _sum_groups(vectors, labels).T
    inside = 1 - (similarities[rows, labels] - 1) / np.maximum(sizes[labels] - 1, 1)
    distances = 1 - similarities / sizes
    distances[rows, labels] = np.inf
    outside = distances.min(axis=1)
    widths = (outside - inside) / np.maximum(np.maximum(inside, outside), 1e-9)
    return float(np.where(sizes[labels] == 1, 0.0, widths).mean())

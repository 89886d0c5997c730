"""What is learnt from a user's outcomes, in memory: examples of messages (`examples.py`), priors (`usage/priors.py`).

It has a version of its own: an outcome changes it without a change of the catalogue, and is seen by the next search
without reading the catalogue again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from app.catalog.visibility import Scope
from app.db.engine import Reader
from app.embeddings.base import Vector
from app.limits.byte_cache import ByteCache
from app.search.candidates import scale_to_unit
from app.search.examples import Examples
from app.search.pgvector_binary import decode_halfvecs
from app.search.scoring import ScoringParams, Weights

_MAX_CACHE_BYTES = 32 * 1024 * 1024
_ENTRY_BYTES = 1_000
_TOOL_BYTES = 150

_READ = """
    SELECT u.catalog_version, u.examples_version, extract(timezone FROM now())::int,
           e.tool_ids, e.vectors, e.dimension, e.weights, e.is_use, e.used_on, p.tool_ids, p.priors
    FROM users u, LATERAL (
        SELECT array_agg(tool_id ORDER BY tool_id, id) AS tool_ids,
               string_agg(halfvec_send(vector), ''::bytea ORDER BY tool_id, id) AS vectors,
               max(vector_dims(vector)) AS dimension,
               array_agg(weight ORDER BY tool_id, id) AS weights,
               array_agg(source = 'use' ORDER BY tool_id, id) AS is_use,
               array_agg(used_on - DATE '1970-01-01' ORDER BY tool_id, id) AS used_on
        FROM tool_examples WHERE user_id = %(user_id)s AND model = %(model)s
    ) e, LATERAL (
        SELECT array_agg(tool_id) AS tool_ids, array_agg(prior) AS priors
        FROM mcp_tool_embeddings WHERE user_id = %(user_id)s AND model = %(model)s AND prior <> 0
    ) p
    WHERE u.id = %(user_id)s
"""


@dataclass(frozen=True)
class Learned:
    """What is learnt from a user's outcomes for one model, at these versions of the user's catalogue and examples."""

    catalog_version: int = 0
    examples_version: int = 0
    examples: Examples | None = None
    priors: Mapping[str, float] = field(default_factory=dict)
    """What past use adds to the score of each tool, by id. Postgres reads them from the rows of the tools instead."""

    def compute_boosts(
        self, vectors: Sequence[Vector] | None, params: ScoringParams, weights: Weights
    ) -> Mapping[str, float]:
        """Return what examples add to the score of each tool, by id: nothing for a search by words alone."""
        if self.examples is None or vectors is None or not weights.examples:
            return {}
        floor = params.calibration.example_floor
        boosts = self.examples.compute_boosts(vectors, floor, learned=params.learned)
        return {tool_id: weights.examples * boost for tool_id, boost in boosts.items()}

    @property
    def memory_bytes(self) -> int:
        examples = 0 if self.examples is None else self.examples.vectors.nbytes + 200 * len(self.examples.tool_ids)
        return _ENTRY_BYTES + examples + _TOOL_BYTES * len(self.priors)


NOTHING_LEARNED = Learned()


class LearnedCache:
    """Holds what is learnt from recent users."""

    def __init__(self) -> None:
        self._cache: ByteCache[tuple[str, str], Learned] = ByteCache(
            _MAX_CACHE_BYTES, get_owner=itemgetter(0), measure=lambda learned: learned.memory_bytes
        )

    def get(self, scope: Scope, catalog_version: int, examples_version: int) -> Learned | None:
        """Return what is learnt at these versions or later ones, or None if it must be read."""
        if not examples_version:
            return NOTHING_LEARNED
        known = self._cache.get((scope.user_id, scope.model))
        if known is None or known.catalog_version < catalog_version or known.examples_version < examples_version:
            return None
        return known

    async def read(self, reader: Reader, scope: Scope) -> Learned:
        learned = await read_learned(reader, scope)
        self._cache[scope.user_id, scope.model] = learned
        return learned


async def read_learned(reader: Reader, scope: Scope) -> Learned:
    parameters = {"user_id": scope.user_id, "model": scope.model}
    rows = await reader.rows(_READ, parameters)
    if not rows:
        return NOTHING_LEARNED
    [(catalog_version, examples_version, utc_offset_s, tool_ids, sent, dimension, *columns, tools, priors)] = rows
    examples = None
    if tool_ids is not None:
        weights, is_use, used_on = columns
        examples = Examples(
            tool_ids,
            scale_to_unit(decode_halfvecs(sent, dimension)),
            np.array(weights, np.float64),
            np.array(is_use, np.bool_),
            np.array(used_on, np.int64),
            utc_offset_s,
        )
    return Learned(catalog_version, examples_version, examples, dict(zip(tools or (), priors or (), strict=True)))

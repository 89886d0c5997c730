"""One copy of the packaged embedding model for each process.

Building its graph and loading its tokenizer takes half a second of CPU, which every container that a test opens would
pay.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest

from app.embeddings.adapter import Adapter
from app.embeddings.base import Vectors
from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local import LocalEmbedder
from app.embeddings.local_models import LocalModel, Precision, find_shipped_model
from app.embeddings.pack import PACK_SHA256, PACKAGED_MODEL, Pack, find_packaged_pack
from app.embeddings.token_counter import load_token_counter

NO_CACHE = GraphCache(None)

_VECTORS = Path(__file__).parent / "data" / "granite_vectors.npz"


def share_packaged_model(patch: pytest.MonkeyPatch) -> None:
    """Load each model of the packaged pack once. Packs at other paths are loaded each time: tests write them."""
    load, packaged = Granite.load, find_packaged_pack()
    shared: dict[str, Granite] = {}

    def load_shared(model: LocalModel, graphs: GraphCache) -> Granite:
        if model.path != packaged:
            return load(model, graphs)
        if model.id not in shared:
            shared[model.id] = load(model, graphs)
        return shared[model.id]

    patch.setattr(Granite, "load", load_shared)
    patch.setattr("app.container.load_token_counter", cache(load_token_counter))


def make_base_model(precision: Precision = "fp32") -> LocalModel:
    """Return the packaged model without an adapter."""
    return LocalModel(PACKAGED_MODEL, find_packaged_pack(), PACK_SHA256, precision=precision)


def make_local_embedder(model: LocalModel | None = None) -> LocalEmbedder:
    """Return an embedder for a model, by default the one that ships."""
    return LocalEmbedder(model or find_shipped_model(), NO_CACHE)


def read_reference_vectors(*, adapted: bool = False) -> tuple[list[str], Vectors]:
    """Return real texts and their vectors, computed with the numpy code of version 0.1.0.

    With `adapted`, they are those of the same code with `make_factors` added to its weights.
    """
    with np.load(_VECTORS) as stored:
        vectors = stored["adapted" if adapted else "vectors"]
        return orjson.loads(str(stored["texts"]))[: len(vectors)], vectors


def make_factors() -> dict[str, npt.NDArray[np.float16]]:
    """Return factors of an adapter for every linear layer that change its vectors a lot."""
    architecture, factors = Pack.load(find_packaged_pack()).architecture, {}
    for layer in range(architecture.layers):
        for kind, (outputs, inputs) in architecture.linear_shapes.items():
            numbers = np.sin(np.arange(2 * inputs) * (1.0 + layer)) * 0.1
            factors[f"layers.{layer}.{kind}.a"] = numbers.reshape(2, inputs).astype(np.float16)
            numbers = np.cos(np.arange(outputs * 2) * (2.0 + layer)) * 0.1
            factors[f"layers.{layer}.{kind}.b"] = numbers.reshape(outputs, 2).astype(np.float16)
    return factors


def write_adapter(path: Path, arrays: Mapping[str, npt.NDArray[Any]], name: str = "tools-1") -> Adapter:
    np.savez(path, allow_pickle=False, **{"name": np.array(name), **arrays})
    return Adapter.load(path)

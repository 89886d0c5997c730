"""Write a trained adapter as the file that ships, and check that the product computes the same vectors with it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.embeddings.adapter import Adapter
from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local_models import LocalModel
from app.embeddings.pack import PACK_SHA256, PACKAGED_MODEL, find_packaged_pack
from training.model import AdaptedModel

MIN_AGREEMENT = 0.9999
"""The factors are rounded to 16 bits."""


def export_adapter(model: AdaptedModel, name: str, strength: float, path: Path) -> None:
    """Write the factors, scaled by the strength of the interpolation with the base."""
    arrays: dict[str, np.ndarray] = {"name": np.array(name)}
    for layer, adapted in model.adapted_layers():
        arrays[f"{layer}.a"] = adapted.a.detach().numpy().astype(np.float16)
        arrays[f"{layer}.b"] = (strength * adapted.b.detach().numpy()).astype(np.float16)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def measure_agreement(model: AdaptedModel, path: Path, texts: Sequence[str], cache: Path) -> float:
    """Return the smallest cosine of a text's vector in torch and in the product."""
    shipped = LocalModel(PACKAGED_MODEL, find_packaged_pack(), PACK_SHA256, Adapter.load(path), "fp32")
    vectors = Granite.load(shipped, GraphCache(cache)).embed(texts)
    return float((model.embed(texts) * vectors).sum(axis=1).min())

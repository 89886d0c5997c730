"""The models that can run in this process, by what determines their vectors: pack, adapter and precision.

The id of a model is known without loading it: it is compared with the ids of the models that a database has vectors of.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from app.embeddings.adapter import Adapter
from app.embeddings.pack import PACK_SHA256, PACKAGED_MODEL, Pack, find_packaged_pack

Precision = Literal["fp32", "int8"]
"""`fp32` computes exactly what the pack's weights say. `int8` also rounds the inputs of each product, in groups of 64
numbers, and takes about half the time."""

SHIPPED_PRECISION: Precision = "fp32"

SHIPPED_ADAPTER: str | None = "tools-1"
"""The name of the adapter that ships. It is in the file `granite+NAME.npz`, its calibration in `granite+NAME.json`."""

GRAPH_VERSION = 2
"""The version of the graphs that `app.embeddings.graph` builds. Cached graphs of other versions are not used."""


@dataclass(frozen=True)
class LocalModel:
    name: str
    """The name of the pack's model."""
    path: Path
    """The pack."""
    sha256: str
    """The hash of the pack. It is checked when the pack is loaded."""
    adapter: Adapter | None = None
    precision: Precision = "fp32"

    @property
    def id(self) -> str:
        """The id, which changes with everything that changes the vectors.

        In fp32 and without an adapter it is that of the models of version 0.1.0.
        """
        if self.adapter is None and self.precision == "fp32":
            return f"local:{self.name}:{self.sha256[:8]}"
        name = self.name if self.adapter is None else f"{self.name}+{self.adapter.name}"
        suffix = "" if self.precision == "fp32" else f"+{self.precision}"
        return f"local:{name}{suffix}:{self._hash_sources()[:8]}"

    @property
    def graph_key(self) -> str:
        """A name for the model's graph that changes with everything that determines it."""
        return hashlib.sha256(f"{self._hash_sources()}:{GRAPH_VERSION}".encode()).hexdigest()[:32]

    def _hash_sources(self) -> str:
        adapter = "" if self.adapter is None else self.adapter.sha256
        return hashlib.sha256(f"{self.sha256}:{adapter}:{self.precision}".encode()).hexdigest()


def parse_adapter_name(model_id: str) -> str | None:
    """Return the name of the adapter in the id of a local model."""
    _name, *parts = model_id.removeprefix("local:").rpartition(":")[0].split("+")
    return next((part for part in parts if part not in get_args(Precision)), None)


def find_configured_model(own_pack: Path | None) -> LocalModel:
    """Return the model of the operator's own pack, if there is one, else the model that ships."""
    return find_shipped_model() if own_pack is None else _find_own_model(own_pack)


def find_local_models(own_pack: Path | None) -> Iterator[LocalModel]:
    """Yield the model that ships, the model of version 0.1.0 and that of the operator's own pack."""
    shipped, base = find_shipped_model(), LocalModel(PACKAGED_MODEL, find_packaged_pack(), PACK_SHA256)
    yield shipped
    if base.id != shipped.id:
        yield base
    if own_pack is not None:
        yield _find_own_model(own_pack)


def find_shipped_model() -> LocalModel:
    adapter = None if SHIPPED_ADAPTER is None else Adapter.load(get_adapter_path(SHIPPED_ADAPTER))
    return LocalModel(PACKAGED_MODEL, find_packaged_pack(), PACK_SHA256, adapter, SHIPPED_PRECISION)


def get_adapter_path(name: str) -> Path:
    return Path(__file__).parent / f"granite+{name}.npz"


def _find_own_model(path: Path) -> LocalModel:
    """Read the operator's pack to learn its name and its hash. It stays fp32, so that its id stays what it was."""
    pack = Pack.load(path)
    return LocalModel(pack.name, path, pack.sha256)

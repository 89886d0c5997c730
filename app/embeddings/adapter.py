"""An adapter: one small file of what training has changed in the local model.

It is a `.npz` archive. For each changed linear layer it has the two factors of a low-rank matrix that is added to the
layer's weights: `layers.{i}.{qkv,ao,f1,f2}.a` (rank x inputs) and `.b` (outputs x rank). `query_map` is optional: a
matrix for the vectors of messages, which leaves those of tools as they are. `name` is part of the model's id.
"""

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from app.embeddings.pack import Architecture, Floats
from app.errors import ConfigurationError

MAX_BYTES = 5_000_000

_FACTOR = re.compile(r"layers\.([0-9]{1,3})\.(qkv|ao|f1|f2)\.([ab])")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    sha256: str
    factors: Mapping[str, tuple[Floats, Floats]]
    """The factors `a` and `b` by the name of the layer in the pack, such as `l0.qkv`."""
    query_map: Floats | None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the adapter at `path`, or raise `ConfigurationError` that says what is wrong with it."""
        try:
            if (size := path.stat().st_size) > MAX_BYTES:
                raise ValueError(f"it has {size:,} bytes; at most {MAX_BYTES:,} are allowed")
            content = path.read_bytes()
            return cls._parse(_read_archive(content), hashlib.sha256(content).hexdigest())
        except OSError as error:
            raise ConfigurationError(f"the adapter {path} cannot be read: {error.strerror}") from error
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigurationError(f"{path} is not a usable adapter: {error}") from error

    @classmethod
    def _parse(cls, arrays: dict[str, Any], sha256: str) -> Self:
        name = str(arrays.pop("name", ""))
        if not _NAME.fullmatch(name) or name in ("fp32", "int8"):
            raise ValueError(f"its name is {name!r}; it must be lower-case letters, digits or hyphens")
        matrices = {key: _check_matrix(key, array) for key, array in arrays.items()}
        query_map = matrices.pop("query_map", None)
        if unknown := sorted(key for key in matrices if not _FACTOR.fullmatch(key)):
            raise ValueError(f"it has unknown keys: {', '.join(unknown)}")
        return cls(name, sha256, _pair_factors(matrices), query_map)

    def check_fits(self, architecture: Architecture) -> None:
        """Raise `ConfigurationError` unless all matrices have the shapes that the model's layers need."""
        hidden = architecture.hidden
        if self.query_map is not None and self.query_map.shape != (hidden, hidden):
            raise self._misfit("query_map", self.query_map.shape, (hidden, hidden))
        for layer, (a, b) in self.factors.items():
            index, kind = layer.removeprefix("l").split(".")
            if int(index) >= architecture.layers:
                raise ConfigurationError(
                    f"the adapter {self.name} has factors for layer {index}, but the model has {architecture.layers}"
                )
            shape = architecture.linear_shapes[kind]
            if (len(b), a.shape[1]) != shape:
                raise self._misfit(f"b @ a of layers.{index}.{kind}", (len(b), a.shape[1]), shape)

    def merge(self, layer: str, weight: Floats) -> Floats:
        """Return the weights of a layer with what training has added to them."""
        if layer not in self.factors:
            return weight
        a, b = self.factors[layer]
        merged: Floats = weight + b @ a
        return merged

    def _misfit(self, what: str, found: tuple[int, ...], expected: tuple[int, ...]) -> ConfigurationError:
        return ConfigurationError(
            f"the adapter {self.name} does not fit the model: {what} has the shape {found}, not {expected}"
        )


def _read_archive(content: bytes) -> dict[str, Any]:
    archive = np.load(io.BytesIO(content), allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it is not an .npz archive")
    with archive:
        return {key: archive[key] for key in archive.files}


def _check_matrix(key: str, array: Any) -> Floats:
    if array.ndim != 2 or array.dtype not in (np.float16, np.float32):
        raise ValueError(f"{key} is {array.dtype} of shape {array.shape}; it must be a matrix of float16 or float32")
    if not np.isfinite(array).all():
        raise ValueError(f"{key} has NaN or infinity")
    matrix: Floats = array.astype(np.float32)
    return matrix


def _pair_factors(matrices: Mapping[str, Floats]) -> dict[str, tuple[Floats, Floats]]:
    factors = {}
    for layer in sorted({key.rpartition(".")[0] for key in matrices}):
        a, b = matrices.get(f"{layer}.a"), matrices.get(f"{layer}.b")
        if a is None or b is None:
            raise ValueError(f"{layer} has only one of its factors .a and .b")
        if len(a) != b.shape[1]:
            raise ValueError(f"the factors of {layer} have the ranks {len(a)} and {b.shape[1]}, which must be equal")
        factors["l" + layer.removeprefix("layers.")] = a, b
    return factors

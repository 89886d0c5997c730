"""Build the model as an ONNX graph from a pack and, optionally, an adapter.

Imported only when a graph is built: the package `onnx` takes time and memory that a start from the cache does not need.
A change of the graph needs a new `GRAPH_VERSION`.

The graph embeds one text. Its input is the tokens' ids, its outputs are `document`, a unit vector, and `query`, the
same or, if the adapter has a map for messages, what it makes of it. One text at a time, because a text's vector must
not depend on its neighbours, and padding would compute useless rows.
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
            x = self._add_layer(x, f"l{i}", only_first_token=i == self._arch.layers - 1)
        self._add_outputs(x)
        hidden = self._arch.hidden
        graph = helper.make_graph(
            self._nodes,
            self._pack.name,
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens"])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, hidden]) for name in ("document", "query")],
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
        table_of_positions = self._constant("positions", all_positions + self._pack.read_floats("type_emb")[0])
        positions = self._add("Slice", table_of_positions, self._shape(0), self._add("Shape", "ids"))
        return self._add_layer_norm(self._add("Add", words, positions), "emb_ln")

    def _add_layer(self, x: str, name: str, *, only_first_token: bool) -> str:
        """Add a layer of the transformer.

        The vector of a text is its first row, the CLS token. After the last attention no row depends on another, so
        the last layer computes the others only as far as the first attends to them.
        """
        inputs = self._add("Slice", x, self._shape(0), self._shape(1)) if only_first_token else x
        attention = self._add_linear(self._add_attention(inputs, x, f"{name}.qkv"), f"{name}.ao")
        x = self._add_layer_norm(self._add("Add", attention, inputs), f"{name}.aln")
        expanded = self._add("Gelu", self._add_linear(x, f"{name}.f1"))
        return self._add_layer_norm(self._add("Add", self._add_linear(expanded, f"{name}.f2"), x), f"{name}.fln")

    def _add_attention(self, inputs: str, x: str, name: str) -> str:
        hidden, heads = self._arch.hidden, self._arch.heads

        def split_heads(projected: str, perm: Sequence[int]) -> str:
            return self._add("Transpose", self._add("Reshape", projected, self._shape(0, heads, -1)), perm=perm)

        # Attention divides its scores by the square root of the head's width. Dividing the query weights once has the
        # same effect and saves a pass over the tokens x tokens scores.
        scale = (hidden // heads) ** -0.5
        query = split_heads(self._add_linear(inputs, name, slice(0, hidden), scale), (1, 0, 2))
        key = split_heads(self._add_linear(x, name, slice(hidden, 2 * hidden)), (1, 2, 0))
        value = split_heads(self._add_linear(x, name, slice(2 * hidden, None)), (1, 0, 2))
        weights = self._add("Softmax", self._add("MatMul", query, key), axis=-1)
        mixed = self._add("Transpose", self._add("MatMul", weights, value), perm=(1, 0, 2))
        return self._add("Reshape", mixed, self._shape(0, hidden))

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
        vector = self._add("LpNormalization", x, axis=-1, p=2, output="document")
        query_map = None if self._adapter is None else self._adapter.query_map
        if query_map is None:
            self._add("Identity", vector, output="query")
        else:
            mapped = self._add("MatMul", vector, self._constant("query_map", query_map.T))
            self._add("LpNormalization", mapped, axis=-1, p=2, output="query")

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

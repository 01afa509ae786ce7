"""Nodes and weights of an ONNX graph, and the parts of a Transformer that both graphs have.

The graphs are written node by node with the `onnx` package, from the arrays of a bundle. They use operators of opset 17 only.

B rows, T and S positions, D model width, H heads, K and U widths of a head's keys and values, F inner width
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.export.weight_streams import stream_weight
from dragoman.io.int8_tensors import STEP_SUFFIX, quantize_matrices
from dragoman.io.safetensors import TensorStream
from dragoman.model_weights import ModelWeights, Stack

OPSET, IR_VERSION = 17, 8
"""Versions of the operators and of the file format; onnxruntime reads them since version 1.12."""
MASKED_SCORE = -1e9
"""Attention score of a masked position: its weight is exactly 0 in float32."""
FLOAT_TYPE = 1
"""Number of float32 in ONNX."""
Rotation = tuple[str, str]
"""Sines and cosines (T, K/2) of rotary positions."""


@dataclass(frozen=True)
class Graph:
    """Graph to write.

    Attributes:
        model: ModelProto without weights
        weights: its weights by name
    """

    model: Any
    weights: dict[str, TensorStream]


def declare(name: str, kind: str, shape: Sequence[int | str]) -> Any:
    """Return the declaration of an input or output; a text in the shape is a dimension of any size."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), list(shape))


class GraphBuilder:
    """Nodes and weights of one graph. A method adds nodes and returns the name of their output.

    weights: the model
    is_int8: store matrices as int8 and the step of each row. The graph multiplies them, which onnxruntime does once, when it
        opens the file; it computes in float32
    """

    def __init__(self, weights: ModelWeights, *, is_int8: bool) -> None:
        self.weights, self.config, self.is_int8 = weights, weights.config, is_int8
        self.nodes: list[Any] = []
        self.streams: dict[str, TensorStream] = {}
        self._matrices: dict[str, str] = {}

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output."""
        from onnx import helper

        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def array(self, name: str, values: NDArray[Any]) -> str:
        """Add an array in memory under a name, or return it if it exists."""
        self.streams.setdefault(name, TensorStream.of(values))
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of integers."""
        return self.array("integers_" + "_".join(map(str, values)), np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """Add one integer without a dimension."""
        return self.array(f"integer_{value}", np.array(value, np.int64))

    def number(self, value: float) -> str:
        """Add a float32."""
        return self.array(f"number_{value!r}", np.array(value, np.float32))

    def weight(self, name: str, *, is_transposed: bool = False) -> str:
        """Return a weight of the model in float32: a vector, or a matrix (O, I) or its transpose."""
        key = f"{name}.transposed" if is_transposed else name
        if key not in self._matrices:
            is_matrix = self.is_int8 and (self.weights.get_quantized(name) or self.weights.arrays[name].ndim == 2)
            self._matrices[key] = self._add_int8(name, key, is_transposed) if is_matrix else key
            if not is_matrix:
                self.streams[key] = _stream(self.weights, name, is_transposed)
        return self._matrices[key]

    def _add_int8(self, name: str, key: str, is_transposed: bool) -> str:
        matrix_OI, steps_O = self.weights.get_quantized(name) or _quantize(self.weights, name)
        if is_transposed:
            self.streams[f"{key}.int8"] = stream_weight(matrix_OI.T, self.weights.release)
        else:
            self.streams[f"{key}.int8"], steps_O = stream_weight(matrix_OI, self.weights.release), steps_O[:, None]
        rounded = self.add("Cast", f"{key}.int8", to=FLOAT_TYPE)
        return self.add("Mul", rounded, self.array(f"{key}{STEP_SUFFIX}", steps_O), output=key)

    def linear(self, x: str, name: str) -> str:
        """Return x·Wᵀ + b. (…, I) → (…, O)"""
        y = self.add("MatMul", x, self.weight(f"{name}.weight", is_transposed=True))
        return self.add("Add", y, self.weight(f"{name}.bias")) if f"{name}.bias" in self.weights.arrays else y

    def norm(self, x: str, name: str) -> str:
        """Return the layer normalization of x, or RMSNorm."""
        epsilon, weight = self.config.norm_epsilon, self.weight(f"{name}.weight")
        if self.config.norm_type == "layer":
            return self.add("LayerNormalization", x, weight, self.weight(f"{name}.bias"), axis=-1, epsilon=epsilon)
        mean = self.add("ReduceMean", self.add("Mul", x, x), axes=[-1], keepdims=1)
        root = self.add("Sqrt", self.add("Add", mean, self.number(epsilon)))
        return self.add("Mul", self.add("Div", x, root), weight)

    def embed(self, ids: str, stack: Stack, positions: str) -> str:
        """Return the inputs of the first layer: √d_model · E[ids], zeros for padding, and the positions. (…) → (…, D)"""
        vectors = self.add("Gather", self.weight(self.weights.get_embedding_name(stack)), ids)
        is_token = self.add("Not", self.add("Equal", ids, self.integer(self.weights.padding_id)))
        scale = self.add("Mul", self.add("Cast", is_token, to=FLOAT_TYPE), self.number(self.weights.embedding_scale))
        x = self.add("Add", self.add("Mul", vectors, self.add("Unsqueeze", scale, self.integers(-1))), positions)
        return self.norm(x, f"{stack}.embedding.norm") if self.config.embedding_norm else x

    def split_heads(self, x: str) -> str:
        """(B, T, H · W) → (B, H, T, W)"""
        heads = self.add("Reshape", x, self.integers(0, 0, self.config.num_heads, -1))
        return self.add("Transpose", heads, perm=[0, 2, 1, 3])

    def project_kv(self, x: str, name: str, rotation: Rotation | None = None) -> tuple[str, str]:
        """Return keys (B, H, S, K) and values (B, H, S, U). rotation: turns the keys"""
        key, value = (self.split_heads(self.linear(x, f"{name}.{part}")) for part in ("key", "value"))
        return self.rotate(key, rotation), value

    def attend(
        self,
        x: str,
        key: str,
        value: str,
        name: str,
        *,
        mask: str | None = None,
        bias: str | None = None,
        rotation: Rotation | None = None,
    ) -> str:
        """Return the attention of x to keys and values (equation 1). → (B, T, D)

        mask: true for positions to attend to
        bias: numbers that the scores add, as for relative positions
        rotation: turns the queries, for rotary positions
        """
        query = self.rotate(self.split_heads(self.linear(x, f"{name}.query")), rotation)
        query = self.add("Mul", query, self.number(self.config.key_width**-0.5))
        scores = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 1, 3, 2]))
        if bias is not None:
            scores = self.add("Add", scores, bias)
        if mask is not None:
            scores = self.add("Where", mask, scores, self.number(MASKED_SCORE))
        heads = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        merged = self.add("Reshape", self.add("Transpose", heads, perm=[0, 2, 1, 3]), self.integers(0, 0, -1))
        return self.linear(merged, f"{name}.output")

    def ssru(self, x: str, cell: str, name: str) -> tuple[str, str]:
        """Return ReLU(c') and the cell c' = f ∘ c + (1 − f) ∘ W·x with f = σ(W_f·x + b_f), all (B, 1, D)."""
        forget = self.add("Sigmoid", self.linear(x, f"{name}.forget"))
        kept = self.add("Mul", forget, cell)
        share = self.add("Sub", self.number(1.0), forget)
        cell = self.add("Add", kept, self.add("Mul", share, self.linear(x, f"{name}.candidate")))
        return self.add("Relu", cell), cell

    def feed_forward(self, x: str, name: str) -> str:
        """Return FFN(x) (equation 2), perhaps with a gate."""
        if self.config.is_gated:
            y = self.add("Mul", self._activate(self.linear(x, f"{name}.gate")), self.linear(x, f"{name}.inner"))
        else:
            y = self._activate(self.linear(x, f"{name}.inner"))
        return self.linear(y, f"{name}.outer")

    def _activate(self, x: str) -> str:
        """Return the activation of the feed-forward networks, or of their gate."""
        match self.config.activation:
            case "relu":
                return self.add("Relu", x)
            case "silu" | "swiglu":
                return self.add("Mul", x, self.add("Sigmoid", x))
            case "gelu":  # x·(1 + erf(x/√2))/2
                curve = self.add("Erf", self.add("Mul", x, self.number(0.5**0.5)))
            case _:  # x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2
                cube = self.add("Mul", self.add("Mul", self.add("Mul", x, x), x), self.number(0.044715))
                curve = self.add("Tanh", self.add("Mul", self.add("Add", x, cube), self.number((2 / np.pi) ** 0.5)))
        half = self.add("Mul", x, self.number(0.5))
        return self.add("Mul", half, self.add("Add", curve, self.number(1.0)))

    def sublayer_input(self, x: str, name: str) -> str:
        """Return the input of a sublayer: x, or its normalization in a pre-norm model."""
        return self.norm(x, f"{name}_residual.norm") if self.config.norm == "pre" else x

    def add_residual(self, x: str, y: str, name: str) -> str:
        """Return the sum of a sublayer's input and output, normalized in a post-norm model."""
        total = self.add("Add", x, y)
        return total if self.config.norm == "pre" else self.norm(total, f"{name}_residual.norm")

    def add_feed_forward(self, x: str, layer: str) -> str:
        """Return the output of the last sublayer of a layer."""
        name = f"{layer}.feed_forward"
        return self.add_residual(x, self.feed_forward(self.sublayer_input(x, name), name), name)

    def final_norm(self, x: str, stack: Stack) -> str:
        """Return the output of a stack."""
        return self.norm(x, f"{stack}.norm") if self.config.has_final_norm else x

    def token_mask(self, source: str) -> str:
        """Return true for tokens and false for padding. (B, S) → (B, 1, 1, S)"""
        is_token = self.add("Not", self.add("Equal", source, self.integer(self.weights.padding_id)))
        return self.add("Unsqueeze", is_token, self.integers(1, 2))

    def relative_bias(self, stack: Stack, queries: str, length: str) -> str | None:
        """Return what scores of self-attention add, or None without relative positions. → (1, H, T, S)

        queries: positions of the queries (T,)
        length: S (1,); the keys are at the positions 0 … S − 1
        """
        if (bias_DH := self.weights.compute_relative_bias(stack)) is None:
            return None
        limit = len(bias_DH) // 2
        keys = self.add("Range", self.integer(0), self.add("Squeeze", length), self.integer(1))
        distances = self.add("Sub", keys, self.add("Unsqueeze", queries, self.integers(1)))
        rows = self.add("Add", self.add("Clip", distances, self.integer(-limit), self.integer(limit)), self.integer(limit))
        table = self.array(f"{stack}.relative_bias", bias_DH)
        bias_HTS = self.add("Transpose", self.add("Gather", table, rows), perm=[2, 0, 1])
        return self.add("Unsqueeze", bias_HTS, self.integers(0))

    def rotation(self, queries: str, num_positions: int) -> Rotation | None:
        """Return the sines and cosines of some positions (T,), or None without rotary positions.

        num_positions: rows of the table of positions
        """
        if (rotation_PK := self.weights.compute_rotations(num_positions)) is None:
            return None
        sines_PX, cosines_PX = (np.ascontiguousarray(half_PX) for half_PX in np.split(rotation_PK, 2, axis=1))
        gather = partial(self.add, "Gather")
        return gather(self.array("sines", sines_PX), queries), gather(self.array("cosines", cosines_PX), queries)

    def rotate(self, x: str, rotation: Rotation | None) -> str:
        """Return queries or keys (B, H, T, K) turned by rotary positions, or unchanged without a rotation."""
        if rotation is None:
            return x
        sines, cosines = rotation
        last, half, end = (self.integers(number) for number in (-1, self.config.key_width // 2, self.config.key_width))
        first, second = self.add("Slice", x, self.integers(0), half, last), self.add("Slice", x, half, end, last)
        left = self.add("Sub", self.add("Mul", first, cosines), self.add("Mul", second, sines))
        right = self.add("Add", self.add("Mul", second, cosines), self.add("Mul", first, sines))
        return self.add("Concat", left, right, axis=-1)

    def stack(self, parts: Sequence[str], output: str) -> str:
        """Return tensors as one with a new first dimension."""
        return self.add("Concat", *[self.add("Unsqueeze", part, self.integers(0)) for part in parts], output=output, axis=0)

    def build(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Graph:
        """Return the graph."""
        from onnx import helper

        graph = helper.make_graph(self.nodes, name, list(inputs), list(outputs))
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, producer_name="dragoman", opset_imports=[opset], ir_version=IR_VERSION)
        return Graph(model, self.streams)


def _quantize(weights: ModelWeights, name: str) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return a matrix as int8 and the step of each row."""
    tensors = quantize_matrices({name: weights.arrays[name]})
    weights.release()
    return tensors[name], tensors[name + STEP_SUFFIX]


def _stream(weights: ModelWeights, name: str, is_transposed: bool) -> TensorStream:
    """Return the stream of a weight. An int8 matrix becomes float32 when it is written, not before."""
    stored = weights.get_quantized(name)
    shape = (weights.arrays[name] if stored is None else stored[0]).shape

    def iter_chunks() -> Iterator[NDArray[Any]]:
        array = weights.arrays[name]
        return stream_weight(array.T if is_transposed else array, weights.release).iter_chunks()

    return TensorStream(shape[::-1] if is_transposed else shape, np.dtype(np.float32), iter_chunks, weights.release)

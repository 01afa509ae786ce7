"""Graphs of a Transformer in ONNX: the encoder, and one step of the decoder.

L counts decoder layers, B rows, H heads, S source tokens, T output tokens so far, K and U the widths of keys and values, D the
model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.config import ModelConfig
from dragoman.export.onnx_graph import Graph, GraphBuilder, declare
from dragoman.model_weights import OUTPUT, ModelWeights, Stack

SUPPRESSED_LOGIT = -3e4
"""Added to the logits of tokens that no output contains: their probability is 0 in every precision."""


@dataclass(frozen=True)
class StateTensor:
    """Tensor that each step of the decoder reads and returns longer or changed. Before the first step, it is zero.

    name: name of the input; the output has `new_` before it
    dtype: float32 or int64
    shape: its shape before the first step, for one row
    dimensions: its shape in the graph; a text is a dimension of any size
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    dimensions: tuple[int | str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of this tensor in `dragoman.json`."""
        return {"input": self.name, "output": f"new_{self.name}", "dtype": self.dtype, "shape": list(self.shape)}

    def declare(self, prefix: str = "") -> Any:
        """Return the declaration of the input, or with a prefix that of the output."""
        dimensions = [f"{prefix}length" if size == "length" else size for size in self.dimensions]
        return declare(prefix + self.name, {"float32": "FLOAT", "int64": "INT64"}[self.dtype], dimensions)


def list_state(config: ModelConfig) -> list[StateTensor]:
    """Return the state of the decoder: keys and values of the output so far, or cells of SSRUs and the position."""
    layers, heads = config.decoder_layers, config.num_heads
    if config.has_ssru:
        cells = StateTensor("cells", "float32", (layers, 1, 1, config.d_model), (layers, "rows", 1, config.d_model))
        return [cells, StateTensor("position", "int64", (1,), (1,))]
    return [
        StateTensor(name, "float32", (layers, 1, heads, 0, width), (layers, "rows", heads, "length", width))
        for name, width in (("self_keys", config.key_width), ("self_values", config.value_width))
    ]


def build_encoder(weights: ModelWeights, num_positions: int, *, is_int8: bool) -> Graph:
    """Return the graph of the encoder: source (B, S) → cross_keys (L, B, H, S, K), cross_values (L, B, H, S, U).

    num_positions: rows of the table of positions
    is_int8: see `GraphBuilder`
    """
    graph = GraphBuilder(weights, is_int8=is_int8)
    config = weights.config
    length = graph.add("Shape", "source", start=1, end=2)
    positions = graph.add(
        "Slice", _add_positions(graph, "encoder", num_positions), graph.integers(0), length, graph.integers(0)
    )
    queries = graph.add("Range", graph.integer(0), graph.add("Squeeze", length), graph.integer(1))
    mask, bias = graph.token_mask("source"), graph.relative_bias("encoder", queries, length)
    rotation = graph.rotation(queries, num_positions)
    x = graph.embed("source", "encoder", positions)
    for index in range(config.encoder_layers):
        layer = f"encoder.layers.{index}"
        name = f"{layer}.attention"
        y = graph.sublayer_input(x, name)
        key, value = graph.project_kv(y, name, rotation)
        x = graph.add_residual(x, graph.attend(y, key, value, name, mask=mask, bias=bias, rotation=rotation), name)
        x = graph.add_feed_forward(x, layer)
    memory = graph.final_norm(x, "encoder")
    layers = [f"decoder.layers.{index}.cross_attention" for index in range(config.decoder_layers)]
    keys, values = zip(*[graph.project_kv(memory, name) for name in layers], strict=True)
    graph.stack(keys, "cross_keys")
    graph.stack(values, "cross_values")
    return graph.build("encoder", [declare("source", "INT64", ["rows", "source_length"])], _declare_cross(config))


def build_decoder(weights: ModelWeights, num_positions: int, *, is_int8: bool, suppressed_ids: Sequence[int]) -> Graph:
    """Return the graph of one decoder step.

    Its inputs are tokens (B,), source (B, S), cross_keys and cross_values of the encoder, and the tensors of `list_state`. Its
    outputs are logits (B, V) and the new state.

    suppressed_ids: tokens that no output contains
    """
    graph, config = GraphBuilder(weights, is_int8=is_int8), weights.config
    state = list_state(config)
    position = "position" if config.has_ssru else graph.add("Shape", "self_keys", start=3, end=4)
    after = graph.add("Add", position, graph.integers(1), output="new_position" if config.has_ssru else None)
    positions = graph.add("Gather", _add_positions(graph, "decoder", num_positions), position)
    mask = graph.token_mask("source")
    bias, rotation = graph.relative_bias("decoder", position, after), graph.rotation(position, num_positions)
    x = graph.add("Unsqueeze", graph.embed("tokens", "decoder", positions), graph.integers(1))
    new_state: dict[str, list[str]] = {tensor.name: [] for tensor in state}
    for index in range(config.decoder_layers):
        layer = f"decoder.layers.{index}"

        def pick(tensor: str, index: int = index) -> str:
            return graph.add("Gather", tensor, graph.integer(index), axis=0)

        name = f"{layer}.attention"
        y = graph.sublayer_input(x, name)
        if config.has_ssru:
            y, cell = graph.ssru(y, pick("cells"), name)
            new_state["cells"].append(cell)
        else:
            key, value = (
                graph.add("Concat", pick(tensor.name), new, axis=2)
                for tensor, new in zip(state, graph.project_kv(y, name, rotation), strict=True)
            )
            new_state["self_keys"].append(key)
            new_state["self_values"].append(value)
            y = graph.attend(y, key, value, name, bias=bias, rotation=rotation)
        x = graph.add_residual(x, y, name)
        name = f"{layer}.cross_attention"
        y = graph.attend(graph.sublayer_input(x, name), pick("cross_keys"), pick("cross_values"), name, mask=mask)
        x = graph.add_residual(x, y, name)
        x = graph.add_feed_forward(x, layer)
    for tensor_name, parts in new_state.items():
        if parts:
            graph.stack(parts, f"new_{tensor_name}")
    x = graph.add("Squeeze", graph.final_norm(x, "decoder"), graph.integers(1))
    num_tokens = len(weights.output)
    bias_V = np.zeros(num_tokens, np.float32) if weights.output_bias is None else weights.output_bias.copy()
    bias_V[list(suppressed_ids)] = SUPPRESSED_LOGIT
    graph.add("Gemm", x, graph.weight(OUTPUT), graph.array("output.bias", bias_V), output="logits", transB=1)
    inputs = [
        declare("tokens", "INT64", ["rows"]),
        declare("source", "INT64", ["rows", "source_length"]),
        *_declare_cross(config),
        *(tensor.declare() for tensor in state),
    ]
    outputs = [declare("logits", "FLOAT", ["rows", num_tokens]), *(tensor.declare("new_") for tensor in state)]
    return graph.build("decoder", inputs, outputs)


def _add_positions(graph: GraphBuilder, stack: Stack, num_positions: int) -> str:
    """Return the table of positions (P, D), with the vector that every position adds; one row of zeros without positions."""
    table_PD = graph.weights.compute_positions(stack, 0, num_positions)
    space_D = graph.weights.get_target_space(stack)
    return graph.array("positions", table_PD if space_D is None else table_PD + space_D)


def _declare_cross(config: ModelConfig) -> list[Any]:
    """Return the declarations of the keys and values of the source (L, B, H, S, ·)."""
    shape = config.decoder_layers, "rows", config.num_heads, "source_length"
    return [
        declare(f"cross_{name}", "FLOAT", [*shape, width])
        for name, width in (("keys", config.key_width), ("values", config.value_width))
    ]

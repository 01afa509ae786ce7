"""Conversion of a model's weights into a `CompiledTransformer`: the layout that the kernels multiply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.inference.backends.compiled.arena import allocate
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL,
    ADD_RESIDUAL_U8,
    GELU,
    GELU_TANH,
    LANES,
    MULTIPLY,
    RELU,
    SILU,
    STORE,
    CrossAttention,
    EmbeddingTable,
    HeadLayout,
    LayerWeights,
    LinearWeights,
    NormWeights,
)
from dragoman.inference.backends.compiled.model import CompiledTransformer, PositionTable, TokenFrontend, VectorFrontend
from dragoman.inference.backends.compiled.weights import (
    CompiledPrecision,
    Int8Rows,
    Matrix,
    WeightLoader,
    WeightPacker,
    load_matrix,
    pad_axis,
    round_up,
)
from dragoman.model_weights import OUTPUT, ModelWeights, Stack, repeat_heads
from dragoman.runtime.malloc import trim_malloc

if TYPE_CHECKING:
    from dragoman.inference.backends.compiled.pointer import CompiledPointer

# Numbers of heads that fill a vector.
HEAD_COUNTS = (1, 2, 4, 8, LANES)
EPILOGUES = {"relu": RELU, "silu": SILU, "gelu": GELU, "geglu": GELU_TANH, "swiglu": SILU}
# Product that a model does not have.
NO_PRODUCT = LinearWeights(0, 0, 0, 0, 0, 0, 0, 0, False)
# Distance that no two positions have.
NO_WINDOW = 1 << 40


def compile_model(weights: ModelWeights, precision: CompiledPrecision = "int8") -> CompiledTransformer:
    """Return the compiled model. The weights must not change, because embeddings are read in place.

    In int8, weights that are int8 are packed as they are, with the numbers that their float32 would give.
    """
    packer = _ModelPacker(weights, precision)
    compiled_model = CompiledTransformer(
        weights=weights,
        encoder_positions=PositionTable(weights, "encoder", packer.head_layout),
        decoder_positions=PositionTable(weights, "decoder", packer.head_layout),
        frontend=packer.pack_frontend(),
        encoder=packer.pack_layers("encoder", weights.config.encoder_layers),
        decoder_embedding=packer.pack_embedding("decoder"),
        decoder=packer.pack_layers("decoder", weights.config.decoder_layers),
        cross_attention=packer.pack_cross_attention(),
        head_layout=packer.head_layout,
        output=packer.pack(
            [WeightLoader.from_matrix(packer.load_matrix(OUTPUT), weights.release)],
            [weights.output_bias],
            STORE,
            [weights.get_input_step(OUTPUT)],
        ),
        pointer=_pack_pointer(weights) if weights.config.pointer else None,
        precision=precision,
        owned_arrays=packer.arrays,
    )
    trim_malloc()
    return compiled_model


class _ModelPacker(WeightPacker):
    """Packer of all parts of one model, by the names of its weights."""

    def __init__(self, weights: ModelWeights, precision: CompiledPrecision) -> None:
        super().__init__(precision)
        self.weights, self.config = weights, weights.config
        self.head_layout = compute_head_layout(self.config, precision)

    def pack_frontend(self) -> TokenFrontend | VectorFrontend:
        if self.config.encoder_input.has_embedding:
            return TokenFrontend(self.pack_embedding("encoder"), self.weights.padding_id)
        from dragoman.model_frontends import build_frontend  # text does not need it

        return VectorFrontend(build_frontend(self.weights).embed)

    def pack_embedding(self, stack: Stack) -> EmbeddingTable:
        matrix, steps = self.load_matrix(self.weights.get_embedding_name(stack)), 0
        if isinstance(matrix, Int8Rows) and matrix.shape[1] % LANES == 0:
            vectors, steps = self.add_array(matrix.int8_OI), self.add_array(matrix.steps_O)
        else:
            vectors = self.add_array(self.weights.get_embedding(stack))
        num_tokens, width = matrix.shape
        scale_V = np.full(num_tokens, self.weights.embedding_scale, np.float32)
        scale_V[self.weights.padding_id] = 0.0
        norm = self.pack_norms([f"{stack}.embedding.norm"] if self.config.embedding_norm else [])
        return EmbeddingTable(vectors, steps, self.add_array(scale_V), width, norm)

    def pack_layers(self, stack: Stack, num_layers: int) -> LayerWeights:
        config, layers = self.config, [f"{stack}.layers.{index}" for index in range(num_layers)]
        gates = [f"{layer}.feed_forward.gate" for layer in layers]
        attentions, has_ssru = [f"{layer}.attention" for layer in layers], stack == "decoder" and config.has_ssru
        return LayerWeights(
            num_layers=num_layers,
            qkv=self.pack_ssru(attentions) if has_ssru else self.pack_projections(attentions, "query", "key", "value"),
            output=NO_PRODUCT if has_ssru else self.pack_output_projections(attentions),
            gate=self.pack_linears(gates, (config.d_ff, config.d_model), EPILOGUES[config.activation])
            if config.is_gated
            else NO_PRODUCT,
            inner=self.pack_linears(
                [f"{layer}.feed_forward.inner" for layer in layers],
                (config.d_ff, config.d_model),
                MULTIPLY if config.is_gated else EPILOGUES[config.activation],
            ),
            outer=self.pack_linears(
                [f"{layer}.feed_forward.outer" for layer in layers],
                (config.d_model, config.d_ff),
                ADD_RESIDUAL_U8 if config.activation == "relu" else ADD_RESIDUAL,
            ),
            is_gated=config.is_gated,
            norms=(
                self.pack_norms([f"{layer}.attention_residual.norm" for layer in layers]),
                self.pack_norms([f"{layer}.feed_forward_residual.norm" for layer in layers]),
            ),
            pre_norm=config.norm == "pre",
            final_norm=self.pack_norms([f"{stack}.norm"] if config.has_final_norm else []),
            window=NO_WINDOW if config.attention_window is None else config.attention_window,
            relative_bias=self.pack_relative_bias(stack),
            max_distance=config.relative_attention_max_distance,
            has_ssru=has_ssru,
        )

    def pack_relative_bias(self, stack: Stack) -> int:
        """Return the address of what scores add at each distance, for the heads in the lanes of a vector; 0 for nothing."""
        if (bias_DH := self.weights.compute_relative_bias(stack)) is None:
            return 0
        num_groups, num_heads = self.head_layout.num_groups, self.head_layout.num_heads
        padded_DGH = pad_axis(bias_DH, num_groups * num_heads).reshape(len(bias_DH), num_groups, num_heads)
        return self.add_array(np.tile(padded_DGH, LANES // num_heads))

    def pack_cross_attention(self) -> CrossAttention:
        layers = [f"decoder.layers.{index}" for index in range(self.config.decoder_layers)]
        attentions = [f"{layer}.cross_attention" for layer in layers]
        return CrossAttention(
            query=self.pack_projections(attentions, "query"),
            output=self.pack_output_projections(attentions),
            kv=self.pack_projections(attentions, "key", "value"),
            norms=self.pack_norms([f"{layer}.cross_attention_residual.norm" for layer in layers]),
        )

    def pack_norms(self, names: Sequence[str]) -> NormWeights:
        if not names:
            return NormWeights(0, 0, 0.0, 0, False, False)
        num_features = self.config.d_model
        parameters = allocate((2, len(names), round_up(num_features)), np.float32, make=np.zeros)
        for layer, name in enumerate(names):
            for part, parameter in enumerate(("weight",) if self.config.norm_type == "rms" else ("weight", "bias")):
                parameters[part, layer, :num_features] = self.weights.arrays[f"{name}.{parameter}"]
        weight, bias = (self.add_array(parameter_LD) for parameter_LD in parameters)
        return NormWeights(weight, bias, self.config.norm_epsilon, num_features, True, self.config.norm_type == "rms")

    def pack_projections(self, attentions: Sequence[str], *names: str) -> LinearWeights:
        """Return several projections as one, one behind the other."""
        layout = self.head_layout
        num_outputs = sum(layout.value_width if name == "value" else layout.key_width for name in names)
        weights = [
            WeightLoader(
                partial(self._load_projections, attention, names),
                (num_outputs, self.config.d_model),
                self.weights.release,
            )
            for attention in attentions
        ]
        has_bias = self.config.attention_bias
        biases = [self._concat_projections(attention, names, "bias") if has_bias else None for attention in attentions]
        steps = [self._get_input_step([f"{attention}.{name}.weight" for name in names]) for attention in attentions]
        return self.pack(weights, biases, STORE, steps)

    def pack_ssru(self, names: Sequence[str]) -> LinearWeights:
        """Return both projections of each SSRU as one, padded to whole vectors."""
        width = round_up(self.config.d_model)
        shape = 2 * width, self.config.d_model
        weights = [WeightLoader(partial(self._load_ssru, name), shape, self.weights.release) for name in names]
        zeros_D = np.zeros(width, np.float32)
        biases = [np.concatenate([zeros_D, pad_axis(self.weights.arrays[f"{name}.forget.bias"], width)]) for name in names]
        steps = [self._get_input_step([f"{name}.candidate.weight", f"{name}.forget.weight"]) for name in names]
        return self.pack(weights, biases, STORE, steps)

    def _load_ssru(self, name: str) -> Matrix:
        """Return the weights of both projections, each padded with zero rows."""
        names, width = [f"{name}.{part}.weight" for part in ("candidate", "forget")], round_up(self.config.d_model)
        matrices = [self.load_matrix(name) for name in names]
        rows = [matrix for matrix in matrices if isinstance(matrix, Int8Rows)]
        if len(rows) < len(matrices):
            return np.concatenate([pad_axis(self.weights.arrays[name], width, axis=0) for name in names])
        return Int8Rows(
            np.concatenate([pad_axis(matrix.int8_OI, width, axis=0) for matrix in rows]),
            np.concatenate([pad_axis(matrix.steps_O, width) for matrix in rows]),
            np.concatenate([pad_axis(matrix.factors_O, width) for matrix in rows]),
        )

    def _get_input_step(self, names: Sequence[str]) -> float | None:
        """Return the stored step of the input that these matrices read; None if they differ or one has none."""
        steps = {self.weights.get_input_step(name) for name in names}
        return steps.pop() if len(steps) == 1 else None

    def load_matrix(self, name: str) -> Matrix:
        return load_matrix(self.weights, name, self.precision)

    def _load_projections(self, attention: str, names: Sequence[str]) -> Matrix:
        """Return the weights of several projections."""
        matrices = [self.load_matrix(f"{attention}.{name}.weight") for name in names]
        rows = [matrix for matrix in matrices if isinstance(matrix, Int8Rows)]
        if len(rows) < len(matrices):
            return self._concat_projections(attention, names, "weight")
        factors = [np.full_like(matrix.steps_O, self._get_factor(name)) for name, matrix in zip(names, rows, strict=True)]
        return Int8Rows(
            self._join_heads(names, [matrix.int8_OI for matrix in rows]),
            self._join_heads(names, [matrix.steps_O for matrix in rows]),
            self._join_heads(names, factors),
        )

    def _concat_projections(self, attention: str, names: Sequence[str], parameter: str) -> NDArray[np.float32]:
        """Return the weight or bias of several projections in float32."""
        return self._join_heads(
            names, [self.weights.arrays[f"{attention}.{name}.{parameter}"] * self._get_factor(name) for name in names]
        )

    def _get_factor(self, name: str) -> np.float32:
        """Return the factor of a projection's weights: queries include the scale of equation 1."""
        return np.float32(self.config.key_width**-0.5 if name == "query" else 1.0)

    def _join_heads(self, names: Sequence[str], projections: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return rows of several projections, one behind the other, in the kernels' order of the heads.

        The kernels have keys and values for each head, so those of a group are repeated: this keeps the operations and the
        cache of full heads.
        """
        parts = []
        for name, rows in zip(names, projections, strict=True):
            rows = rows if name == "query" else repeat_heads(rows, self.config)
            width = self.head_layout.value_width if name == "value" else self.head_layout.key_width
            if name != "value" and self.head_layout.rotation_width:
                rows = self._pad_halves(rows)
            parts.append(self._interleave_heads(rows, width))
        return np.concatenate(parts)

    def _pad_halves(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows of queries or keys with zeros behind each half of a head, so that a half of all heads fills vectors."""
        halves_XKB = rows.reshape(2 * self.config.num_heads, self.config.key_width // 2, *rows.shape[1:])
        half_width = self.head_layout.rotation_width // (2 * self.head_layout.num_heads)
        return pad_axis(halves_XKB, half_width, axis=1).reshape(-1, *rows.shape[1:])

    def _interleave_heads(self, x: NDArray[Any], width: int, axis: int = 0) -> NDArray[Any]:
        """Return numbers of all heads in the kernels' order, where heads alternate, padded with zeros.

        width: size of the result's `axis`, which has the numbers of one head behind those of another in `x`
        """
        num_groups, num_heads = self.head_layout.num_groups, self.head_layout.num_heads
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        x_AHKB = x.reshape(math.prod(before), self.config.num_heads, -1, math.prod(after))
        shape = len(x_AHKB), num_groups, width // (num_groups * num_heads), num_heads, x_AHKB.shape[-1]
        padded_AGKHB = np.zeros(shape, x.dtype)
        for group in range(num_groups):
            heads_AHKB = x_AHKB[:, group * num_heads : (group + 1) * num_heads]
            padded_AGKHB[:, group, : heads_AHKB.shape[2], : heads_AHKB.shape[1]] = heads_AHKB.swapaxes(1, 2)
        return padded_AGKHB.reshape(*before, width, *after)

    def pack_output_projections(self, attentions: Sequence[str]) -> LinearWeights:
        """Return the output projections, which read the results of all heads."""
        shape = self.config.d_model, self.head_layout.value_width
        weights = [
            WeightLoader(partial(self._load_output_projection, attention), shape, self.weights.release)
            for attention in attentions
        ]
        biases = self._get_biases([f"{attention}.output" for attention in attentions])
        steps = [self.weights.get_input_step(f"{attention}.output.weight") for attention in attentions]
        return self.pack(weights, biases, ADD_RESIDUAL, steps)

    def _load_output_projection(self, attention: str) -> Matrix:
        """Return the weight (D, U) of an output projection."""
        matrix, width = self.load_matrix(f"{attention}.output.weight"), self.head_layout.value_width
        if isinstance(matrix, Int8Rows):
            return replace(matrix, int8_OI=self._interleave_heads(matrix.int8_OI, width, axis=1))
        return self._interleave_heads(matrix, width, axis=1)

    def pack_linears(self, names: Sequence[str], shape: tuple[int, int], epilogue: int) -> LinearWeights:
        weights = [WeightLoader(partial(self.load_matrix, f"{name}.weight"), shape, self.weights.release) for name in names]
        steps = [self.weights.get_input_step(f"{name}.weight") for name in names]
        return self.pack(weights, self._get_biases(names), epilogue, steps)

    def _get_biases(self, names: Sequence[str]) -> list[NDArray[np.float32] | None]:
        return [self.weights.arrays.get(f"{name}.bias") for name in names]


def compute_head_layout(config: ModelConfig, precision: CompiledPrecision) -> HeadLayout:
    """Return the layout with the heads padded to 1, 2, 4 or 8 or to groups of 16, and their widths to whole vectors."""
    num_groups = -(-config.num_heads // LANES)
    num_heads = LANES if num_groups > 1 else next(count for count in HEAD_COUNTS if count >= config.num_heads)
    key_width, value_width = (round_up(width * num_heads) for width in (config.key_width, config.value_width))
    rotation_width = 0
    if config.position_encoding == "rotary":
        key_width = rotation_width = 2 * round_up(config.key_width // 2 * num_heads)
    return HeadLayout(
        num_groups,
        num_heads,
        num_groups * key_width,
        num_groups * value_width,
        precision == "float32",
        rotation_width,
        config.num_heads,
    )


def _pack_pointer(weights: ModelWeights) -> CompiledPointer:
    """Return the pointer of a parser. Its projection stays in float32, because it is computed once for each sentence."""
    from dragoman.inference.backends.compiled.pointer import CompiledPointer  # parsers alone have one

    weight_DD, bias_D = (weights.arrays[f"decoder.pointer.projection.{parameter}"] for parameter in ("weight", "bias"))
    width = round_up(len(weight_DD))
    return CompiledPointer(
        padding_id=weights.padding_id,
        is_word_start_V=weights.get_word_table("begins_V") > 0,
        shifts_V=weights.get_word_table("shifts_V").astype(np.int64),
        weight_DD=pad_axis(pad_axis(weight_DD, width, axis=0), width),
        bias_D=pad_axis(bias_D, width),
    )

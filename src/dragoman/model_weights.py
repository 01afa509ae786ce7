"""Weights of a Transformer as NumPy arrays, by their names in a bundle.

V vocabulary    D model width    H heads    K, U widths of a head's keys and values    F inner width
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.errors import BundleError
from dragoman.io.int8_tensors import DequantizedArrays, dequantize_matrices
from dragoman.io.safetensors import is_floating_point
from dragoman.positions import SINUSOIDS, halved_sinusoids, relative_position_buckets

Stack = Literal["encoder", "decoder"]
Shape = tuple[int, ...]
OUTPUT, OUTPUT_BIAS = "output", "output_bias"
WORDS, POINTER_WORDS = "words", "decoder.pointer.words"
"""Names of a parser's word tables, without and with a pointer."""
CONVOLUTIONS = "encoder.frontend.convolutions"
"""Name of the two convolutions of a spectrogram. Their weights are matrices (D, 3 · F), the features of each frame together."""

A_SUFFIX, B_SUFFIX = ".lora_a", ".lora_b"
"""Ends of the names of a low-rank adapter's matrices A (r, I) and B (O, r)."""
CHECK_CHUNK_SIZE = 2**22
"""Weights that are checked for finite values at once."""
MIN_RELEASED_BYTES = 2**16
"""Size of weights from which releasing their memory is worth a call of the system."""


@dataclass(frozen=True)
class ModelWeights:
    """Weights of a Transformer with the paper's layers, and the settings that say how to compute with them.

    config: section `model` of the recipe, without an architecture of a hook except `config.compiled_extension`
    arrays: each parameter and each word table once, in float32; see `list_shapes`. They must not change
    padding_id: token whose embedding is zero
    word_id: target token that stands for a source word; None in other models than parsers
    release: releases memory that reading the arrays has filled; a later use reads them again
    """

    config: ModelConfig
    arrays: Mapping[str, NDArray[np.float32]]
    padding_id: int = 0
    word_id: int | None = None
    release: Callable[[], None] = lambda: None

    @property
    def output(self) -> NDArray[np.float32]:
        """Output matrix (V, D) before the softmax (section 3.4)."""
        return self.arrays[OUTPUT]

    @property
    def output_bias(self) -> NDArray[np.float32] | None:
        """Bias (V,) of the logits; None as in the paper."""
        return self.arrays.get(OUTPUT_BIAS)

    @property
    def embedding_scale(self) -> float:
        """Factor of the embeddings, √d_model (section 3.4)."""
        return math.sqrt(self.config.d_model) if self.config.scale_embeddings else 1.0

    def get_embedding(self, stack: Stack) -> NDArray[np.float32]:
        """Return the embedding matrix (V, D) of a stack."""
        return self.arrays[self.get_embedding_name(stack)]

    def get_embedding_name(self, stack: Stack) -> str:
        """Return the name of the embedding matrix of a stack. Matrices that share weights are stored once."""
        ties = self.config.tie_embeddings
        if ties == "all" or (ties == "decoder" and stack == "decoder"):
            return OUTPUT
        return "encoder.embedding.weight" if ties == "inputs" else f"{stack}.embedding.weight"

    def get_quantized(self, name: str) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
        """Return a matrix as integers (O, I) and the step (O) of each row, or None if it is stored in float32."""
        return self.arrays.quantized.get(name) if isinstance(self.arrays, DequantizedArrays) else None

    def get_input_step(self, name: str) -> float | None:
        """Return the step of a matrix's inputs in int8 that is stored with it, or None if each input has its own."""
        return self.arrays.input_steps.get(name) if isinstance(self.arrays, DequantizedArrays) else None

    def with_full_heads(self) -> ModelWeights:
        """Return weights of the same function in which each head has keys and values of its own; without groups, these weights.

        Formats without grouped heads store them so. The model then has the operations of full heads.
        """
        config, arrays = self.config, self.arrays
        if config.key_value_heads == config.num_heads:
            return self

        def repeat(name: str, array: NDArray[Any]) -> NDArray[Any]:
            return repeat_heads(array, config) if name.split(".")[-2:-1] in (["key"], ["value"]) else array

        full_config = config.model_copy(update={"num_key_value_heads": None})
        if not isinstance(arrays, DequantizedArrays):
            return replace(self, config=full_config, arrays={name: repeat(name, array) for name, array in arrays.items()})
        others = {name: repeat(name, array) for name, array in arrays.arrays.items()}
        quantized = {
            name: (repeat(name, matrix_OI), repeat(name, steps_O)) for name, (matrix_OI, steps_O) in arrays.quantized.items()
        }
        return replace(self, config=full_config, arrays=DequantizedArrays(others, quantized, arrays.input_steps))

    def get_word_table(self, name: Literal["begins_V", "shifts_V", "hidden_V"]) -> NDArray[np.float32]:
        """Return a word table of a parser; see `dragoman.model.pointer.WordTables`."""
        return self.arrays[f"{POINTER_WORDS if self.config.pointer else WORDS}.{name}"]

    def get_target_space(self, stack: Stack) -> NDArray[np.float32] | None:
        """Return the vector (D,) that every position of a stack adds, or None."""
        return self.arrays.get(f"{stack}.embedding.target_space_embedding")

    def compute_positions(self, stack: Stack, start: int, length: int) -> NDArray[np.float32]:
        """Return the encodings of positions start … start + length − 1. → (length, D)

        Raises IndexError for a position beyond the table of learned positions.
        """
        config = self.config
        if config.position_encoding == "learned":
            table_PD = self.arrays[f"{stack}.embedding.positions.weight"]
            if start + length > len(table_PD):
                raise IndexError(
                    f"position {start + length}: the model has {len(table_PD)} learned positions; shorten the sentence"
                )
            return table_PD[start : start + length] * np.float32(math.sqrt(config.d_model))
        if config.position_encoding in ("relative", "rotary"):
            return np.zeros((length, config.d_model), np.float32)
        first = config.position_offset + start
        return SINUSOIDS[config.position_encoding](first + length, config.d_model)[first:]

    def compute_relative_bias(self, stack: Stack) -> NDArray[np.float32] | None:
        """Return what scores of self-attention add at distances −max … max, or None for other positions. → (2·max + 1, H)"""
        config = self.config
        if config.position_encoding != "relative":
            return None
        limit = config.relative_attention_max_distance
        buckets = relative_position_buckets(
            np.arange(-limit, limit + 1),
            num_buckets=config.relative_attention_num_buckets,
            max_distance=limit,
            bidirectional=stack == "encoder",
        )
        return self.arrays[f"{stack}.relative_positions.weight"][buckets]

    def compute_rotations(self, length: int) -> NDArray[np.float32] | None:
        """Return [sin …, cos …] of the angles of rotary positions, or None for other positions. → (length, K)

        Pair i of a head turns by p / 10000^(2i / K) at position p.
        """
        return halved_sinusoids(length, self.config.key_width) if self.config.position_encoding == "rotary" else None

    @property
    def max_positions(self) -> int | None:
        """Number of tokens that the model has positions for; None if positions never end."""
        return self.config.position_limit


def repeat_heads(x: NDArray[Any], config: ModelConfig, axis: int = 0) -> NDArray[Any]:
    """Return rows of keys or values of all heads: those of a group's head once for each query head of the group.

    axis: dimension with the rows of one head behind those of another
    """
    num_heads, groups = config.num_heads, config.key_value_heads
    if groups == num_heads:
        return x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    return x.reshape(*before, groups, -1, *after).repeat(num_heads // groups, axis).reshape(*before, -1, *after)


def check_weights(
    arrays: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    location: Path,
    release: Callable[[], None] = lambda: None,
) -> Mapping[str, NDArray[np.float32]]:
    """Return the weights in float32; those that are int8 become so when they are read.

    shapes: shape of each weight that the model has
    location: file or folder that error messages name
    release: called after each chunk of weights is checked

    Raises BundleError if a name or a shape differs, or a weight is not a finite number.
    """
    arrays = restore_arrays(arrays, location=location)
    if missing := sorted(shapes.keys() - arrays.keys()):
        raise BundleError(
            f"{location}: weight {missing[0]} of the model in the config is missing; export the bundle again",
            code="bundle-mismatch",
        )
    if extra := sorted(arrays.keys() - shapes.keys()):
        raise BundleError(
            f"{location}: weight {extra[0]!r} does not belong to the model in the config; export the bundle again",
            code="bundle-mismatch",
        )
    checked: dict[str, NDArray[np.float32]] = {}
    quantized = arrays.quantized if isinstance(arrays, DequantizedArrays) else {}
    for name, shape in shapes.items():
        array, steps = quantized[name] if name in quantized else (arrays[name], arrays[name])
        if array.shape != shape:
            raise BundleError(
                f"{location}: {name} has shape {array.shape}, but the config describes {shape}", code="bundle-mismatch"
            )
        if not is_floating_point(steps) or not _is_finite(steps, release):
            raise BundleError(
                f"{location}: {name} holds values that are not finite numbers; train or average the model again",
                code="bundle-damaged",
            )
        if name not in quantized:
            checked[name] = array.astype(np.float32, copy=False)
    return DequantizedArrays(checked, quantized, arrays.input_steps) if isinstance(arrays, DequantizedArrays) else checked


def restore_arrays(arrays: Mapping[str, NDArray[Any]], *, location: Path) -> Mapping[str, NDArray[Any]]:
    """Return weights that may be int8 as floating-point numbers. Raise BundleError if the steps of a matrix do not fit."""
    try:
        return dequantize_matrices(arrays)
    except ValueError as error:
        raise BundleError(f"{location}: {error}; quantize the bundle again", code="bundle-damaged") from None


def merge_weights(
    arrays: Mapping[str, NDArray[np.float32]], adapter: Mapping[str, NDArray[np.float32]], *, scale: float
) -> dict[str, NDArray[np.float32]]:
    """Return weights with W + scale · B·A for each adapted layer (Hu et al. 2021); all other arrays are shared.

    Raises KeyError if the adapter has a layer that the model lacks, and ValueError if a shape does not fit.
    """
    merged = dict(arrays)
    for name in [name.removesuffix(A_SUFFIX) for name in adapter if name.endswith(A_SUFFIX)]:
        change_OI = adapter[name + B_SUFFIX] @ adapter[name + A_SUFFIX]
        if change_OI.shape != arrays[f"{name}.weight"].shape:
            raise ValueError(f"{name}: has shape {arrays[f'{name}.weight'].shape}, but the adapter {change_OI.shape}")
        merged[f"{name}.weight"] = arrays[f"{name}.weight"] + np.float32(scale) * change_OI
    return merged


def _is_finite(array: NDArray[Any], release: Callable[[], None]) -> bool:
    """Return whether all values are finite, without a copy of the matrix: minimum and maximum pass NaN on."""
    values = array.reshape(-1)
    for start in range(0, len(values), CHECK_CHUNK_SIZE):
        chunk = values[start : start + CHECK_CHUNK_SIZE]
        if not (np.isfinite(chunk.min()) and np.isfinite(chunk.max())):
            return False
        if chunk.nbytes >= MIN_RELEASED_BYTES:
            release()
    return True


def list_shapes(
    config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int, has_words: bool = False, tagging: bool = False
) -> dict[str, Shape]:
    """Return the names and shapes of the weights of a Transformer with the paper's layers, or those of a compiled extension.

    They are those of `dragoman.model.transformer.Transformer`: each parameter once, under its first name.
    has_words: a parser's tables of words and, with `config.pointer`, its pointer
    tagging: a parser's classifier of tags
    """
    width = config.d_model
    shapes: dict[str, Shape] = {OUTPUT: (target_vocab_size, width)}
    if config.output_bias:
        shapes[OUTPUT_BIAS] = (target_vocab_size,)
    if config.target_space_embedding:
        shapes["encoder.embedding.target_space_embedding"] = (width,)
    encoder_input = config.encoder_input
    for index, num_inputs in enumerate(encoder_input.list_convolution_inputs(config)):
        shapes |= _list_linear_shapes(f"{CONVOLUTIONS}.{index}", num_inputs, width)
    if encoder_input.has_embedding and config.tie_embeddings != "all":
        shapes["encoder.embedding.weight"] = (source_vocab_size, width)
    if config.tie_embeddings == "none":
        shapes["decoder.embedding.weight"] = (target_vocab_size, width)
    stacks: tuple[tuple[Stack, int, tuple[str, ...]], ...] = (
        ("encoder", config.encoder_layers, ("attention",)),
        ("decoder", config.decoder_layers, ("attention", "cross_attention")),
    )
    for stack, num_layers, attentions in stacks:
        if config.position_encoding == "learned":
            num_positions = encoder_input.count_positions(config) if stack == "encoder" else config.max_positions
            shapes[f"{stack}.embedding.positions.weight"] = (num_positions, width)
        elif config.position_encoding == "relative":
            shapes[f"{stack}.relative_positions.weight"] = (config.relative_attention_num_buckets, config.num_heads)
        if config.embedding_norm:
            shapes |= _list_norm_shapes(config, f"{stack}.embedding.norm")
        for index in range(num_layers):
            layer = f"{stack}.layers.{index}"
            for attention in attentions:
                is_ssru = config.has_ssru and stack == "decoder" and attention == "attention"
                shapes |= (_list_ssru_shapes if is_ssru else _list_attention_shapes)(config, f"{layer}.{attention}")
                shapes |= _list_norm_shapes(config, f"{layer}.{attention}_residual.norm")
            for part in ("gate", "inner") if config.is_gated else ("inner",):
                shapes |= _list_linear_shapes(f"{layer}.feed_forward.{part}", width, config.d_ff, bias=config.feed_forward_bias)
            shapes |= _list_linear_shapes(f"{layer}.feed_forward.outer", config.d_ff, width, bias=config.feed_forward_bias)
            shapes |= _list_norm_shapes(config, f"{layer}.feed_forward_residual.norm")
        if config.has_final_norm:
            shapes |= _list_norm_shapes(config, f"{stack}.norm")
    if has_words:
        sizes = {"begins_V": source_vocab_size, "shifts_V": target_vocab_size, "hidden_V": target_vocab_size}
        prefix = POINTER_WORDS if config.pointer else WORDS
        shapes |= {f"{prefix}.{name}": (size,) for name, size in sizes.items()}
        if config.pointer:
            shapes |= _list_linear_shapes("decoder.pointer.projection", width, width)
        if tagging:
            shapes |= _list_linear_shapes("tagger.projection", width, target_vocab_size)
    extension = config.compiled_extension
    return shapes if extension is None else dict(extension.list_shapes(config, shapes))


def _list_attention_shapes(config: ModelConfig, name: str) -> dict[str, Shape]:
    """Return the shapes of the four projections of an attention."""
    num_heads, groups = config.num_heads, config.key_value_heads
    widths = {"query": num_heads * config.key_width, "key": groups * config.key_width, "value": groups * config.value_width}
    shapes: dict[str, Shape] = {}
    for projection, width in widths.items():
        shapes |= _list_linear_shapes(f"{name}.{projection}", config.d_model, width, bias=config.attention_bias)
    return shapes | _list_linear_shapes(
        f"{name}.output", num_heads * config.value_width, config.d_model, bias=config.attention_bias
    )


def _list_ssru_shapes(config: ModelConfig, name: str) -> dict[str, Shape]:
    """Return the shapes of the two projections of an SSRU."""
    shape = config.d_model, config.d_model
    return _list_linear_shapes(f"{name}.candidate", *shape, bias=False) | _list_linear_shapes(f"{name}.forget", *shape)


def _list_linear_shapes(name: str, inputs: int, outputs: int, *, bias: bool = True) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def _list_norm_shapes(config: ModelConfig, name: str) -> dict[str, Shape]:
    return {f"{name}.{part}": (config.d_model,) for part in (("weight",) if config.norm_type == "rms" else ("weight", "bias"))}

"""Reader of the weights of a model whose layers have fairseq's names, which records the tensors that it has read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.conversion.mapped_arrays import Array, damaged
from dragoman.conversion.source_files import SourceTensors
from dragoman.conversion.target import CHUNK_VALUES, WeightBuilder
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.errors import BundleError
from dragoman.io.bfloat16 import cast, widen
from dragoman.io.safetensors import TensorStream, is_floating_point
from dragoman.positions import SINUSOIDS

LAYER_PARTS = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.output",
    "self_attn_layer_norm": "attention_residual.norm",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_residual.norm",
}
"""Parts of a layer: name in the source → name in dragoman."""
CROSS_ATTENTION_PARTS = {
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
}
EMBEDDING = (
    "model.shared.weight", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight", "lm_head.weight"
)  # fmt: skip
"""Names of the one embedding of both sides and the output in Hugging Face, any of which a file may have."""
BART_POSITION_OFFSET = 2
"""Row of the first position in the tables of BART and mBART."""
POSITION_TOLERANCE = 3e-3
"""Largest difference of a stored table of positions from the sinusoids, which bfloat16 rounds to 2⁻⁹."""


class WeightReader:
    """Streams of weights, and a record of the source's tensors that they are made from.

    Args:
        tensors: tensors of the source
        prefix: start of the name of each tensor, such as `model.`
        family: name of the architecture in error messages
    """

    def __init__(self, tensors: SourceTensors, *, prefix: str, family: str) -> None:
        self.tensors = tensors
        self.prefix = prefix
        self.family = family
        self.builder = WeightBuilder(tensors, tensors.release)

    def get(self, *names: str) -> Array:
        """Return the first of these tensors that exists; all of them are one tensor in the model."""
        self.tensors.used.update(names)
        return self.tensors[next((name for name in names if name in self.tensors), names[0])]

    def read_vocabulary_matrix(self, tensor: Array, order: VocabularyOrder) -> TensorStream:
        """Return a matrix with a row for each token. Raise DataError if the source has another number of rows."""
        num_rows = order.num_source_rows
        if tensor.ndim != 2 or len(tensor) != num_rows:
            raise damaged(
                self.tensors.location,
                f"a matrix of tokens has the shape {tuple(tensor.shape)}, but the vocabulary has {num_rows} tokens",
            )
        return self.builder.reorder_rows(tensor, order)

    def read_vocabulary_matrices(
        self, encoder: Array, decoder: Array, output: Array, orders: tuple[VocabularyOrder, VocabularyOrder]
    ) -> tuple[str, dict[str, TensorStream]]:
        """Return which matrices of tokens are equal, as `model.tie_embeddings` has it, and each different one.

        encoder, decoder, output: embeddings of both sides, and the output matrix
        orders: orders of source and target
        """
        tying = "none"
        if self.are_equal(decoder, output):
            tying = "all" if orders[0] == orders[1] and self.are_equal(encoder, decoder) else "decoder"
        weights = {"output": self.read_vocabulary_matrix(output, orders[1])}
        if tying != "all":
            weights["encoder.embedding.weight"] = self.read_vocabulary_matrix(encoder, orders[0])
        if tying == "none":
            weights["decoder.embedding.weight"] = self.read_vocabulary_matrix(decoder, orders[1])
        return tying, weights

    def read_layers(
        self, stack: str, num_layers: int, parts: Mapping[str, str] | None = None, *, key_bias: bool = True
    ) -> dict[str, TensorStream]:
        """Return the weights of all layers of the encoder or the decoder.

        parts: name of each part in the source → name in dragoman, by default those of fairseq
        key_bias: projections of keys have a bias; without one, it is zero
        """
        parts = parts or (LAYER_PARTS | CROSS_ATTENTION_PARTS if stack == "decoder" else LAYER_PARTS)
        return {
            f"{stack}.layers.{layer}.{part}.{kind}": self.read(f"{stack}.layers.{layer}.{source_part}.{kind}")
            if key_bias or kind == "weight" or not part.endswith(".key")
            else self.read_zeros(f"{stack}.layers.{layer}.{source_part}.weight")
            for layer in range(num_layers)
            for source_part, part in parts.items()
            for kind in ("weight", "bias")
        }

    def read_zeros(self, name: str) -> TensorStream:
        """Return a vector of zeros with one for each row of a tensor."""
        tensor = self.get(self.prefix + name)
        return self.builder.concat([cast(np.zeros(len(tensor), np.float32), tensor.dtype)])

    def read_norm(self, stack: str) -> dict[str, TensorStream]:
        """Return the weights of the layer normalization behind the last layer."""
        return {f"{stack}.norm.{kind}": self.read(f"{stack}.layer_norm.{kind}") for kind in ("weight", "bias")}

    def read_bart_embeddings(self, order: VocabularyOrder, dtype: np.dtype[Any]) -> dict[str, TensorStream]:
        """Return the positions, the layer normalizations of the embeddings, and the output bias of BART and mBART."""
        weights = self.read_learned_positions(BART_POSITION_OFFSET) | {"output_bias": self.read_output_bias(order, dtype)}
        return weights | {
            f"{stack}.embedding.norm.{kind}": self.read(f"{stack}.layernorm_embedding.{kind}")
            for stack in ("encoder", "decoder")
            for kind in ("weight", "bias")
        }

    def read_learned_positions(self, offset: int, *, may_differ: bool = False) -> dict[str, TensorStream]:
        """Return the learned positions of both stacks in float32, because dragoman multiplies them by √d.

        offset: row of the first position
        may_differ: the stacks may have tables of different lengths

        Raises DataError for a damaged table, and BundleError for tables of two lengths.
        """
        names = {stack: f"{self.prefix}{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
        tables = {stack: self.get(name) for stack, name in names.items()}
        if any(
            table.ndim != 2 or len(table) <= offset or not table.size or not is_floating_point(table)
            for table in tables.values()
        ):
            raise damaged(self.tensors.location, "its learned positions are not a matrix")
        if len(tables["encoder"]) != len(tables["decoder"]) and not may_differ:
            raise BundleError(
                f"{self.tensors.location}: has {len(tables['encoder']) - offset} positions in the encoder and "
                f"{len(tables['decoder']) - offset} in the decoder; dragoman has one number for both stacks, so this "
                "model cannot be converted",
                code="conversion-unsupported",
            )
        return {
            f"{stack}.embedding.positions.weight": self.builder.concat([widen(table[offset:])], scale=table.shape[1] ** -0.5)
            for stack, table in tables.items()
        }

    def read_output_bias(self, order: VocabularyOrder, dtype: np.dtype[Any]) -> TensorStream:
        """Return the stream of `final_logits_bias`, or of zeros without one. Raise DataError if it has another size.

        dtype: type of the zeros
        """
        name = "final_logits_bias"
        bias = self.get(name) if name in self.tensors else None
        # `resize_token_embeddings` of transformers 5 leaves the bias as it is when it fills the embedding up to a multiple.
        num_tokens = order.num_source_rows - order.num_padding_rows
        if bias is not None and bias.size not in (num_tokens, order.num_source_rows):
            raise damaged(
                self.tensors.location,
                f"{name} has {bias.size} values for {num_tokens} tokens and {order.num_source_rows} rows of config.json, so "
                "transformers cannot run the model either; resize the bias with the embedding, and save it again",
            )
        return self.builder.output_bias(bias, order, dtype)

    def read(self, name: str) -> TensorStream:
        """Return the stream of one tensor."""
        return self.builder.concat([self.get(self.prefix + name)])

    def skip_sinusoids(self, name: str, offset: int = 0, *, layout: str = "concatenated") -> None:
        """Raise BundleError if a stored table of positions differs from the sinusoids that dragoman computes.

        Args:
            name: name of the table, which may be missing. (number of positions, D), with or without dimensions of size 1
            offset: row of the first position
            layout: a name of `SINUSOIDS`
        """
        name = self.prefix + name
        self.tensors.used.add(name)
        if name not in self.tensors:
            return
        table_PD = self.tensors[name].squeeze()
        is_table = table_PD.ndim == 2 and table_PD.shape[1] % 2 == 0 and is_floating_point(table_PD)
        if not is_table or not np.allclose(
            widen(table_PD[offset:]), SINUSOIDS[layout](*table_PD.shape)[offset:], rtol=0.0, atol=POSITION_TOLERANCE
        ):
            raise BundleError(
                f"{self.tensors.location}: {name} holds other positions than the sinusoids of {self.family}; this model cannot "
                "be converted",
                code="conversion-unsupported",
            )

    def are_equal(self, first: Array, second: Array) -> bool:
        """Return whether two tensors have the same values. They are compared part by part."""
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        step = max(1, CHUNK_VALUES // max(1, first.size // max(1, len(first))))
        for start in range(0, len(first), step):
            rows = slice(start, start + step)
            if not np.array_equal(widen(first[rows]), widen(second[rows])):
                return False
            self.tensors.release()
        return True

    def check_all_used(self) -> None:
        """Raise BundleError if the source has a tensor that was not read."""
        self.tensors.check_all_used(self.family)

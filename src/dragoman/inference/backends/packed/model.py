"""A trained model that is packed for decoding on a processor. It computes the same function in fewer and larger operations.

The differences from the training model: weights are packed once (`matmul`), and include scales. Queries, keys and values are
one product. Keys and values stay where they were written (`kv_cache`). No layer is a module.

Rows are in order of time first, then hypothesis, then sentence. So all heads of all sentences are one batch of matrices
without a copy.

    M rows    R hypotheses of a sentence    C stored sentences    Y heads of all sentences (C·H)    W slots or positions
    X keys and values of one head, side by side (K + U)    other dimensions as in `dragoman.model`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.interface import StepFn
from dragoman.inference.backends.packed.cached_attention import attend
from dragoman.inference.backends.packed.embedding import InferenceEmbedding
from dragoman.inference.backends.packed.kv_cache import MASKED_BIAS, PackedState
from dragoman.inference.backends.packed.matmul import PackedMatMul, pack_matmul
from dragoman.inference.backends.protocol import Precision
from dragoman.model.attention import KeyValue
from dragoman.model.linear import round_up_rows
from dragoman.model.masks import padding_mask, windowed_padding_mask
from dragoman.model.pointer import PointerState, WordTables
from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import InferenceModel
from dragoman.tasks.torch_models import build_torch_inference_model, get_max_positions

NormFn = Callable[[Tensor], Tensor]
KVUpdateFn = Callable[[KeyValue], KeyValue]
"""(keys and values of the current positions (Y, T, ·)) → the keys and values to attend to (Y, W, ·)"""


@dataclass(frozen=True)
class ResidualNorms:
    """Normalizations before and after one sub-layer; one of them is the identity."""

    pre_norm: NormFn
    post_norm: NormFn


@dataclass(frozen=True)
class PackedAttention:
    """Attention of one layer, with one product for several projections.

    qkv: queries, keys and values of each head side by side; only queries in cross-attention
    kv: keys and values of each head side by side; None in self-attention
    key_width: K
    """

    qkv: PackedMatMul
    kv: PackedMatMul | None
    output: PackedMatMul
    num_heads: int
    key_width: int

    def attend_self(
        self, x_MD: Tensor, update_kv: KVUpdateFn, bias: Tensor | None, num_sentences: int, num_positions: int
    ) -> Tensor:
        """Return the self-attention output (M, H·U), before the output projection."""
        qkv_YTX = self._split_heads(self.qkv(x_MD), num_sentences, num_positions)
        width = self.key_width
        key_YTK, value_YTU = qkv_YTX[:, :, width : 2 * width], qkv_YTX[:, :, 2 * width :]
        output_TYU = attend(qkv_YTX[:, :, :width], update_kv(KeyValue(key_YTK, value_YTU)), bias)
        output_MX = output_TYU.reshape(num_positions * num_sentences, -1)
        num_padding_rows = x_MD.shape[0] - output_MX.shape[0]
        return F.pad(output_MX, (0, 0, 0, num_padding_rows)) if num_padding_rows else output_MX

    def attend_cross(self, x_MD: Tensor, cross_kv: KeyValue, bias: Tensor | None, num_sentences: int) -> Tensor:
        """Return the cross-attention output (M, H·U), before the output projection."""
        num_positions = x_MD.shape[0] // num_sentences
        return attend(self._split_heads(self.qkv(x_MD), num_sentences, num_positions), cross_kv, bias).reshape(
            x_MD.shape[0], -1
        )

    def project_kv(self, x_MD: Tensor, num_sentences: int, num_positions: int) -> KeyValue:
        """Return the keys and values of the source (Y, S, ·) for cross-attention."""
        assert self.kv is not None
        kv_YSX = self._split_heads(self.kv(x_MD), num_sentences, num_positions)
        return KeyValue(kv_YSX[:, :, : self.key_width], kv_YSX[:, :, self.key_width :])

    def _split_heads(self, x_MX: Tensor, num_sentences: int, num_positions: int) -> Tensor:
        """Return all heads of all sentences as one batch (Y, T, ·), without padding rows."""
        rows = num_positions * num_sentences
        valid_MX = x_MX if rows == x_MX.shape[0] else x_MX[:rows]
        return valid_MX.view(num_positions, num_sentences * self.num_heads, -1).transpose(0, 1)


@dataclass(frozen=True)
class PackedLayer:
    """Layer of either stack. Only a decoder layer has cross-attention.

    activate: activation of the feed-forward network; None if it is the ReLU, which is a part of the product `inner`
    """

    attention: PackedAttention
    attention_residual: ResidualNorms
    cross_attention: PackedAttention | None
    cross_attention_residual: ResidualNorms | None
    inner: PackedMatMul
    activate: Callable[[Tensor], Tensor] | None
    outer: PackedMatMul
    feed_forward_residual: ResidualNorms

    def apply_self_attention(
        self, x_MD: Tensor, update_kv: KVUpdateFn, bias: Tensor | None, num_sentences: int, num_positions: int
    ) -> Tensor:
        residual = self.attention_residual
        output_MX = self.attention.attend_self(residual.pre_norm(x_MD), update_kv, bias, num_sentences, num_positions)
        return residual.post_norm(self.attention.output.add_to(x_MD, output_MX))

    def apply_cross_attention(self, x_MD: Tensor, cross_kv: KeyValue, bias: Tensor | None, num_sentences: int) -> Tensor:
        assert self.cross_attention is not None
        assert self.cross_attention_residual is not None
        residual = self.cross_attention_residual
        output_MX = self.cross_attention.attend_cross(residual.pre_norm(x_MD), cross_kv, bias, num_sentences)
        return residual.post_norm(self.cross_attention.output.add_to(x_MD, output_MX))

    def feed_forward(self, x_MD: Tensor) -> Tensor:
        residual = self.feed_forward_residual
        inner_MF = self.inner(residual.pre_norm(x_MD))
        if self.activate is not None:
            inner_MF = self.activate(inner_MF)
        return residual.post_norm(self.outer.add_to(x_MD, inner_MF))


@dataclass(frozen=True)
class PackedStack:
    """Embedding, layers and final normalization of the encoder or the decoder."""

    embedding: InferenceEmbedding
    layers: tuple[PackedLayer, ...]
    norm: NormFn
    window: int | None


@dataclass(frozen=True)
class PackedPointer:
    """Pointer that adds the source's next word to the decoder's input, as `dragoman.model.pointer.Pointer` does.

    shifts_V: 1 for a target token that consumes a word
    """

    word_tables: WordTables
    shifts_V: Tensor
    projection: PackedMatMul

    def start(self, memory_MD: Tensor, source_BS: Tensor, num_stored: int) -> PointerState:
        """Return the state before the first token. memory_MD: the encoder's output, by position and then by stored sentence."""
        row_B1 = torch.arange(len(source_BS))[:, None]
        rows_BW = self.word_tables.find_word_starts(source_BS) * num_stored + row_B1
        return PointerState(self.projection(memory_MD).index_select(0, rows_BW.flatten()).view(*rows_BW.shape, -1))

    def __call__(self, tokens_N: Tensor, pointer_state: PointerState) -> tuple[Tensor, PointerState]:
        """Return the vectors (N, D) to add to the decoder's inputs, and the state after these tokens."""
        count_N = self.shifts_V.index_select(0, tokens_N)
        if pointer_state.num_words_N is not None:
            count_N = count_N + pointer_state.num_words_N
        sentences, width, _ = pointer_state.vectors_BWD.shape
        offset_B1 = torch.arange(0, sentences * width, width)[:, None]
        position_N = (count_N.clamp(max=width - 1).view(sentences, -1) + offset_B1).flatten()
        return pointer_state.vectors_BWD.flatten(0, 1).index_select(0, position_N), replace(pointer_state, num_words_N=count_N)


@dataclass(frozen=True)
class PackedTransformer:
    """Packed model with the interface of `dragoman.model.transformer.Transformer`, for inference only.

    Several threads may use it at once.

    pointer: pointer of a parser; None in other models
    precision: format of the packed weights; float32 keeps attention in float32 too
    trained_model: the model that was packed
    """

    encoder: PackedStack
    decoder: PackedStack
    output: PackedMatMul
    pointer: PackedPointer | None
    precision: Precision
    trained_model: Transformer

    def start(self, source_BS: Tensor) -> PackedState:
        """Encode the sources, padded on the right, and return the state before the first target token."""
        num_sources, num_heads = len(source_BS), self.decoder.layers[0].attention.num_heads
        num_stored = round_up_rows(num_sources)
        if num_stored > num_sources:
            source_BS = torch.cat([source_BS, source_BS[-1:].expand(num_stored - num_sources, -1)])
        token_mask_BS = source_BS != self.encoder.embedding.padding_id
        memory_MD = self._encode(source_BS, token_mask_BS)
        layers = [cast(PackedAttention, layer.cross_attention) for layer in self.decoder.layers]
        cross_kv = tuple(attention.project_kv(memory_MD, num_stored, source_BS.shape[1]) for attention in layers)
        bias = None if bool(token_mask_BS.all()) else _to_additive_bias(padding_mask(token_mask_BS), num_heads)
        pointer_state = None if self.pointer is None else self.pointer.start(memory_MD, source_BS[:num_sources], num_stored)
        active_B = torch.arange(num_sources) if num_stored > num_sources else None
        return PackedState(cross_kv, bias, num_stored, active_B=active_B, pointer=pointer_state)

    def _encode(self, source_BS: Tensor, token_mask_BS: Tensor) -> Tensor:
        """Return the encoder's output (S·B, D), with padding rows behind it."""
        bias = None
        num_heads = self.encoder.layers[0].attention.num_heads
        if self.encoder.window is not None:
            bias = _to_additive_bias(windowed_padding_mask(token_mask_BS, self.encoder.window), num_heads)
        elif not bool(token_mask_BS.all()):
            bias = _to_additive_bias(padding_mask(token_mask_BS), num_heads)
        x_MD = self.encoder.embedding(source_BS.t(), 0)
        x_MD = F.pad(x_MD, (0, 0, 0, round_up_rows(len(x_MD)) - len(x_MD)))
        for layer in self.encoder.layers:
            x_MD = layer.apply_self_attention(x_MD, _identity_kv, bias, *source_BS.shape)
            x_MD = layer.feed_forward(x_MD)
        return self.encoder.norm(x_MD)

    def step(self, tokens_N: Tensor, state: PackedState) -> tuple[Tensor, PackedState]:
        """Read one target token in each row, and return the logits (N, V) of the next token and the next state."""
        beam_size = len(tokens_N) // state.num_active
        state = self.prepare_step(state, beam_size)
        rows_N, pointer_state = state.active_rows(), None
        x_ND = self.decoder.embedding(tokens_N[None], state.length)
        if self.pointer is not None and state.pointer is not None:
            added_ND, pointer_state = self.pointer(tokens_N, state.pointer)
            x_ND = x_ND.add_(added_ND)
        outputs_ND, state = self.run_decoder(x_ND, rows_N, state)
        return self.output(outputs_ND)[: len(tokens_N)], replace(state, pointer=pointer_state)

    def prepare_step(self, state: PackedState, beam_size: int) -> PackedState:
        """Return the state with free slots for the next step; the first one allocates them."""
        if state.self_kv is None:
            state = state.allocate(
                beam_size, float32_attention=self.precision == "float32", track_positions=self.decoder.window is not None
            )
        return state.prepare_step(self.decoder.window)

    def run_decoder(self, x_ND: Tensor, rows_N: Tensor | None, state: PackedState) -> tuple[Tensor, PackedState]:
        """Return the decoder's outputs for embedded tokens, sentence by sentence, with padding rows, and the next state.

        rows_N: indices of the tokens' rows among the stored rows; None if these are all rows
        """
        assert state.ancestors_CRW is not None
        beam_size = state.ancestors_CRW.shape[1]
        slots = slice(state.num_used_slots, state.num_used_slots + beam_size)
        x_ND = self.run_layers(self.decoder, 0, x_ND, rows_N, state, slots, state.ancestors_CRW)
        return x_ND, replace(state, num_used_slots=slots.stop, length=state.length + 1)

    def run_layers(
        self,
        stack: PackedStack,
        first: int,
        x_ND: Tensor,
        rows_N: Tensor | None,
        state: PackedState,
        slots: slice,
        bias_CRW: Tensor,
    ) -> Tensor:
        """Return the outputs of a stack for embedded tokens, sentence by sentence, with padding rows.

        first: number of the stack's first layer in the state
        rows_N: as in `run_decoder`
        slots: slots that the tokens write, R for each sentence
        bias_CRW: 0 for the slots that each token attends to, -inf for the others
        """
        assert state.self_kv is not None
        num_stored, memory_bias, beam_size = state.num_stored, state.memory_bias, bias_CRW.shape[1]
        if rows_N is not None:  # inactive sentences have rows of zeros
            x_ND = x_ND.new_zeros(num_stored * beam_size, x_ND.shape[1]).index_copy_(0, rows_N, x_ND)
        x_MD = x_ND.view(num_stored, beam_size, -1).transpose(0, 1).reshape(num_stored * beam_size, -1)
        num_heads = self.decoder.layers[0].attention.num_heads
        bias_YRW = bias_CRW[:, None].expand(-1, num_heads, -1, -1).flatten(0, 1)
        layer_kv = zip(state.self_kv[first:], state.cross_kv[first:], strict=True)
        for layer, (self_kv, cross_kv) in zip(stack.layers, layer_kv, strict=False):

            def write_kv(new_kv: KeyValue, self_kv: KeyValue = self_kv) -> KeyValue:
                self_kv.key[:, slots].copy_(new_kv.key)
                self_kv.value[:, slots].copy_(new_kv.value)
                return self_kv

            x_MD = layer.apply_self_attention(x_MD, write_kv, bias_YRW, num_stored, beam_size)
            x_MD = layer.apply_cross_attention(x_MD, cross_kv, memory_bias, num_stored)
            x_MD = layer.feed_forward(x_MD)
        x_MD = stack.norm(x_MD)
        if beam_size > 1:
            x_MD = x_MD.view(beam_size, num_stored, -1).transpose(0, 1).reshape(len(x_MD), -1)
        if rows_N is not None:
            num_rows = len(rows_N)
            x_MD = x_MD.index_select(0, F.pad(rows_N, (0, min(round_up_rows(num_rows), len(x_MD)) - num_rows)))
        return x_MD

    def build_inference_model(self, vocab_ids_W: NDArray[np.int64] | None = None) -> InferenceModel:
        """Return the inference model. vocab_ids_W: token ids of a restricted output vocabulary"""
        step: StepFn = self.step
        if vocab_ids_W is not None:
            vocab_ids = torch.from_numpy(vocab_ids_W)
            step = lambda tokens_N, state: self.step(vocab_ids[tokens_N], state)  # noqa: E731
        return build_torch_inference_model(self.start, step, torch.device("cpu"), get_max_positions([self.trained_model]))

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> PackedTransformer:
        """Return this model with these output words only."""
        words_W, bias_V = torch.from_numpy(vocab_ids_W), self.trained_model.output_bias
        bias_W = None if bias_V is None else bias_V.detach()[words_W]
        return replace(self, output=pack_matmul(self.trained_model.output.detach()[words_W], bias_W, self.precision))


def _identity_kv(kv: KeyValue) -> KeyValue:
    return kv


def _to_additive_bias(mask: Tensor, num_heads: int) -> Tensor:
    """Return the bias (B·H, T, W) of a mask (B, 1, T, W) that is true for visible keys."""
    bias = torch.zeros(mask.shape).masked_fill_(~mask, MASKED_BIAS)
    return bias.expand(-1, num_heads, -1, -1).flatten(0, 1)

"""The Transformer's forward pass in NumPy and float32, for targets that are given (teacher forcing).

It computes what `dragoman.model.transformer` computes, without PyTorch and from the weights of a bundle. Scores, confidence and
word alignments use it; searches have faster back ends.

    B sentences    S source length    T target length    D model width    H heads    K, U widths of a head's keys and values
    F inner width    V vocabulary    W words    X any leading dimensions
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.activations import ACTIVATIONS, FloatArray, activate, relu, sigmoid
from dragoman.frontends.protocol import Frontend
from dragoman.model_frontends import build_frontend, embed_tokens
from dragoman.model_weights import ModelWeights, Stack, repeat_heads
from dragoman.positions import rotate

IdArray = NDArray[np.int64]
Mask = NDArray[np.bool_]
"""Mask that broadcasts to (B, 1, T, S): true for a key that the query attends to."""

Sublayer = Callable[[FloatArray, str], FloatArray]
"""Function of the input of a sub-layer and of its name."""

MAX_SCORES = 1 << 18
"""Attention scores that are computed at once, 1 MiB, so that they stay in a processor's cache and memory stays bounded."""
MAX_LOGITS = 1 << 22
"""Logits that are computed at once, 16 MiB."""


def attention_weights(
    query_BHTK: FloatArray, key_BHSK: FloatArray, mask: Mask | None, bias_HTS: FloatArray | None = None
) -> FloatArray:
    """Return softmax(Q·Kᵀ/√d_k), the weights of equation 1, perhaps with a bias of positions. → (B, H, T, S)"""
    scores_BHTS: FloatArray = np.matmul(query_BHTK / math.sqrt(query_BHTK.shape[-1]), key_BHSK.swapaxes(-1, -2))
    if bias_HTS is not None:
        scores_BHTS += bias_HTS
    if mask is not None:
        np.copyto(scores_BHTS, -np.inf, where=~mask)
    return softmax(scores_BHTS)


def softmax(scores: FloatArray) -> FloatArray:
    """Return the softmax over the last dimension; the scores are overwritten."""
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return the log-probabilities over the last dimension; the logits are overwritten."""
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits


def layer_norm(x_BTD: FloatArray, weight_D: FloatArray, bias_D: FloatArray, epsilon: float) -> FloatArray:
    """Return (x − mean)/√(variance + ε)·weight + bias over the last dimension."""
    y_BTD: FloatArray = x_BTD - x_BTD.mean(-1, keepdims=True)
    y_BTD /= np.sqrt(np.square(y_BTD).mean(-1, keepdims=True) + epsilon)
    y_BTD *= weight_D
    y_BTD += bias_D
    return y_BTD


def rms_norm(x_BTD: FloatArray, weight_D: FloatArray, epsilon: float) -> FloatArray:
    """Return x/√(mean of x² + ε)·weight over the last dimension."""
    y_BTD: FloatArray = x_BTD / np.sqrt(np.square(x_BTD).mean(-1, keepdims=True) + epsilon)
    y_BTD *= weight_D
    return y_BTD


@dataclass(frozen=True)
class NumpyTransformer:
    """Forward pass of a Transformer with the paper's layers. Sources and targets are padded on the right.

    max_scores: attention scores that are computed at once
    """

    weights: ModelWeights
    max_scores: int = MAX_SCORES

    is_autoregressive = True

    @cached_property
    def _arrays(self) -> Mapping[str, FloatArray]:
        """All weights in float32, which each batch reads."""
        return dict(self.weights.arrays)

    @cached_property
    def frontend(self) -> Frontend[NDArray[Any]]:
        """First part of the encoder."""
        return build_frontend(self.weights)

    def encode(self, source: NDArray[Any]) -> FloatArray:
        """Return the memory: the encodings of what the frontend reads, such as ids (B, S) (section 3.1). → (B, S, D)"""
        x_BSD = self._add_positions(self.frontend.embed(source), "encoder")
        num_positions = x_BSD.shape[1]
        mask, bias_HSS = self._build_source_mask(source, num_positions), self._build_relative_bias("encoder", num_positions)
        rotation_SK = self.weights.compute_rotations(num_positions)
        for index in range(self.weights.config.encoder_layers):
            layer = f"encoder.layers.{index}"
            x_BSD = self._add_and_norm(
                x_BSD, f"{layer}.attention", lambda y, name: self._attend(y, y, mask, name, bias_HSS, rotation_SK)
            )
            x_BSD = self._add_and_norm(x_BSD, f"{layer}.feed_forward", self._feed_forward)
        return self._final_norm(x_BSD, "encoder")

    def decode(
        self,
        inputs_BT: IdArray,
        memory_BSD: FloatArray,
        source: NDArray[Any],
        *,
        cross_weights: list[FloatArray] | None = None,
    ) -> FloatArray:
        """Return the decoder's output after each input; the inputs begin with the start token. → (B, T, D)

        cross_weights: receives the cross-attention weights (B, H, T, S) of each layer
        """
        mask, memory_mask = self._build_target_mask(inputs_BT.shape[1]), self._build_padding_mask(source)
        bias_HTT = self._build_relative_bias("decoder", inputs_BT.shape[1])
        rotation_TK = self.weights.compute_rotations(inputs_BT.shape[1])
        x_BTD = self._add_positions(embed_tokens(self.weights, "decoder", inputs_BT), "decoder")
        if self.weights.config.pointer and self.weights.word_id is not None:
            x_BTD += self._point_to_words(inputs_BT, memory_BSD, source)
        for index in range(self.weights.config.decoder_layers):
            layer = f"decoder.layers.{index}"
            attend: Sublayer = lambda y, name: self._attend(y, y, mask, name, bias_HTT, rotation_TK)  # noqa: E731
            first = self._run_ssru if self.weights.config.has_ssru else attend
            x_BTD = self._add_and_norm(x_BTD, f"{layer}.attention", first)
            x_BTD = self._add_and_norm(
                x_BTD,
                f"{layer}.cross_attention",
                lambda y, name: self._attend(y, memory_BSD, memory_mask, name, record=cross_weights),
            )
            x_BTD = self._add_and_norm(x_BTD, f"{layer}.feed_forward", self._feed_forward)
        return self._final_norm(x_BTD, "decoder")

    def compute_logits(self, outputs_XD: FloatArray) -> FloatArray:
        """Return the logits of decoder outputs (section 3.4). (X, D) → (X, V)"""
        logits_XV = outputs_XD @ self.weights.output.T
        if self.weights.output_bias is not None:
            logits_XV += self.weights.output_bias
        return logits_XV

    def compute_log_probs(self, source_BS: IdArray, inputs_BT: IdArray, targets_BT: IdArray) -> FloatArray:
        """Return the log-probability of each target token after the inputs before it; 0 for padding. → (B, T)"""
        outputs_BTD = self.decode(inputs_BT, self.encode(source_BS), source_BS)
        is_token_BT = targets_BT != self.weights.padding_id
        outputs_XD, targets_X = outputs_BTD[is_token_BT], targets_BT[is_token_BT]
        block_size = max(MAX_LOGITS // len(self.weights.output), 1)
        log_probs_BT = np.zeros(targets_BT.shape, dtype=np.float32)
        log_probs_BT[is_token_BT] = np.concatenate(
            [
                log_softmax(self.compute_logits(outputs_XD[rows]))[np.arange(len(targets_X[rows])), targets_X[rows]]
                for rows in _split(len(targets_X), block_size)
            ]
        )
        return log_probs_BT

    def compute_cross_attentions(self, source_BS: IdArray, inputs_BT: IdArray) -> FloatArray:
        """Return the cross-attention weights of all decoder layers L. → (B, L, H, T, S)"""
        cross_weights: list[FloatArray] = []
        self.decode(inputs_BT, self.encode(source_BS), source_BS, cross_weights=cross_weights)
        return np.stack(cross_weights, axis=1)

    def compute_tag_log_probs(self, source_BS: IdArray) -> FloatArray:
        """Return the log-probability of each tag of each word, for a parser with a tagger; −∞ for other tokens. → (B, W, V)"""
        words_BWD = self._gather_word_outputs(self.encode(source_BS), source_BS)
        logits_BWV = self._linear(words_BWD, "tagger.projection")
        logits_BWV[:, :, self.weights.get_word_table("shifts_V") == 0] = -np.inf
        return log_softmax(logits_BWV)

    def _add_positions(self, x_BTD: FloatArray, stack: Stack) -> FloatArray:
        """Return the sum of vectors and PE (section 3.5), and its norm in BART. The vectors are overwritten. → (B, T, D)"""
        if (vector_D := self.weights.get_target_space(stack)) is not None:
            x_BTD += vector_D
        x_BTD += self.weights.compute_positions(stack, 0, x_BTD.shape[1])
        return self._norm(x_BTD, f"{stack}.embedding.norm") if self.weights.config.embedding_norm else x_BTD

    def _add_and_norm(self, x_BTD: FloatArray, name: str, sublayer: Sublayer) -> FloatArray:
        """Return LayerNorm(x + Sublayer(x)) (section 3.1), or x + Sublayer(LayerNorm(x)) of later models. → (B, T, D)"""
        if self.weights.config.norm == "pre":
            return x_BTD + sublayer(self._norm(x_BTD, f"{name}_residual.norm"), name)
        return self._norm(x_BTD + sublayer(x_BTD, name), f"{name}_residual.norm")

    def _attend(
        self,
        x_BTD: FloatArray,
        memory_BSD: FloatArray,
        mask: Mask | None,
        name: str,
        bias_HTS: FloatArray | None = None,
        rotation_TK: FloatArray | None = None,
        *,
        record: list[FloatArray] | None = None,
    ) -> FloatArray:
        """Return MultiHead(Q, K, V) = Concat(head₁, …, head_h)·W^O (section 3.2.2). → (B, T, D)

        bias_HTS: bias of relative positions
        rotation_TK: sines and cosines of rotary positions
        record: receives the attention weights
        """
        query_BHTK = self._split_heads(self._linear(x_BTD, f"{name}.query"))
        key_BHSK, value_BHSU = (
            self._split_heads(repeat_heads(self._linear(memory_BSD, f"{name}.{part}"), self.weights.config, axis=2))
            for part in ("key", "value")
        )
        if rotation_TK is not None:
            query_BHTK, key_BHSK = rotate(query_BHTK, rotation_TK), rotate(key_BHSK, rotation_TK)
        batch, heads, length = query_BHTK.shape[:3]
        heads_BTHU = np.empty((batch, length, heads, value_BHSU.shape[-1]), dtype=np.float32)
        weights_BHTS = None if record is None else np.empty((batch, heads, length, key_BHSK.shape[2]), dtype=np.float32)
        for rows, queries in _split_scores(batch, length, heads * key_BHSK.shape[2], self.max_scores):
            block_mask = None if mask is None else mask[rows if len(mask) > 1 else slice(None)]
            if block_mask is not None and block_mask.shape[2] > 1:
                block_mask = block_mask[:, :, queries]
            block_bias = None if bias_HTS is None else bias_HTS[:, queries]
            block_BHTS = attention_weights(query_BHTK[rows, :, queries], key_BHSK[rows], block_mask, block_bias)
            np.matmul(block_BHTS, value_BHSU[rows], out=heads_BTHU[rows, queries].swapaxes(1, 2))
            if weights_BHTS is not None:
                weights_BHTS[rows, :, queries] = block_BHTS
        if record is not None and weights_BHTS is not None:
            record.append(weights_BHTS)
        return self._linear(heads_BTHU.reshape(batch, length, -1), f"{name}.output")

    def _run_ssru(self, x_BTD: FloatArray, name: str) -> FloatArray:
        """Return ReLU(c) with c_t = f_t ∘ c_{t−1} + (1 − f_t) ∘ W·x_t and f = σ(W_f·x + b_f) (Kim et al. 2019). → (B, T, D)"""
        forget_BTD = sigmoid(self._linear(x_BTD, f"{name}.forget"))
        cells_BTD = (1 - forget_BTD) * self._linear(x_BTD, f"{name}.candidate")
        for position in range(1, cells_BTD.shape[1]):
            cells_BTD[:, position] += forget_BTD[:, position] * cells_BTD[:, position - 1]
        return relu(cells_BTD)

    def _split_heads(self, x_BTX: FloatArray) -> FloatArray:
        """Return x with one dimension for the heads. → (B, H, T, X / H)"""
        return x_BTX.reshape(*x_BTX.shape[:2], self.weights.config.num_heads, -1).swapaxes(1, 2)

    def _feed_forward(self, x_BTD: FloatArray, name: str) -> FloatArray:
        """Return FFN(x) = max(0, x·W₁ + b₁)·W₂ + b₂ (equation 2), or with another activation, or with a gate. → (B, T, D)"""
        first = "gate" if self.weights.config.is_gated else "inner"
        y_BTF = activate(self._linear(x_BTD, f"{name}.{first}"), ACTIVATIONS[self.weights.config.activation])
        if self.weights.config.is_gated:
            y_BTF *= self._linear(x_BTD, f"{name}.inner")
        return self._linear(y_BTF, f"{name}.outer")

    def _linear(self, x_BTD: FloatArray, name: str) -> FloatArray:
        """Return x·Wᵀ + b. → (B, T, outputs)"""
        arrays = self._arrays
        weight_OD, bias_O = arrays[f"{name}.weight"], arrays.get(f"{name}.bias")
        y_XO = x_BTD.reshape(-1, x_BTD.shape[-1]) @ weight_OD.T
        if bias_O is not None:
            y_XO += bias_O
        return y_XO.reshape(*x_BTD.shape[:-1], len(weight_OD))

    def _norm(self, x_BTD: FloatArray, name: str) -> FloatArray:
        arrays, config = self._arrays, self.weights.config
        if config.norm_type == "rms":
            return rms_norm(x_BTD, arrays[f"{name}.weight"], config.norm_epsilon)
        return layer_norm(x_BTD, arrays[f"{name}.weight"], arrays[f"{name}.bias"], config.norm_epsilon)

    def _final_norm(self, x_BTD: FloatArray, stack: Stack) -> FloatArray:
        return self._norm(x_BTD, f"{stack}.norm") if self.weights.config.has_final_norm else x_BTD

    # Relative positions and masks

    def _build_relative_bias(self, stack: Stack, length: int) -> FloatArray | None:
        """Return what the scores of self-attention add, or None without relative positions. → (H, length, length)"""
        if (bias_DH := self.weights.compute_relative_bias(stack)) is None:
            return None
        limit = len(bias_DH) // 2
        return bias_DH.T[:, np.clip(-_compute_distances(length), -limit, limit) + limit]

    def _build_padding_mask(self, source: NDArray[Any]) -> Mask | None:
        """Return the mask that hides padding, or None without padding. → (B, 1, 1, S)"""
        is_token_BS = self.frontend.find_inputs(source)
        return None if is_token_BS.all() else is_token_BS[:, None, None, :]

    def _build_source_mask(self, source: NDArray[Any], num_positions: int) -> Mask | None:
        """Return which positions each source position attends to: all tokens, or those within the window.

        With a window, padding attends to itself, so that no row of the mask is empty.
        """
        padding_mask, radius = self._build_padding_mask(source), self.weights.config.attention_window
        if radius is None:
            return padding_mask
        distance_SS = _compute_distances(num_positions)
        in_window_SS = np.abs(distance_SS) <= radius
        return in_window_SS[None, None] if padding_mask is None else padding_mask & in_window_SS | (distance_SS == 0)

    def _build_target_mask(self, length: int) -> Mask:
        """Return which positions each target position attends to: those before it and itself (section 3.2.3). → (1, 1, T, T)"""
        distance_TT, radius = _compute_distances(length), self.weights.config.attention_window
        return ((distance_TT >= 0) & (distance_TT <= (length if radius is None else radius)))[None, None]

    # Words of a parser's source, see `dragoman.model.pointer`

    def _point_to_words(self, inputs_BT: IdArray, memory_BSD: FloatArray, source_BS: IdArray) -> FloatArray:
        """Return what a parser's pointer adds to each input: a projection of the encoder's output at the next word."""
        words_BWD = self._linear(self._gather_word_outputs(memory_BSD, source_BS), "decoder.pointer.projection")
        num_words_BT = self.weights.get_word_table("shifts_V")[inputs_BT].astype(np.int64).cumsum(1)
        return np.take_along_axis(words_BWD, np.minimum(num_words_BT, words_BWD.shape[1] - 1)[:, :, None], axis=1)

    def _gather_word_outputs(self, memory_BSD: FloatArray, source_BS: IdArray) -> FloatArray:
        """Return the encoder's output at the first piece of each word, then at the end token. → (B, W, D) for W = S"""
        is_start_BS = self.weights.get_word_table("begins_V")[source_BS] > 0
        position_BW = np.repeat((source_BS != self.weights.padding_id).sum(1, keepdims=True) - 1, source_BS.shape[1], axis=1)
        sentence_X, start_X = np.nonzero(is_start_BS)
        position_BW[sentence_X, is_start_BS.cumsum(1)[is_start_BS] - 1] = start_X
        return np.take_along_axis(memory_BSD, position_BW[:, :, None], axis=1)


def _compute_distances(length: int) -> NDArray[np.int64]:
    """Return the number of positions from each key to each query. → (length, length)"""
    return np.arange(length)[:, None] - np.arange(length)


def _split(length: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` that cover `length`."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _split_scores(batch: int, length: int, row_size: int, max_scores: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of sentences and of queries with at most `max_scores` scores, or one query. row_size: scores of a query"""
    for rows in _split(batch, max(max_scores // (row_size * length), 1)):
        for queries in _split(length, max(max_scores // row_size, 1)):
            yield rows, queries

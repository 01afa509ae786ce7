"""The Transformer (Figure 1): embeddings, encoder, decoder, and the decoder's state between steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from dragoman.errors import refuse_steps
from dragoman.frontends.protocol import Frontend
from dragoman.model.attention import KeyValue
from dragoman.model.dropout import Dropout
from dragoman.model.layers import DecoderLayer, SelfState
from dragoman.model.linear import Linear, MatMul, torch_matmul
from dragoman.model.local_attention import LocalMask, Mask, build_mask, is_long
from dragoman.model.masks import causal_mask, padding_mask, window_mask
from dragoman.model.pointer import Pointer, PointerState, TagHead, WordTables
from dragoman.model.positional_encoding import (
    LearnedPositionalEmbedding,
    NoPositionalEmbedding,
    SinusoidalPositionalEmbedding,
)
from dragoman.model.relative_positions import RelativePositionBias


class Embedding(nn.Module):
    """Dropout(√d_model · E[ids] + PE) (sections 3.4, 3.5 and 5.4); the vector of padding is zero.

    norm: normalization of the sum, as in BART; the identity in the paper
    """

    def __init__(
        self,
        *,
        weight: nn.Parameter,
        positions: SinusoidalPositionalEmbedding | LearnedPositionalEmbedding | NoPositionalEmbedding,
        scale_embeddings: bool,
        dropout: float,
        padding_id: int,
        norm: nn.Module,
        target_space_embedding: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.positions = positions
        self.scale = math.sqrt(weight.shape[1]) if scale_embeddings else 1.0
        self.dropout = Dropout(dropout)
        self.padding_id = padding_id
        self.norm = norm
        self.target_space_embedding = target_space_embedding

    def forward(self, ids_BT: Tensor, start: int = 0) -> Tensor:
        """Return the inputs of the first layer for tokens at positions start, start + 1, …. → (B, T, D)"""
        return self.add_positions(self.embed(ids_BT), start)

    @property
    def numbers_per_vector(self) -> int:
        """Return 1: a token has one id and one vector."""
        return 1

    def embed(self, ids_BT: Tensor) -> Tensor:
        """Return the vectors of tokens: the front end of text. → (B, T, D)"""
        scale_BT = (ids_BT != self.padding_id).to(self.weight.dtype) * self.scale
        x_BTD = nn.functional.embedding(ids_BT, self.weight) * scale_BT[:, :, None]
        return x_BTD if self.target_space_embedding is None else x_BTD + self.target_space_embedding

    def find_inputs(self, ids_BT: Tensor) -> Tensor:
        """Return which tokens are no padding. → (B, T)"""
        return ids_BT != self.padding_id

    def add_positions(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        """Return the inputs of the first layer for vectors at positions start, start + 1, …. → (B, T, D)"""
        return cast(Tensor, self.dropout(self.norm(x_BTD + self.positions(start, x_BTD.shape[1]))))


@dataclass(frozen=True)
class DecoderState:
    """Keys and values of the source, and the record of the output so far.

    cross_kv: keys and values of the source for each layer, one row a sentence (B, H, S, ·)
    memory_mask: true for source tokens, false for padding (B, 1, 1, S)
    self_kv: keys and values of the output so far for each layer, one row a hypothesis (N, H, T, ·); None before the first step.
        With a window of r, those of the last r positions. An SSRU has its cells in their place (N, D)
    length: T, the number of tokens so far
    pointer: position of each hypothesis in the words of the source; None in a model without a pointer
    """

    cross_kv: tuple[KeyValue, ...]
    memory_mask: Tensor
    self_kv: tuple[SelfState, ...] | None
    length: int
    pointer: PointerState | None = None

    def reorder(self, rows_N: Tensor) -> DecoderState:
        """Return the state in which row i is the former row rows_N[i]; rows stay within their sentence."""
        self_kv = self.self_kv and tuple(layer_kv.select(rows_N) for layer_kv in self.self_kv)
        return replace(self, self_kv=self_kv, pointer=self.pointer and self.pointer.reorder(rows_N))

    def select_sentences(self, sentences_B: Tensor) -> DecoderState:
        """Return the state of these sentences alone, with all their rows."""
        self_kv = self.self_kv
        if self_kv is not None:
            beam_size = self_kv[0].num_rows // self.memory_mask.shape[0]
            rows_N = (sentences_B[:, None] * beam_size + torch.arange(beam_size, device=sentences_B.device)).flatten()
            self_kv = tuple(layer_kv.select(rows_N) for layer_kv in self_kv)
        cross_kv = tuple(layer_kv.select(sentences_B) for layer_kv in self.cross_kv)
        pointer = self.pointer and self.pointer.select_sentences(sentences_B)
        return DecoderState(cross_kv, self.memory_mask.index_select(0, sentences_B), self_kv, self.length, pointer)


class Encoder(nn.Module):
    """Stack of encoder layers over the source (section 3.1).

    embedding: has the positions, the dropout and the normalization of all sources, and the vectors of text
    frontend: front end of other sources than text
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[nn.Module],
        norm: nn.Module,
        window: int | None,
        relative_positions: RelativePositionBias | None = None,
        rotary_positions: SinusoidalPositionalEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.frontend: Frontend[Tensor] | None = None
        self.relative_positions = relative_positions
        self.rotary_positions = rotary_positions
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.window = window

    @property
    def source_frontend(self) -> Frontend[Tensor]:
        """Return the function from sources to vectors."""
        return self.frontend or self.embedding

    def forward(self, source_BS: Tensor) -> Tensor:
        """Return the memory: the encodings of sources, which are padded on the right. → (B, S, D)"""
        x_BSD = self.embedding.add_positions(self.source_frontend.embed(source_BS))
        mask = self._build_mask(self.source_frontend.find_inputs(source_BS))
        rotation_SK = None if self.rotary_positions is None else self.rotary_positions(0, x_BSD.shape[1])
        for layer in self.layers:
            x_BSD = layer(x_BSD, mask, rotation_SK)
        return cast(Tensor, self.norm(x_BSD))

    def _build_mask(self, inputs_BS: Tensor) -> Mask:
        """Return which positions each position attends to: all that are no padding, or those of them within the window.

        With relative positions, it is what the scores of each position add.
        """
        mask, length = build_mask(inputs_BS, self.window), inputs_BS.shape[1]
        if self.relative_positions is None:
            return mask
        if isinstance(mask, LocalMask):
            mask = mask.to_tensor(length, inputs_BS.device)
        return self.relative_positions.add_to_mask(mask, length, length)


class Decoder(nn.Module):
    """Stack of decoder layers over the target and the memory (section 3.1), with an optional pointer to the next word.

    is_autoregressive: whether the decoder predicts token by token; another decoder has a method `search` in place of steps
    """

    is_autoregressive: ClassVar[bool] = True

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[nn.Module],
        norm: nn.Module,
        window: int | None,
        relative_positions: RelativePositionBias | None = None,
        rotary_positions: SinusoidalPositionalEmbedding | None = None,
        pointer: Pointer | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.relative_positions = relative_positions
        self.rotary_positions = rotary_positions
        self.pointer = pointer
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.window = window

    def start(self, memory_BSD: Tensor, inputs_BS: Tensor, source_BS: Tensor) -> DecoderState:
        """Return the state before the first token, with the keys and values of the memory for each layer.

        inputs_BS: which vectors of the memory are no padding
        source_BS: token ids for a pointer
        """
        cross_kv = tuple(cast(DecoderLayer, layer).cross_attention.project_kv(memory_BSD) for layer in self.layers)
        pointer = None if self.pointer is None else self.pointer.start(memory_BSD, source_BS)
        return DecoderState(cross_kv, padding_mask(inputs_BS), None, 0, pointer)

    def forward(self, inputs_NT: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return the outputs of T more tokens (N, T, D), and the state after them."""
        length = inputs_NT.shape[1]
        past = state.self_kv or (None,) * len(self.layers)
        mask = self._build_mask(length, 0 if past[0] is None else past[0].num_positions, inputs_NT.device)
        rotation_TK = None if self.rotary_positions is None else self.rotary_positions(state.length, length)
        x_NTD, pointer = self.embedding(inputs_NT, start=state.length), state.pointer
        if self.pointer is not None and pointer is not None:
            word_NTD, pointer = self.pointer(inputs_NT, pointer)
            x_NTD = x_NTD + word_NTD
        self_kv: list[SelfState] = []
        for layer, past_kv, cross_kv in zip(self.layers, past, state.cross_kv, strict=True):
            x_NTD, layer_kv = layer(x_NTD, past_kv, cross_kv, mask, state.memory_mask, rotation_TK)
            self_kv.append(layer_kv if self.window is None else layer_kv.tail(self.window))
        return self.norm(x_NTD), replace(state, self_kv=tuple(self_kv), length=state.length + length, pointer=pointer)

    def _build_mask(self, length: int, past_length: int, device: torch.device) -> Mask:
        """Return which of the past and new positions each of `length` new positions attends to; see `Encoder`."""
        if self.window is not None and self.relative_positions is None and not past_length and is_long(length, self.window):
            return LocalMask(self.window, is_causal=True)
        mask = causal_mask(length, past_length + length, device=device)
        if self.window is not None:
            mask = mask & window_mask(length, past_length + length, self.window, device=device)
        if self.relative_positions is None:
            return mask
        return self.relative_positions.add_to_mask(mask, length, past_length + length)


class Transformer(nn.Module):
    """Encoder, decoder and the output matrix before the softmax (section 3.4).

    output_bias: added to the logits; None as in the paper
    words, tagger: word tables and tag classifier of a parser; None in other models
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        decoder: Decoder,
        output: nn.Parameter,
        output_bias: nn.Parameter | None = None,
        words: WordTables | None = None,
        tagger: TagHead | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output
        self.output_bias = output_bias
        self.words = words
        self.tagger = tagger
        self.matmul: MatMul = torch_matmul

    def forward(self, source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
        """Return the logits after each target input (teacher forcing). The inputs begin with the start token. → (B, T, V)"""
        outputs_BTD, _ = self.decoder(inputs_BT, self.start(source_BS))
        return self.compute_logits(outputs_BTD)

    def start(self, source_BS: Tensor) -> DecoderState:
        """Encode the source and return the state before the first target token."""
        return self.start_decoder(self.encoder(source_BS), source_BS)

    def start_decoder(self, memory_BSD: Tensor, source_BS: Tensor) -> DecoderState:
        """Return the state before the first target token for encoded sources."""
        return self.decoder.start(memory_BSD, self.encoder.source_frontend.find_inputs(source_BS), source_BS)

    def step(self, tokens_N: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read one target token in each row and return the logits of the next token (N, V) and the state after it."""
        outputs_N1D, state = self.decoder(tokens_N[:, None], state)
        return self.compute_logits(outputs_N1D[:, 0]), state

    def compute_logits(self, outputs_XD: Tensor) -> Tensor:
        """Return the logits of decoder outputs. (…, D) → (…, V)"""
        return self.matmul(outputs_XD, self.output, self.output_bias)

    @property
    def is_autoregressive(self) -> bool:
        """Return whether the model predicts token by token."""
        return self.decoder.is_autoregressive

    def num_parameters(self) -> int:
        """Return the number of parameters; a shared matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


def check_predicts_by_steps(model: Transformer, feature: str) -> None:
    """Raise BundleError if the model predicts all tokens at once.

    feature: what needs a prediction token by token, such as "explain"
    """
    if not model.is_autoregressive:
        refuse_steps(feature)


def set_matmul_impl(model: Transformer, matmul: MatMul) -> None:
    """Set the implementation of every matrix product with weights in the model."""
    model.matmul = matmul
    for module in model.modules():
        if isinstance(module, Linear):
            module.matmul = matmul

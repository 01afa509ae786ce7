"""The whole model (Figure 1): embeddings, encoder, decoder, and the state that a decoder carries from step to step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.model.attention import KeyValue
from dragoman.model.dropout import Dropout
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.linear import Linear, MatMul, torch_matmul
from dragoman.model.local_attention import LocalMask, Mask
from dragoman.model.masks import causal_mask, padding_mask, window_mask
from dragoman.model.pointer import Pointer, PointerState, TagHead, WordTables
from dragoman.model.positional_encoding import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding


class Embedding(nn.Module):
    """Token vectors times √d_model (section 3.4) plus positions (3.5), then dropout (5.4). Padding is a zero vector."""

    def __init__(
        self,
        *,
        weight: nn.Parameter,
        positions: SinusoidalPositionalEmbedding | LearnedPositionalEmbedding,
        scale_embeddings: bool,
        dropout: float,
        padding_id: int,
        target_space_embedding: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.positions = positions
        self.scale = math.sqrt(weight.shape[1]) if scale_embeddings else 1.0
        self.dropout = Dropout(dropout)
        self.padding_id = padding_id
        self.target_space_embedding = target_space_embedding

    def forward(self, ids_BT: Tensor, start: int = 0) -> Tensor:
        scale_BT = (ids_BT != self.padding_id).to(self.weight.dtype) * self.scale
        x_BTD = nn.functional.embedding(ids_BT, self.weight) * scale_BT[:, :, None]
        if self.target_space_embedding is not None:
            x_BTD = x_BTD + self.target_space_embedding
        return cast(Tensor, self.dropout(x_BTD + self.positions(start, ids_BT.shape[1])))


@dataclass(frozen=True)
class DecoderState:
    """What a decoder has seen: the source, and its own output so far.

    memory: keys and values of the source, for each layer, one row a sentence (B, H, S, ·)
    memory_mask: (B, 1, 1, S)
    past: keys and values of the output so far, for each layer, one row a hypothesis (N, H, T, ·); none before the first step;
        with a window of r, those of the last r places
    length: T
    pointed: where each hypothesis is in the source's words, in a model that points at them
    """

    cross_kv: tuple[KeyValue, ...]
    memory_mask: Tensor
    self_kv: tuple[KeyValue, ...] | None
    length: int
    pointer: PointerState | None = None

    def reorder(self, rows_N: Tensor) -> DecoderState:
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        self_kv = self.self_kv and tuple(layer.select(rows_N) for layer in self.self_kv)
        return replace(self, self_kv=self_kv, pointer=self.pointer and self.pointer.reorder(rows_N))

    def select_sentences(self, sentences_B: Tensor) -> DecoderState:
        """Only these sentences, with all their rows."""
        self_kv = self.self_kv
        if self_kv is not None:
            beam_size = self_kv[0].key.shape[0] // self.memory_mask.shape[0]
            rows_N = (sentences_B[:, None] * beam_size + torch.arange(beam_size, device=sentences_B.device)).flatten()
            self_kv = tuple(layer.select(rows_N) for layer in self_kv)
        cross_kv = tuple(layer.select(sentences_B) for layer in self.cross_kv)
        pointer = self.pointer and self.pointer.select_sentences(sentences_B)
        return DecoderState(cross_kv, self.memory_mask.index_select(0, sentences_B), self_kv, self.length, pointer)


class Encoder(nn.Module):
    """A stack of layers over the source."""

    def __init__(self, *, embedding: Embedding, layers: Sequence[EncoderLayer], norm: nn.Module, window: int | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.window = window

    def forward(self, source_BS: Tensor) -> Tensor:
        """Source ids, padded on the right → their encodings (B, S, D)."""
        token_mask_BS = source_BS != self.embedding.padding_id
        mask: Mask = padding_mask(token_mask_BS)
        if self.window is not None:
            mask = LocalMask(self.window, token_mask_BS).choose(source_BS.shape[1], device=source_BS.device)
        x_BSD = self.embedding(source_BS)
        for layer in self.layers:
            x_BSD = layer(x_BSD, mask)
        return cast(Tensor, self.norm(x_BSD))


class Decoder(nn.Module):
    """A stack of layers over the target, which looks back at itself and across at the source; it may be shown the next word."""

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        norm: nn.Module,
        window: int | None,
        pointer: Pointer | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.pointer = pointer
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.window = window

    def start(self, memory_BSD: Tensor, source_BS: Tensor) -> DecoderState:
        """The state before the first token: each layer's view of the source, computed once."""
        cross_kv = tuple(cast(DecoderLayer, layer).cross_attention.project_kv(memory_BSD) for layer in self.layers)
        pointer = None if self.pointer is None else self.pointer.start(memory_BSD, source_BS)
        return DecoderState(cross_kv, padding_mask(source_BS != self.embedding.padding_id), None, 0, pointer)

    def forward(self, inputs_NT: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read T more tokens: their outputs (N, T, D) and the state after them."""
        length = inputs_NT.shape[1]
        mask = self._build_mask(length, 0 if state.self_kv is None else state.self_kv[0].key.shape[2], inputs_NT.device)
        x_NTD, pointer = self.embedding(inputs_NT, start=state.length), state.pointer
        if self.pointer is not None and pointer is not None:
            added_NTD, pointer = self.pointer(inputs_NT, pointer)
            x_NTD = x_NTD + added_NTD
        self_kv: list[KeyValue] = []
        for index, layer in enumerate(self.layers):
            past_kv = None if state.self_kv is None else state.self_kv[index]
            x_NTD, layer_kv = layer(x_NTD, past_kv, state.cross_kv[index], mask, state.memory_mask)
            self_kv.append(layer_kv if self.window is None else layer_kv.tail(self.window))
        return self.norm(x_NTD), replace(state, self_kv=tuple(self_kv), length=state.length + length, pointer=pointer)

    def _build_mask(self, length: int, past_length: int, device: torch.device) -> Mask:
        """Which of `before` places and its own each of `length` new ones sees."""
        if self.window is not None and past_length == 0:
            return LocalMask(self.window, causal=True).choose(length, device=device)
        mask = causal_mask(length, past_length + length, device=device)
        if self.window is not None:
            mask = mask & window_mask(length, past_length + length, self.window, device=device)
        return mask


class Transformer(nn.Module):
    """Encoder, decoder and the matrix before the softmax, which has no bias (section 3.4).

    words, tagger: what a parser knows of its words, and what tags them; none in other models
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        decoder: Decoder,
        output: nn.Parameter,
        words: WordTables | None = None,
        tagger: TagHead | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output
        self.words = words
        self.tagger = tagger
        self.matmul: MatMul = torch_matmul

    def forward(self, source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
        """Teacher forcing: the logits (B, T, V) after each of the target inputs, which begin with the start token."""
        outputs_BTD, _ = self.decoder(inputs_BT, self.start(source_BS))
        return self.compute_logits(outputs_BTD)

    def start(self, source_BS: Tensor) -> DecoderState:
        """Read the source: the state before the first target token."""
        return self.decoder.start(self.encoder(source_BS), source_BS)

    def step(self, tokens_N: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read one more target token in each row: the logits (N, V) of the next, and the state after it."""
        outputs_N1D, state = self.decoder(tokens_N[:, None], state)
        return self.compute_logits(outputs_N1D[:, 0]), state

    def compute_logits(self, outputs_XD: Tensor) -> Tensor:
        return self.matmul(outputs_XD, self.output, None)

    def num_parameters(self) -> int:
        """Each shared matrix counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def set_matmul_impl(model: Transformer, matmul: MatMul) -> None:
    """Let the model compute all its products with weights this way."""
    model.matmul = matmul
    for module in model.modules():
        if isinstance(module, Linear):
            module.matmul = matmul

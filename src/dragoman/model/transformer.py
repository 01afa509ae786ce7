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
from dragoman.model.linear import Linear, Product, plain_product
from dragoman.model.local_attention import Mask, Window
from dragoman.model.masks import causal_mask, padding_mask, window_mask
from dragoman.model.pointer import Pointed, Pointer, TagHead, Words
from dragoman.model.positional_encoding import LearnedPositions, Sinusoids


class Embedding(nn.Module):
    """Token vectors times √d_model (section 3.4) plus positions (3.5), then dropout (5.4). Padding is a zero vector."""

    def __init__(
        self,
        *,
        weight: nn.Parameter,
        positions: Sinusoids | LearnedPositions,
        scaled: bool,
        dropout: float,
        padding_id: int,
        extra: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.positions = positions
        self.scale = math.sqrt(weight.shape[1]) if scaled else 1.0
        self.dropout = Dropout(dropout)
        self.padding_id = padding_id
        self.extra = extra

    def forward(self, ids_BT: Tensor, start: int = 0) -> Tensor:
        scale_BT = (ids_BT != self.padding_id).to(self.weight.dtype) * self.scale
        x_BTD = nn.functional.embedding(ids_BT, self.weight) * scale_BT[:, :, None]
        if self.extra is not None:
            x_BTD = x_BTD + self.extra
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

    memory: tuple[KeyValue, ...]
    memory_mask: Tensor
    past: tuple[KeyValue, ...] | None
    length: int
    pointed: Pointed | None = None

    def reorder(self, rows_N: Tensor) -> DecoderState:
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        past = self.past and tuple(layer.rows(rows_N) for layer in self.past)
        return replace(self, past=past, pointed=self.pointed and self.pointed.reorder(rows_N))

    def keep(self, sentences_B: Tensor) -> DecoderState:
        """Only these sentences, with all their rows."""
        past = self.past
        if past is not None:
            width = past[0].key.shape[0] // self.memory_mask.shape[0]
            rows_N = (sentences_B[:, None] * width + torch.arange(width, device=sentences_B.device)).flatten()
            past = tuple(layer.rows(rows_N) for layer in past)
        memory = tuple(layer.rows(sentences_B) for layer in self.memory)
        pointed = self.pointed and self.pointed.keep(sentences_B)
        return DecoderState(memory, self.memory_mask.index_select(0, sentences_B), past, self.length, pointed)


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
        keep_BS = source_BS != self.embedding.padding_id
        mask: Mask = padding_mask(keep_BS)
        if self.window is not None:
            mask = Window(self.window, keep_BS).cheapest(source_BS.shape[1], device=source_BS.device)
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
        memory = tuple(cast(DecoderLayer, layer).cross_attention.remember(memory_BSD) for layer in self.layers)
        pointed = None if self.pointer is None else self.pointer.start(memory_BSD, source_BS)
        return DecoderState(memory, padding_mask(source_BS != self.embedding.padding_id), None, 0, pointed)

    def forward(self, inputs_NT: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read T more tokens: their outputs (N, T, D) and the state after them."""
        length = inputs_NT.shape[1]
        mask = self._mask(length, 0 if state.past is None else state.past[0].key.shape[2], inputs_NT.device)
        x_NTD, pointed = self.embedding(inputs_NT, start=state.length), state.pointed
        if self.pointer is not None and pointed is not None:
            added_NTD, pointed = self.pointer(inputs_NT, pointed)
            x_NTD = x_NTD + added_NTD
        past: list[KeyValue] = []
        for index, layer in enumerate(self.layers):
            before = None if state.past is None else state.past[index]
            x_NTD, so_far = layer(x_NTD, before, state.memory[index], mask, state.memory_mask)
            past.append(so_far if self.window is None else so_far.last(self.window))
        return self.norm(x_NTD), replace(state, past=tuple(past), length=state.length + length, pointed=pointed)

    def _mask(self, length: int, before: int, device: torch.device) -> Mask:
        """Which of `before` places and its own each of `length` new ones sees."""
        if self.window is not None and before == 0:
            return Window(self.window, causal=True).cheapest(length, device=device)
        mask = causal_mask(length, before + length, device=device)
        if self.window is not None:
            mask = mask & window_mask(length, before + length, self.window, device=device)
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
        words: Words | None = None,
        tagger: TagHead | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output
        self.words = words
        self.tagger = tagger
        self.product: Product = plain_product

    def forward(self, source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
        """Teacher forcing: the logits (B, T, V) after each of the target inputs, which begin with the start token."""
        outputs_BTD, _ = self.decoder(inputs_BT, self.start(source_BS))
        return self.logits(outputs_BTD)

    def start(self, source_BS: Tensor) -> DecoderState:
        """Read the source: the state before the first target token."""
        return self.decoder.start(self.encoder(source_BS), source_BS)

    def step(self, tokens_N: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read one more target token in each row: the logits (N, V) of the next, and the state after it."""
        outputs_N1D, state = self.decoder(tokens_N[:, None], state)
        return self.logits(outputs_N1D[:, 0]), state

    def logits(self, outputs_XD: Tensor) -> Tensor:
        return self.product(outputs_XD, self.output, None)

    def num_parameters(self) -> int:
        """Each shared matrix counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def use_product(model: Transformer, product: Product) -> None:
    """Let the model compute all its products with weights this way."""
    model.product = product
    for module in model.modules():
        if isinstance(module, Linear):
            module.product = product

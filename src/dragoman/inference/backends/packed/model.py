"""A trained model made ready to translate on a processor: the same function, computed in fewer and larger pieces.

Against the model that learns: weights are prepared once (`products`), queries, keys and values are one product, scales are part
of the weights, keys and values stay where they were written (`slots`), and no layer is a module.

Rows stand in order of time first, then hypothesis, then sentence, so that all heads of all sentences are one batch of matrices
without a copy.

    M rows    R hypotheses of a sentence    C stored sentences    Y heads of all sentences (C·H)    W slots or places
    X keys and values of one head, side by side (K + U)    other dimensions as in `dragoman.model`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.decoding.topk import PlainRanking
from dragoman.inference.backends.packed.attention import found
from dragoman.inference.backends.packed.kv_cache import NOT_SEEN, PackedState
from dragoman.inference.backends.packed.matmul import Product
from dragoman.model.attention import KeyValue
from dragoman.model.linear import whole_rows
from dragoman.model.masks import padding_mask, windowed_padding_mask
from dragoman.model.pointer import Pointed, Words

Norm = Callable[[Tensor], Tensor]
Remember = Callable[[KeyValue], KeyValue]
"""Given the keys and values of these places (Y, T, ·): those to look at (Y, W, ·)."""


@dataclass(frozen=True)
class Residual:
    """The normalisations around one sub-layer: one of them is nothing."""

    before: Norm
    after: Norm


@dataclass(frozen=True)
class PackedEmbedding:
    """Token vectors, scaled, plus positions. The vectors are the model's own memory."""

    weight_VD: Tensor
    gain_V: Tensor
    positions: Callable[[int, int], Tensor]
    extra_D: Tensor | None
    padding_id: int

    def __call__(self, ids_TC: Tensor, start: int) -> Tensor:
        """→ (T·C, D)."""
        at_T1D = self.positions(start, ids_TC.shape[0]).detach()[:, None]
        if self.extra_D is not None:
            at_T1D = at_T1D + self.extra_D
        ids_M = ids_TC.flatten()
        x_TCD = self.weight_VD.index_select(0, ids_M).view(*ids_TC.shape, -1)
        gain_TC1 = self.gain_V.index_select(0, ids_M).view(*ids_TC.shape, 1)
        return torch.addcmul(at_T1D, x_TCD, gain_TC1).flatten(0, 1)


@dataclass(frozen=True)
class PackedAttention:
    """look: head by head, queries, keys and values side by side; of attention across only queries
    remember: head by head, keys and values side by side; of attention across only
    """

    look: Product
    remember: Product | None
    output: Product
    heads: int
    key_width: int

    def within(self, x_MD: Tensor, remember: Remember, bias: Tensor | None, sentences: int, places: int) -> Tensor:
        """What these places of each sentence find among those that are remembered, before the projection back. → (M, H·U)."""
        look_YTX = self._by_heads(self.look(x_MD), sentences, places)
        width = self.key_width
        key_YTK, value_YTU = look_YTX[:, :, width : 2 * width], look_YTX[:, :, 2 * width :]
        found_TYU = found(look_YTX[:, :, :width], remember(KeyValue(key_YTK, value_YTU)), bias)
        found_MX = found_TYU.reshape(places * sentences, -1)
        short = x_MD.shape[0] - found_MX.shape[0]
        return F.pad(found_MX, (0, 0, 0, short)) if short else found_MX

    def across(self, x_MD: Tensor, memory: KeyValue, bias: Tensor | None, sentences: int) -> Tensor:
        """What these places find in the source. → (M, H·U)."""
        places = x_MD.shape[0] // sentences
        return found(self._by_heads(self.look(x_MD), sentences, places), memory, bias).reshape(x_MD.shape[0], -1)

    def remembered(self, x_MD: Tensor, sentences: int, places: int) -> KeyValue:
        """Keys and values of the source (Y, S, ·), for attention across."""
        assert self.remember is not None
        both_YSX = self._by_heads(self.remember(x_MD), sentences, places)
        return KeyValue(both_YSX[:, :, : self.key_width], both_YSX[:, :, self.key_width :])

    def _by_heads(self, many_MX: Tensor, sentences: int, places: int) -> Tensor:
        """All heads of all sentences as a batch (Y, T, ·), without the rows that mean nothing."""
        rows = places * sentences
        some_MX = many_MX if rows == many_MX.shape[0] else many_MX[:rows]
        return some_MX.view(places, sentences * self.heads, -1).transpose(0, 1)


@dataclass(frozen=True)
class PackedLayer:
    """A layer of either stack; `cross_attention` is the decoder's."""

    attention: PackedAttention
    attention_residual: Residual
    cross_attention: PackedAttention | None
    cross_attention_residual: Residual | None
    inner: Product
    outer: Product
    feed_forward_residual: Residual

    def look_within(self, x_MD: Tensor, remember: Remember, bias: Tensor | None, sentences: int, places: int) -> Tensor:
        residual = self.attention_residual
        found_MX = self.attention.within(residual.before(x_MD), remember, bias, sentences, places)
        return residual.after(self.attention.output.onto(x_MD, found_MX))

    def look_across(self, x_MD: Tensor, memory: KeyValue, bias: Tensor | None, sentences: int) -> Tensor:
        assert self.cross_attention is not None
        assert self.cross_attention_residual is not None
        residual = self.cross_attention_residual
        found_MX = self.cross_attention.across(residual.before(x_MD), memory, bias, sentences)
        return residual.after(self.cross_attention.output.onto(x_MD, found_MX))

    def feed_forward(self, x_MD: Tensor) -> Tensor:
        residual = self.feed_forward_residual
        return residual.after(self.outer.onto(x_MD, self.inner(residual.before(x_MD))))


@dataclass(frozen=True)
class PackedStack:
    """The layers of one side, with what comes before and after them."""

    embedding: PackedEmbedding
    layers: tuple[PackedLayer, ...]
    norm: Norm
    window: int | None


@dataclass(frozen=True)
class PackedPointer:
    """Shows the decoder the word that comes next, as `dragoman.model.pointer.Pointer` does.

    shifts_V: 1 for a target token that consumes a word
    """

    words: Words
    shifts_V: Tensor
    projection: Product

    def start(self, memory_MD: Tensor, source_BS: Tensor, stored: int) -> Pointed:
        """Nothing is said yet. memory_MD: the encoder's output, whose rows of one place are those of all stored sentences."""
        row_B1 = torch.arange(len(source_BS))[:, None]
        rows_BW = self.words.places(source_BS) * stored + row_B1
        return Pointed(self.projection(memory_MD).index_select(0, rows_BW.flatten()).view(*rows_BW.shape, -1))

    def __call__(self, tokens_N: Tensor, pointed: Pointed) -> tuple[Tensor, Pointed]:
        """What is added to the inputs (N, D), and where the hypotheses are after them."""
        count_N = self.shifts_V.index_select(0, tokens_N)
        if pointed.count_N is not None:
            count_N = count_N + pointed.count_N
        sentences, width, _ = pointed.vectors_BWD.shape
        first_B1 = torch.arange(0, sentences * width, width)[:, None]
        place_N = (count_N.clamp(max=width - 1).view(sentences, -1) + first_B1).flatten()
        return pointed.vectors_BWD.flatten(0, 1).index_select(0, place_N), replace(pointed, count_N=count_N)


@dataclass(frozen=True)
class PackedTransformer:
    """What a search asks for words, as `dragoman.model.transformer.Transformer` is; for inference only.

    Several threads may use it at once.

    pointer: what shows the decoder the next word, in a parser
    exact: attention is computed in float32, however many heads there are
    """

    encoder: PackedStack
    decoder: PackedStack
    output: Product
    pointer: PackedPointer | None
    exact: bool
    ranking: ClassVar[type[PlainRanking]] = PlainRanking

    def start(self, source_BS: Tensor) -> PackedState:
        """Read the source, padded on the right: the state before the first target token."""
        given, heads = len(source_BS), self.decoder.layers[0].attention.heads
        sentences = whole_rows(given)
        if sentences > given:
            source_BS = torch.cat([source_BS, source_BS[-1:].expand(sentences - given, -1)])
        keep_BS = source_BS != self.encoder.embedding.padding_id
        memory_MD = self._encode(source_BS, keep_BS)
        layers = [cast(PackedAttention, layer.cross_attention) for layer in self.decoder.layers]
        memory = tuple(attention.remembered(memory_MD, sentences, source_BS.shape[1]) for attention in layers)
        bias = None if bool(keep_BS.all()) else _bias(padding_mask(keep_BS), heads)
        pointed = None if self.pointer is None else self.pointer.start(memory_MD, source_BS[:given], sentences)
        wanted_B = torch.arange(given) if sentences > given else None
        return PackedState(memory, bias, sentences, wanted_B=wanted_B, pointed=pointed)

    def _encode(self, source_BS: Tensor, keep_BS: Tensor) -> Tensor:
        """→ (S·B, D), and some rows more that mean nothing."""
        bias = None
        heads = self.encoder.layers[0].attention.heads
        if self.encoder.window is not None:
            bias = _bias(windowed_padding_mask(keep_BS, self.encoder.window), heads)
        elif not bool(keep_BS.all()):
            bias = _bias(padding_mask(keep_BS), heads)
        x_MD = self.encoder.embedding(source_BS.t(), 0)
        x_MD = F.pad(x_MD, (0, 0, 0, whole_rows(len(x_MD)) - len(x_MD)))
        for layer in self.encoder.layers:
            x_MD = layer.look_within(x_MD, _as_it_is, bias, *source_BS.shape)
            x_MD = layer.feed_forward(x_MD)
        return self.encoder.norm(x_MD)

    def step(self, tokens_N: Tensor, state: PackedState) -> tuple[Tensor, PackedState]:
        """Read one more target token in each row: the logits (N, V) of the next, and the state after it."""
        width = len(tokens_N) // state.wanted
        attention = self.decoder.layers[0].attention
        if state.past is None:
            state = state.begin(width, exact=self.exact, timed=self.decoder.window is not None)
        state = state.ready(self.decoder.window)
        assert state.past is not None
        assert state.lineage_CRW is not None
        sentences, memory_bias = state.sentences, state.memory_bias
        slots = slice(state.used, state.used + width)
        rows_N = state.stored_rows()
        x_MD, pointed = self._read(tokens_N, rows_N, state, width)
        lineage_C1RW = state.lineage_CRW[:, None]
        bias_YRW = lineage_C1RW.expand(-1, attention.heads, -1, -1).flatten(0, 1)
        for layer, past, memory in zip(self.decoder.layers, state.past, state.memory, strict=True):

            def write(now: KeyValue, past: KeyValue = past) -> KeyValue:
                past.key[:, slots].copy_(now.key)
                past.value[:, slots].copy_(now.value)
                return past

            x_MD = layer.look_within(x_MD, write, bias_YRW, sentences, width)
            x_MD = layer.look_across(x_MD, memory, memory_bias, sentences)
            x_MD = layer.feed_forward(x_MD)
        x_MD = self.decoder.norm(x_MD)
        if width > 1:
            x_MD = x_MD.view(width, sentences, -1).transpose(0, 1).reshape(len(x_MD), -1)
        after = replace(state, used=slots.stop, length=state.length + 1, pointed=pointed)
        if rows_N is None:
            return self.output(x_MD), after
        wanted = len(rows_N)
        x_MD = x_MD.index_select(0, F.pad(rows_N, (0, min(whole_rows(wanted), len(x_MD)) - wanted)))
        return self.output(x_MD)[:wanted], after

    def _read(self, tokens_N: Tensor, rows_N: Tensor | None, state: PackedState, width: int) -> tuple[Tensor, Pointed | None]:
        """The decoder's input (R·C, D), hypothesis by hypothesis, and where these are after it.

        rows_N: numbers of the tokens' rows among the stored; none where they are all
        """

        def stored(given_NX: Tensor) -> Tensor:
            """(C, R, ·)"""
            if rows_N is not None:
                shape = (state.sentences * width, *given_NX.shape[1:])
                given_NX = given_NX.new_zeros(shape).index_copy_(0, rows_N, given_NX)
            return given_NX.view(state.sentences, width, *given_NX.shape[1:])

        x_MD = self.decoder.embedding(stored(tokens_N).t().reshape(1, -1), state.length)
        if self.pointer is None or state.pointed is None:
            return x_MD, None
        added_ND, pointed = self.pointer(tokens_N, state.pointed)
        return x_MD.add_(stored(added_ND).transpose(0, 1).reshape_as(x_MD)), pointed


def _as_it_is(now: KeyValue) -> KeyValue:
    return now


def _bias(mask: Tensor, heads: int) -> Tensor:
    """(B, 1, T, W), true where a query may look → (B·H, T, W), what to add to the scores."""
    bias = torch.zeros(mask.shape).masked_fill_(~mask, NOT_SEEN)
    return bias.expand(-1, heads, -1, -1).flatten(0, 1)

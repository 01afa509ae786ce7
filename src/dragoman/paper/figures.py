"""Figures 3 to 5: encoder self-attention of one layer, for any bundle and any sentence.

    3   all heads of a layer for one query word; many heads follow "making … more difficult" over a distance
    4   one head for all words; below it, two heads for one query word: the antecedent of "its"
    5   two heads for all words; they differ

The paper shows layer 5 of 6 and, in Figure 4, heads 5 and 6. It does not name the heads of Figure 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.experiments.mixers.options import MixerOptions
from dragoman.inference.explain.explain_translation import encode_source_line, number_words
from dragoman.model.attention import record_attention
from dragoman.model.layers import EncoderLayer
from dragoman.viz.explanation import merge_tokens
from dragoman.viz.paper_figures import FigurePanel, render_paper_figure

if TYPE_CHECKING:
    from dragoman.inference.translator import Translator
    from dragoman.viz.explanation import FloatArray

FIGURES = (3, 4, 5)
PAPER_LAYER, PAPER_NUM_LAYERS = 5, 6
PAPER_HEADS = (5, 6)

_LAW_SENTENCE = (
    "The Law will never be perfect , but its application should be just - this is what we are missing , in my opinion ."
)
PAPER_SENTENCES = {
    3: "It is in this spirit that a majority of American governments have passed new laws since 2009 making the registration "
    "or voting process more difficult .",
    4: _LAW_SENTENCE,
    5: _LAW_SENTENCE,
}
PAPER_WORDS = {3: "making", 4: "its"}


@dataclass(frozen=True)
class EncoderAttention:
    """Encoder self-attention of all layers and heads for one sentence.

    word_indices: the number of the word of each token; an end token counts as a word
    weights_LHTS: attention weights (layer, head, query token, key token)
    """

    model: str
    sentence: str
    tokens: tuple[str, ...]
    word_indices: tuple[int, ...]
    weights_LHTS: FloatArray

    def spell_words(self) -> list[str]:
        return merge_tokens(self.tokens, self.word_indices)

    def token_positions(self, word: int) -> tuple[int, ...]:
        return tuple(position for position, word_index in enumerate(self.word_indices) if word_index == word)


@dataclass(frozen=True)
class Figure:
    """One figure for one sentence. Layer, heads and word count from 0. Figure 5 has no query word."""

    number: int
    attention: EncoderAttention
    layer: int
    panels: tuple[FigurePanel, ...]
    word: int | None

    @property
    def caption(self) -> str:
        """Return the layer, the heads and the query word as text."""
        num_layers, num_heads, _, _ = self.attention.weights_LHTS.shape
        shown_heads = sorted({head + 1 for panel in self.panels for head in panel.heads})
        heads = "all heads" if len(shown_heads) == num_heads else f"heads {' and '.join(map(str, shown_heads))} of {num_heads}"
        word_text = f", from “{self.attention.spell_words()[self.word]}”" if self.word is not None else ""
        return f"encoder self-attention, layer {self.layer + 1} of {num_layers}, {heads}{word_text}"

    def to_svg(self) -> str:
        attention = self.attention
        weights_HTS = attention.weights_LHTS[self.layer]
        return render_paper_figure(
            attention.tokens, weights_HTS, self.panels, title=f"Figure {self.number}", subtitle=self.caption
        )


def build_figures(
    translator: Translator,
    sentence: str | None = None,
    *,
    numbers: Sequence[int] = FIGURES,
    layer: int | None = None,
    heads: Sequence[int] = (),
    word: str | None = None,
) -> list[Figure]:
    """Return the figures of these numbers, for the (first) model of a translator.

    sentence: text for all figures; default: the sentences of the paper
    layer: encoder layer, counted from 1; default: 5 of 6 as printed, else the last but one
    heads: two heads, counted from 1, for Figures 4 and 5; default: 5 and 6 as printed, or the last two
    word: query word of Figures 3 and 4, or its number, counted from 1. The default is the paper's word if the sentence has
        it. Otherwise it is the word with the most distant (Figure 3) or the sharpest attention (Figure 4).

    Raises DataError if the sentence cannot be read, or for an unknown layer, head or word.
    """
    if heads and set(numbers) == {3}:
        raise DataError("--heads: is for Figures 4 and 5, because Figure 3 shows all heads; leave it out")
    if word is not None and set(numbers) == {5}:
        raise DataError("--word: is for Figures 3 and 4, because Figure 5 shows all words; leave it out")
    attention_by_text: dict[str, EncoderAttention] = {}
    built_figures = []
    for number in sorted(set(numbers)):
        text = PAPER_SENTENCES[number] if sentence is None else sentence
        if text not in attention_by_text:
            attention_by_text[text] = record_encoder_attention(translator, text)
        attention = attention_by_text[text]
        num_layers, num_heads, _, _ = attention.weights_LHTS.shape
        layer_index = _resolve_layer(layer, num_layers)
        head_indices = tuple(range(num_heads)) if number == 3 else _resolve_heads(heads, num_heads)
        word_index = (
            None
            if number == 5
            else _resolve_word(attention, word, number, attention.weights_LHTS[layer_index, list(head_indices)])
        )
        built_figures.append(
            Figure(number, attention, layer_index, _build_panels(number, attention, head_indices, word_index), word_index)
        )
    return built_figures


def _build_panels(
    number: int, attention: EncoderAttention, heads: tuple[int, ...], word: int | None
) -> tuple[FigurePanel, ...]:
    positions = () if word is None else attention.token_positions(word)
    match number:
        case 3:
            return (FigurePanel(heads, positions),)
        case 4:
            return FigurePanel(heads[:1]), FigurePanel(heads, positions)
        case _:
            return FigurePanel(heads[:1]), FigurePanel(heads[1:])


@torch.no_grad()
def record_encoder_attention(translator: Translator, sentence: str) -> EncoderAttention:
    """Encode a sentence and record the attention. Raises DataError if it is empty or longer than the model reads."""
    bundle = translator.bundle
    if (mixer := translator.recipe.model.get_extension(MixerOptions).encoder_mixer) != "attention":
        raise BundleError(
            f"model.encoder_mixer = {mixer!r}: the encoder has no self-attention, which the figures show; give another model",
            code="no-self-attention",
        )
    ids = encode_source_line(translator, sentence, translator.resolve_decoding({}))
    attention_layers = [cast(EncoderLayer, layer).attention for layer in bundle.model.encoder.layers]
    with record_attention(attention_layers) as weights:
        bundle.model.encoder(torch.tensor([list(ids)], device=bundle.model.output.device))
    tokens = tuple(bundle.tokenizer.source.ids_to_pieces(ids))
    word_indices = number_words(tokens, has_end=bundle.tokenizer.append_source_eos)
    return EncoderAttention(translator.recipe.name, sentence, tokens, word_indices, torch.cat(weights).float().cpu().numpy())


def _resolve_layer(layer: int | None, num_layers: int) -> int:
    if layer is None:
        return PAPER_LAYER - 1 if num_layers == PAPER_NUM_LAYERS else max(num_layers - 2, 0)
    if not 1 <= layer <= num_layers:
        raise DataError(f"layer {layer}: the encoder has layers 1 to {num_layers}; give one of them")
    return layer - 1


def _resolve_heads(heads: Sequence[int], num_heads: int) -> tuple[int, int]:
    if num_heads < 2:
        raise DataError("--figure: the encoder has one head a layer, and Figures 4 and 5 compare two; give --figure 3")
    if not heads:
        heads = PAPER_HEADS if num_heads >= max(PAPER_HEADS) else (num_heads - 1, num_heads)
    if invalid_heads := [head for head in heads if not 1 <= head <= num_heads]:
        raise DataError(f"head {invalid_heads[0]}: a layer has heads 1 to {num_heads}; give two of them")
    if len(set(heads)) != 2 or len(heads) != 2:
        raise RecipeError(f"--heads {','.join(map(str, heads))}: Figures 4 and 5 compare two heads; give two, such as 5,6")
    return heads[0] - 1, heads[1] - 1


def _resolve_word(attention: EncoderAttention, word: str | None, number: int, weights_HTS: FloatArray) -> int:
    words = attention.spell_words()
    if word is None:
        if PAPER_WORDS[number] in words:
            return words.index(PAPER_WORDS[number])
        return (_find_farthest_word if number == 3 else _find_sharpest_word)(attention, weights_HTS)
    matches = [position for position, text in enumerate(words) if text == word]
    if len(matches) > 1:
        raise DataError(f"--word {word}: occurs {len(matches)} times; give its number, {_join_alternatives(matches)}")
    if matches:
        return matches[0]
    if word.isascii() and word.isdigit() and 1 <= int(word) <= len(words):
        return int(word) - 1
    raise DataError(f"--word {word!r}: is not in the sentence; give one of its words, {', '.join(words)}")


def _join_alternatives(positions: Sequence[int]) -> str:
    """Return text such as "3, 7 or 9", counted from 1, for at least two positions."""
    *leading, last = (str(position + 1) for position in positions)
    return f"{', '.join(leading)} or {last}"


def _find_readable_words(attention: EncoderAttention) -> Mapping[int, tuple[int, ...]]:
    """Return the token positions of each word with a letter, without the end token. Return word 0 if there is none."""
    words = attention.spell_words()
    positions_by_word = {
        word: attention.token_positions(word) for word, text in enumerate(words) if any(map(str.isalpha, text))
    }
    end_words = {len(words) - 1} if words and words[-1] == "</s>" else set()
    return {word: positions for word, positions in positions_by_word.items() if word not in end_words} or {
        0: attention.token_positions(0)
    }


def _find_farthest_word(attention: EncoderAttention, weights_HTS: FloatArray) -> int:
    """Return the word with the greatest mean distance of its attention to other words, over all heads."""
    positions_by_word = _find_readable_words(attention)
    word_columns = [position for positions in positions_by_word.values() for position in positions]

    def mean_distance(word: int) -> float:
        return sum(
            float(weights_HTS[:, position, column].mean()) * abs(position - column)
            for position in positions_by_word[word]
            for column in word_columns
        ) / len(positions_by_word[word])

    return max(positions_by_word, key=mean_distance)


def _find_sharpest_word(attention: EncoderAttention, weights_HTS: FloatArray) -> int:
    """Return the word with the greatest attention weight to another word, as the mean over the heads."""
    positions_by_word = _find_readable_words(attention)

    def mean_peak(word: int) -> float:
        other_positions = [
            position for other_word, positions in positions_by_word.items() if other_word != word for position in positions
        ]
        return (
            float(weights_HTS[:, list(positions_by_word[word])][:, :, other_positions].max(axis=-1).mean())
            if other_positions
            else 0.0
        )

    return max(positions_by_word, key=mean_peak)

"""Figures 3 to 5: what the encoder's heads of one layer look at, for any bundle and any sentence.

    3   all heads of a layer, seen from one word: many follow "making … more difficult" over a distance
    4   one head in full; below it, two heads from one word alone: what "its" stands for
    5   two heads in full, each by itself: they behave differently

Printed is layer 5 of 6 and, in Figure 4, heads 5 and 6. Which heads Figure 5 shows, the paper does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from dragoman.errors import DataError, RecipeError
from dragoman.inference.explain.translation import numbered_words, source_ids
from dragoman.model.attention import watch_attention
from dragoman.model.layers import EncoderLayer
from dragoman.viz.explanation import word_texts
from dragoman.viz.paper_figures import Look, paper_figure

if TYPE_CHECKING:
    from dragoman.inference.translator import Translator
    from dragoman.viz.explanation import Numbers

FIGURES = (3, 4, 5)
PRINTED_LAYER, PRINTED_LAYERS = 5, 6
PRINTED_HEADS = (5, 6)

_LAW = "The Law will never be perfect , but its application should be just - this is what we are missing , in my opinion ."
PRINTED_SENTENCES = {
    3: "It is in this spirit that a majority of American governments have passed new laws since 2009 making the registration "
    "or voting process more difficult .",
    4: _LAW,
    5: _LAW,
}
PRINTED_WORDS = {3: "making", 4: "its"}


@dataclass(frozen=True)
class Watched:
    """A sentence as the encoder reads it, and what each of its heads looks at.

    words: the number of the word that each token belongs to; an end token is a word of its own
    """

    model: str
    sentence: str
    tokens: tuple[str, ...]
    words: tuple[int, ...]
    weights_LHTS: Numbers

    def spelled(self) -> list[str]:
        """The words as people write them."""
        return word_texts(self.tokens, self.words)

    def places(self, word: int) -> tuple[int, ...]:
        """The tokens of a word, which is counted from 0."""
        return tuple(place for place, number in enumerate(self.words) if number == word)


@dataclass(frozen=True)
class Figure:
    """One figure for one sentence. layer, heads and word are counted from 0; there is no word in Figure 5."""

    number: int
    watched: Watched
    layer: int
    looks: tuple[Look, ...]
    word: int | None

    @property
    def remark(self) -> str:
        layers, count, _, _ = self.watched.weights_LHTS.shape
        shown = sorted({head + 1 for look in self.looks for head in look.heads})
        heads = "all heads" if len(shown) == count else f"heads {' and '.join(map(str, shown))} of {count}"
        seen = f", from “{self.watched.spelled()[self.word]}”" if self.word is not None else ""
        return f"encoder self-attention, layer {self.layer + 1} of {layers}, {heads}{seen}"

    def svg(self) -> str:
        watched = self.watched
        weights_HTS = watched.weights_LHTS[self.layer]
        return paper_figure(watched.tokens, weights_HTS, self.looks, title=f"Figure {self.number}", remark=self.remark)

    def as_json(self) -> dict[str, Any]:
        watched = self.watched
        weights_HTS = watched.weights_LHTS[self.layer]
        return {
            "figure": self.number,
            "model": watched.model,
            "sentence": watched.sentence,
            "tokens": watched.tokens,
            "layer": self.layer + 1,
            "layers": len(watched.weights_LHTS),
            "word": None if self.word is None else watched.spelled()[self.word],
            "looks": [
                {
                    "heads": [head + 1 for head in look.heads],
                    "places": look.places or list(range(len(watched.tokens))),
                    "weights": weights_HTS[list(look.heads)][:, list(look.places) or slice(None)].round(4).tolist(),
                }
                for look in self.looks
            ],
        }


def figures(
    translator: Translator,
    sentence: str | None = None,
    *,
    numbers: Sequence[int] = FIGURES,
    layer: int | None = None,
    heads: Sequence[int] = (),
    word: str | None = None,
) -> list[Figure]:
    """The figures of these numbers, for the (first) model of a translator.

    sentence: the paper's own where none is given
    layer: counted from 1; the printed fifth of a model with six, else the last but one
    heads: two, counted from 1, for Figures 4 and 5; the printed 5 and 6 where there are so many, else the last two
    word: as it stands in the sentence, or its place there, counted from 1; where none is given, the paper's own if it stands
        there, else what looks farthest away in Figure 3, and what both heads look from most sharply in Figure 4

    Raises DataError for a sentence, layer, head or word that is not there.
    """
    if heads and set(numbers) == {3}:
        raise DataError("--heads is for Figures 4 and 5: Figure 3 shows all heads; drop it")
    if word is not None and set(numbers) == {5}:
        raise DataError("--word is for Figures 3 and 4: Figure 5 shows all words; drop it")
    seen: dict[str, Watched] = {}
    found = []
    for number in sorted(set(numbers)):
        text = PRINTED_SENTENCES[number] if sentence is None else sentence
        if text not in seen:
            seen[text] = watch(translator, text)
        watched = seen[text]
        layers, count, _, _ = watched.weights_LHTS.shape
        at = _layer(layer, layers)
        compared = tuple(range(count)) if number == 3 else _heads(heads, count)
        chosen = None if number == 5 else _word(watched, word, number, watched.weights_LHTS[at, list(compared)])
        found.append(Figure(number, watched, at, _looks(number, watched, compared, chosen), chosen))
    return found


def _looks(number: int, watched: Watched, heads: tuple[int, ...], word: int | None) -> tuple[Look, ...]:
    places = () if word is None else watched.places(word)
    match number:
        case 3:
            return (Look(heads, places),)
        case 4:
            return Look(heads[:1]), Look(heads, places)
        case _:
            return Look(heads[:1]), Look(heads[1:])


@torch.no_grad()
def watch(translator: Translator, sentence: str) -> Watched:
    """Let the encoder read a sentence. Raises DataError where there is none to read, or too much."""
    bundle = translator.bundle
    ids = source_ids(translator, sentence, translator.check({}))
    attentions = [cast(EncoderLayer, layer).attention for layer in bundle.model.encoder.layers]
    with watch_attention(attentions) as weights:
        bundle.model.encoder(torch.tensor([list(ids)], device=bundle.model.output.device))
    tokens = tuple(bundle.tokeniser.source.pieces(ids))
    words = numbered_words(tokens, ended=bundle.tokeniser.append_source_eos)
    return Watched(translator.recipe.name, sentence, tokens, words, torch.cat(weights).float().cpu().numpy())


def _layer(asked: int | None, layers: int) -> int:
    if asked is None:
        return PRINTED_LAYER - 1 if layers == PRINTED_LAYERS else max(layers - 2, 0)
    if not 1 <= asked <= layers:
        raise DataError(f"layer {asked}: the encoder has layers 1 to {layers}")
    return asked - 1


def _heads(asked: Sequence[int], count: int) -> tuple[int, int]:
    if count < 2:
        raise DataError("the encoder has one head a layer, and Figures 4 and 5 compare two; ask for --figure 3")
    if not asked:
        asked = PRINTED_HEADS if count >= max(PRINTED_HEADS) else (count - 1, count)
    if strange := [head for head in asked if not 1 <= head <= count]:
        raise DataError(f"head {strange[0]}: a layer has heads 1 to {count}")
    if len(set(asked)) != 2 or len(asked) != 2:
        raise RecipeError(f"--heads {','.join(map(str, asked))}: Figures 4 and 5 compare two heads, such as 5,6")
    return asked[0] - 1, asked[1] - 1


def _word(watched: Watched, asked: str | None, number: int, weights_HTS: Numbers) -> int:
    words = watched.spelled()
    if asked is None:
        if PRINTED_WORDS[number] in words:
            return words.index(PRINTED_WORDS[number])
        return (_farthest if number == 3 else _sharpest)(watched, weights_HTS)
    there = [place for place, one in enumerate(words) if one == asked]
    if len(there) > 1:
        raise DataError(f"--word {asked} stands there {len(there)} times: give its place, {_either(there)}")
    if there:
        return there[0]
    if asked.isascii() and asked.isdigit() and 1 <= int(asked) <= len(words):
        return int(asked) - 1
    raise DataError(f"--word {asked!r} does not stand in the sentence, whose words are {', '.join(words)}")


def _either(places: Sequence[int]) -> str:
    """Such as "3, 7 or 9", counted from 1, of two places or more."""
    *most, last = (str(place + 1) for place in places)
    return f"{', '.join(most)} or {last}"


def _readable(watched: Watched) -> Mapping[int, tuple[int, ...]]:
    """The words that are such, with their places: punctuation and what ends a sentence are looked at for other reasons."""
    spelled = watched.spelled()
    found = {word: watched.places(word) for word, text in enumerate(spelled) if any(map(str.isalpha, text))}
    ended = {len(spelled) - 1} if spelled and spelled[-1] == "</s>" else set()
    return {word: places for word, places in found.items() if word not in ended} or {0: watched.places(0)}


def _farthest(watched: Watched, weights_HTS: Numbers) -> int:
    """The word whose heads look, by the mean, the most places away, at other words."""
    readable = _readable(watched)
    columns = [place for places in readable.values() for place in places]

    def distance(word: int) -> float:
        return sum(
            float(weights_HTS[:, place, column].mean()) * abs(place - column) for place in readable[word] for column in columns
        ) / len(readable[word])

    return max(readable, key=distance)


def _sharpest(watched: Watched, weights_HTS: Numbers) -> int:
    """The word from which these heads look hardest at another word."""
    readable = _readable(watched)

    def sharpness(word: int) -> float:
        others = [place for other, places in readable.items() if other != word for place in places]
        return float(weights_HTS[:, list(readable[word])][:, :, others].max(axis=-1).mean()) if others else 0.0

    return max(readable, key=sharpness)

"""Attention between the units of translations and of their sources, from that between their pieces.

A unit is what `text.projection` places codes beside, and a piece is a token. Many translations are computed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from dragoman.data.tokenization.special_tokens import METASPACE
from dragoman.inference.translation_result import Translation
from dragoman.text.projection import MAX_CELLS, UnitPair, UnitText

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]
_NO_WEIGHTS = np.zeros((0, 0))
MAX_GAP = 16
"""Most characters of a text between two pieces of it."""


def compute_unit_weights(translation: Translation, source: str) -> Floats:
    """Return the attention of each unit of a translation, the mean of its pieces, to each unit of its source. (T, S)

    translation: translation with attention
    """
    pair = UnitText.divide(source), UnitText.divide(translation.text)
    (weights_NTS,) = weigh_units([translation], [pair])
    return weights_NTS[0, : len(pair[1].words), : len(pair[0].words)]


def weigh_units(translations: Sequence[Translation], pairs: Sequence[UnitPair]) -> Iterator[Floats]:
    """Yield what `compute_unit_weights` returns for some translations at a time, with zeros behind the smaller ones. (N, T, S)

    pairs: the units of each source, and of its translation
    """
    first = longest = widest = 0
    for number, (item, (source, target)) in enumerate(zip(translations, pairs, strict=True)):
        length, width = max(len(item.tokens), len(target.words)), max(len(item.source_tokens), len(source.words))
        longest, widest = max(longest, length), max(widest, width)
        if number > first and (number + 1 - first) * longest * widest > MAX_CELLS:
            yield _weigh_together(translations[first:number], pairs[first:number])
            first, longest, widest = number, length, width
    if first < len(translations):
        yield _weigh_together(translations[first:], pairs[first:])


def _weigh_together(translations: Sequence[Translation], pairs: Sequence[UnitPair]) -> Floats:
    all_weights = [_NO_WEIGHTS if item.attention is None else item.attention[: len(item.tokens)] for item in translations]
    shapes = [weights_TP.shape for weights_TP in all_weights]
    weights_NPT = np.zeros((len(shapes), max(columns for _, columns in shapes), max(rows for rows, _ in shapes)))
    for own_PT, weights_TP, (num_rows, num_columns) in zip(weights_NPT, all_weights, shapes, strict=True):
        own_PT[:num_columns, :num_rows] = weights_TP.T
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    source_pieces = [item.source_tokens[:columns] for item, (_, columns) in zip(translations, shapes, strict=True)]
    shares = _match_pieces(source_pieces, sources)
    weights_NST = shares.sum_by_unit(weights_NPT)
    shares = _match_pieces([item.tokens[:rows] for item, (rows, _) in zip(translations, shapes, strict=True)], targets)
    weights_NTS = shares.sum_by_unit(weights_NST.transpose(0, 2, 1))
    totals_NT = shares.count_by_unit()
    totals_NT[totals_NT == 0] = 1
    weights_NTS /= totals_NT[:, :, None]
    return weights_NTS


@dataclass(frozen=True, slots=True)
class _Shares:
    """Pieces of texts, and the units that they lie in (K pairs), in the order of both.

    texts_K, pieces_K, units_K: number of the text, and of the piece and the unit in it
    parts_K: share of the piece that lies in the unit
    shape: number of texts (N), and most units of one (U)
    """

    texts_K: Numbers
    pieces_K: Numbers
    units_K: Numbers
    parts_K: Floats
    shape: tuple[int, int]

    def count_by_unit(self) -> Floats:
        """Return the number of pieces of each unit, by share. (N, U)"""
        places_K = self.texts_K * self.shape[1] + self.units_K
        return np.bincount(places_K, self.parts_K, self.shape[0] * self.shape[1]).astype(np.float64).reshape(self.shape)

    def sum_by_unit(self, values_NPM: Floats) -> Floats:
        """Return the sum of the values of the pieces of each unit, by share. (N, U, M)"""
        num_texts, num_pieces, num_values = values_NPM.shape
        values_QM = values_NPM.reshape(num_texts * num_pieces, num_values)  # Q: pieces of all texts, with those behind the ends
        pieces_K = self.texts_K * num_pieces + self.pieces_K
        sums_UM = np.zeros((self.shape[0] * self.shape[1], num_values))
        units_K = self.texts_K * self.shape[1] + self.units_K
        places = np.flatnonzero(np.diff(units_K, prepend=-1))  # of the first piece of each unit, and then of the next ones
        counts = np.diff(places, append=len(units_K))
        sums_UM[units_K[places]] = values_QM[pieces_K[places]] * self.parts_K[places, None]
        while (has_more := counts > 1).any():
            places, counts = places[has_more] + 1, counts[has_more] - 1
            sums_UM[units_K[places]] += values_QM[pieces_K[places]] * self.parts_K[places, None]
        return sums_UM.reshape(*self.shape, -1)


def _match_pieces(pieces_of_texts: Sequence[Sequence[str]], texts: Sequence[UnitText]) -> _Shares:
    """Return the pieces of texts with the units that they lie in."""
    num_pieces, num_units = [len(pieces) for pieces in pieces_of_texts], [len(text.words) for text in texts]
    lengths_P = _to_array(map(len, chain.from_iterable(pieces_of_texts)), num_pieces)
    piece_ends_P: Numbers = lengths_P.cumsum()
    piece_starts_P: Numbers = piece_ends_P - lengths_P
    shifts: list[int] = []  # of the pieces of each text to their places among those of all
    origins: list[int] = []  # of each text among all, far enough from the one before it for a piece without a place
    origin = num_before = length_before = 0
    for pieces, text in zip(pieces_of_texts, texts, strict=True):
        own, num_before = slice(num_before, num_before + len(pieces)), num_before + len(pieces)
        joined = "".join(pieces).replace(METASPACE, " ")
        if joined.lstrip() == text.text:  # the pieces are the text, perhaps with white space before it
            origins.append(origin + len(joined) - len(text.text))
            shifts.append(origin - length_before)
        else:
            spans = list(_search_pieces(pieces, text.text))
            origins.append(origin - (spans[0][0] if spans else 0))
            shifts.append(origins[-1])
            piece_starts_P[own], piece_ends_P[own] = zip(*spans, strict=True) if spans else ((), ())
        length_before += len(joined)
        origin = origins[-1] + len(text.text) + 2
    piece_starts_P += np.repeat(shifts, num_pieces)
    piece_ends_P += np.repeat(shifts, num_pieces)
    origins_U: Numbers = np.repeat(origins, num_units)
    unit_starts_U = origins_U + _to_array(chain.from_iterable(text.starts for text in texts), num_units)
    unit_ends_U = origins_U + _to_array(chain.from_iterable(text.ends for text in texts), num_units)
    firsts_P = np.searchsorted(unit_ends_U, piece_starts_P, "right")
    counts_P = np.searchsorted(unit_starts_U, piece_ends_P, "left") - firsts_P
    counts_P[(counts_P < 0) | (piece_starts_P == piece_ends_P)] = 0
    pairs_K = np.repeat(np.arange(len(counts_P)), counts_P)
    units_K = firsts_P[pairs_K] + _count_from_zero(counts_P)
    lengths_K = np.minimum(unit_ends_U[units_K], piece_ends_P[pairs_K])
    lengths_K -= np.maximum(unit_starts_U[units_K], piece_starts_P[pairs_K])
    parts_K = lengths_K / np.bincount(pairs_K, lengths_K, len(counts_P))[pairs_K]
    texts_K = np.repeat(np.arange(len(texts)), num_pieces)[pairs_K]
    first_units_N = np.cumsum([0, *num_units[:-1]], dtype=np.intp)
    units_K -= first_units_N[texts_K]
    return _Shares(texts_K, _count_from_zero(num_pieces)[pairs_K], units_K, parts_K, (len(texts), max(1, *num_units)))


def _to_array(numbers: Iterable[int], counts: Sequence[int]) -> Numbers:
    """Return numbers, of which so many belong to each text."""
    return np.fromiter(numbers, np.intp, sum(counts))


def _count_from_zero(counts: Sequence[int] | Numbers) -> Numbers:
    """Return the numbers from 0 to each of the counts, one row after the other."""
    stops = np.cumsum(counts)
    return np.arange(stops[-1] if len(stops) else 0) - np.repeat(stops - counts, counts)


def _search_pieces(pieces: Sequence[str], text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each piece in a text.

    White space alone is empty. A piece that the text does not contain, because the tokenizer normalized it, lies where the
    piece before it ends.
    """
    position = 0
    for piece in pieces:
        surface = piece.replace(METASPACE, " ").strip()
        start = text.find(surface, position, position + len(surface) + MAX_GAP)
        if not surface:
            yield position, position
        elif start < 0:
            yield position, position + 1
        else:
            position = start + len(surface)
            yield start, position

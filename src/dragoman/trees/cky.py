"""The best tree of a sentence under a grammar, by Cocke, Kasami and Younger's table.

All of a cell's rules are tried at once, over all places where it can be cut. A cell keeps what lies within `beam` of its best
(in logs, and with how common each symbol is), so the tree is the best of those that this leaves.

Shapes: S symbols, P pairs of symbols that a rule has below it, R rules, K places to cut, T sentence places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.trees.pcfg import Grammar, Symbol, Unary
from dragoman.trees.tree import Event, Leaf, Tree, build

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_NEVER = np.float32(-np.inf)


class _Chart(NamedTuple):
    """What each symbol is worth over the words from one place up to another, among those that can stand on that side.

    left_TST: by the first place, then by the place behind the last; right_TST: the other way round
    """

    left_TST: list[Floats]
    right_TST: list[Floats]
    can_left_TS: Bools
    can_right_TS: Bools


class _Step(NamedTuple):
    """What of a tree is to be written next: a symbol over words, or a bracket that closes."""

    symbol: Symbol
    start: int
    end: int
    closes: bool = False


class ChartParser:
    """Parses by a grammar. The larger the beam, the fewer of the best trees are lost, and the longer it takes."""

    def __init__(self, grammar: Grammar, *, beam: float = 12.0) -> None:
        self.grammar, self.beam = grammar, beam
        self.symbols = sorted(grammar.prior)
        self.number = {symbol: place for place, symbol in enumerate(self.symbols)}
        self.prior_S = np.array([grammar.prior[symbol] for symbol in self.symbols], dtype=np.float32)
        rules = sorted((*(self.number[symbol] for symbol in rule), score) for rule, score in grammar.binary.items())
        parent_R, left_R, right_R = (np.array([rule[place] for rule in rules], dtype=np.intp) for place in range(3))
        self.score_R = np.array([rule[3] for rule in rules], dtype=np.float32)
        self.parents, self.first_R = np.unique(parent_R, return_index=True)
        self.lefts, self.rights = np.unique(left_R), np.unique(right_R)
        pairs, self.pair_R = np.unique(np.stack([left_R, right_R]), axis=1, return_inverse=True)
        self.left_P, self.right_P = np.searchsorted(self.lefts, pairs[0]), np.searchsorted(self.rights, pairs[1])
        chains = sorted(
            (self.number[ends.parent], self.number[ends.child], score) for ends, (score, _) in grammar.chains.items()
        )
        self.top_U, self.bottom_U = (np.array([chain[place] for chain in chains], dtype=np.intp) for place in range(2))
        self.score_U = np.array([chain[2] for chain in chains], dtype=np.float32)

    def parse(self, sentence: Sequence[Leaf]) -> Tree | None:
        """The best tree; a word without a tag gets one. None where the grammar has none, or the beam has lost all of them."""
        length = len(sentence)
        words = [self._word(leaf) for leaf in sentence]
        chart = _Chart(
            [np.full((len(self.lefts), length + 1), _NEVER) for _ in range(length + 1)],
            [np.full((len(self.rights), length + 1), _NEVER) for _ in range(length + 1)],
            np.zeros((length + 1, len(self.lefts)), dtype=np.bool_),
            np.zeros((length + 1, len(self.rights)), dtype=np.bool_),
        )
        for end in range(1, length + 1):
            for start in reversed(range(end)):
                below_S = self._below(chart, words, start, end)
                if below_S is not None:
                    self._keep(chart, start, end, below_S)
        return self._tree(chart, words, sentence) if length else None

    def _word(self, leaf: Leaf) -> Floats:
        found_S = np.full(len(self.symbols), _NEVER)
        for symbol, score in self.grammar.lexicon.scores(leaf.word, leaf.tag).items():
            found_S[self.number[symbol]] = score
        return found_S

    def _below(self, chart: _Chart, words: Sequence[Floats], start: int, end: int) -> Floats | None:
        """What each symbol is worth over these words as a tag, or as a bracket of two; None where nothing is."""
        if end - start == 1:
            return words[start]
        can_P = chart.can_left_TS[start][self.left_P] & chart.can_right_TS[end][self.right_P]
        pairs = np.flatnonzero(can_P)
        if not len(pairs):
            return None
        best_P = np.full(len(can_P), _NEVER)
        best_P[pairs] = self._cuts(chart, start, end, pairs).max(axis=1)
        below_S = np.full(len(self.symbols), _NEVER)
        below_S[self.parents] = np.maximum.reduceat(best_P[self.pair_R] + self.score_R, self.first_R)
        return below_S

    def _cuts(self, chart: _Chart, start: int, end: int, pairs: Ints) -> Floats:
        """What these pairs are worth at each place (P, K) where the words can be cut."""
        left_SK, right_SK = (side[:, start + 1 : end] for side in (chart.left_TST[start], chart.right_TST[end]))
        worth_PK: Floats = left_SK[self.left_P[pairs]] + right_SK[self.right_P[pairs]]
        return worth_PK

    def _keep(self, chart: _Chart, start: int, end: int, below_S: Floats) -> None:
        """Put a cell into the table, with brackets over single symbols, without what the beam cuts off."""
        cell_S = below_S.copy()
        np.maximum.at(cell_S, self.top_U, below_S[self.bottom_U] + self.score_U)
        worth_S = cell_S + self.prior_S
        cell_S[worth_S < worth_S.max() - self.beam] = _NEVER
        left, right = cell_S[self.lefts], cell_S[self.rights]
        chart.left_TST[start][:, end], chart.right_TST[end][:, start] = left, right
        chart.can_left_TS[start] |= left > _NEVER
        chart.can_right_TS[end] |= right > _NEVER

    def _tree(self, chart: _Chart, words: Sequence[Floats], sentence: Sequence[Leaf]) -> Tree | None:
        """Find each cell's best rule once more, from the root down."""
        steps: list[Event] = []
        waiting = [_Step(self.grammar.root, 0, len(sentence))]
        while waiting:
            symbol, start, end, closes = waiting.pop()
            if closes:
                steps.append(Event("close", symbol.label))
                continue
            below_S = self._below(chart, words, start, end)
            way = None if below_S is None else self._way(symbol, below_S)
            if way is None:
                return None
            opened = [one for one in way if one.kind == "label"]
            steps += (Event("open", one.label) for one in opened)
            waiting += (_Step(one, start, end, closes=True) for one in opened)
            if way[-1].kind == "tag":
                word, tag = sentence[start]
                steps.append(Event("leaf", way[-1].label if tag is None else tag, word))
            else:
                waiting += self._halves(chart, way[-1], start, end)
        return build(steps)

    def _way(self, symbol: Symbol, below_S: Floats) -> tuple[Symbol, ...] | None:
        """The symbols over the same words, from this one down to the one that branches or is a tag."""
        top = self.number[symbol]
        here = slice(*np.searchsorted(self.top_U, [top, top + 1]))
        chained = below_S[self.bottom_U[here]] + self.score_U[here]
        if len(chained) and chained.max() > below_S[top]:
            bottom = self.symbols[self.bottom_U[here][chained.argmax()]]
            return self.grammar.chains[Unary(symbol, bottom)][1]
        return (symbol,) if below_S[top] > _NEVER else None

    def _halves(self, chart: _Chart, symbol: Symbol, start: int, end: int) -> list[_Step]:
        """What a symbol that branches is made of, the right half first."""
        place = int(np.searchsorted(self.parents, self.number[symbol]))
        rules = slice(self.first_R[place], self.first_R[place + 1] if place + 1 < len(self.parents) else None)
        pairs = self.pair_R[rules]
        worth_RK = self._cuts(chart, start, end, pairs) + self.score_R[rules, None]
        rule, cut = np.unravel_index(worth_RK.argmax(), worth_RK.shape)
        left = self.symbols[self.lefts[self.left_P[pairs[rule]]]]
        right = self.symbols[self.rights[self.right_P[pairs[rule]]]]
        middle = start + 1 + int(cut)
        return [_Step(right, middle, end), _Step(left, start, middle)]

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

from dragoman.trees.pcfg import Grammar, Symbol, UnaryRule
from dragoman.trees.tree import Leaf, Tree, TreeEvent, build_tree

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_NEG_INF = np.float32(-np.inf)


class _Chart(NamedTuple):
    """What each symbol is worth over the words from one place up to another, among those that can stand on that side.

    left_TST: by the first place, then by the place behind the last; right_TST: the other way round
    """

    left_TST: list[Floats]
    right_TST: list[Floats]
    can_left_TS: Bools
    can_right_TS: Bools


class _PendingNode(NamedTuple):
    """What of a tree is to be written next: a symbol over words, or a bracket that closes."""

    symbol: Symbol
    start: int
    end: int
    is_close: bool = False


class ChartParser:
    """Parses by a grammar. The larger the beam, the fewer of the best trees are lost, and the longer it takes."""

    def __init__(self, grammar: Grammar, *, beam: float = 12.0) -> None:
        self.grammar, self.beam = grammar, beam
        self.symbols = sorted(grammar.log_prior)
        self.symbol_ids = {symbol: column for column, symbol in enumerate(self.symbols)}
        self.prior_S = np.array([grammar.log_prior[symbol] for symbol in self.symbols], dtype=np.float32)
        rules = sorted((*(self.symbol_ids[symbol] for symbol in rule), score) for rule, score in grammar.binary_rules.items())
        parent_R, left_R, right_R = (np.array([rule[place] for rule in rules], dtype=np.intp) for place in range(3))
        self.score_R = np.array([rule[3] for rule in rules], dtype=np.float32)
        self.parent_ids, self.first_R = np.unique(parent_R, return_index=True)
        self.left_ids, self.right_ids = np.unique(left_R), np.unique(right_R)
        pairs, self.pair_R = np.unique(np.stack([left_R, right_R]), axis=1, return_inverse=True)
        self.left_P, self.right_P = np.searchsorted(self.left_ids, pairs[0]), np.searchsorted(self.right_ids, pairs[1])
        chains = sorted(
            (self.symbol_ids[unary_rule.parent], self.symbol_ids[unary_rule.child], score)
            for unary_rule, (score, _) in grammar.unary_chains.items()
        )
        self.top_U, self.bottom_U = (np.array([chain[place] for chain in chains], dtype=np.intp) for place in range(2))
        self.score_U = np.array([chain[2] for chain in chains], dtype=np.float32)

    def parse(self, sentence: Sequence[Leaf]) -> Tree | None:
        """The best tree; a word without a tag gets one. None where the grammar has none, or the beam has lost all of them."""
        length = len(sentence)
        word_scores = [self._score_word(leaf) for leaf in sentence]
        chart = _Chart(
            [np.full((len(self.left_ids), length + 1), _NEG_INF) for _ in range(length + 1)],
            [np.full((len(self.right_ids), length + 1), _NEG_INF) for _ in range(length + 1)],
            np.zeros((length + 1, len(self.left_ids)), dtype=np.bool_),
            np.zeros((length + 1, len(self.right_ids)), dtype=np.bool_),
        )
        for end in range(1, length + 1):
            for start in reversed(range(end)):
                span_scores_S = self._score_span(chart, word_scores, start, end)
                if span_scores_S is not None:
                    self._store_cell(chart, start, end, span_scores_S)
        return self._extract_tree(chart, word_scores, sentence) if length else None

    def _score_word(self, leaf: Leaf) -> Floats:
        scores_S = np.full(len(self.symbols), _NEG_INF)
        for symbol, score in self.grammar.lexicon.score_symbols(leaf.word, leaf.tag).items():
            scores_S[self.symbol_ids[symbol]] = score
        return scores_S

    def _score_span(self, chart: _Chart, word_scores: Sequence[Floats], start: int, end: int) -> Floats | None:
        """What each symbol is worth over these words as a tag, or as a bracket of two; None where nothing is."""
        if end - start == 1:
            return word_scores[start]
        can_P = chart.can_left_TS[start][self.left_P] & chart.can_right_TS[end][self.right_P]
        pairs = np.flatnonzero(can_P)
        if not len(pairs):
            return None
        best_P = np.full(len(can_P), _NEG_INF)
        best_P[pairs] = self._score_splits(chart, start, end, pairs).max(axis=1)
        span_scores_S = np.full(len(self.symbols), _NEG_INF)
        span_scores_S[self.parent_ids] = np.maximum.reduceat(best_P[self.pair_R] + self.score_R, self.first_R)
        return span_scores_S

    def _score_splits(self, chart: _Chart, start: int, end: int, pairs: Ints) -> Floats:
        """What these pairs are worth at each place (P, K) where the words can be cut."""
        left_SK, right_SK = (side[:, start + 1 : end] for side in (chart.left_TST[start], chart.right_TST[end]))
        scores_PK: Floats = left_SK[self.left_P[pairs]] + right_SK[self.right_P[pairs]]
        return scores_PK

    def _store_cell(self, chart: _Chart, start: int, end: int, span_scores_S: Floats) -> None:
        """Put a cell into the table, with brackets over single symbols, without what the beam cuts off."""
        cell_S = span_scores_S.copy()
        np.maximum.at(cell_S, self.top_U, span_scores_S[self.bottom_U] + self.score_U)
        pruning_scores_S = cell_S + self.prior_S
        cell_S[pruning_scores_S < pruning_scores_S.max() - self.beam] = _NEG_INF
        left, right = cell_S[self.left_ids], cell_S[self.right_ids]
        chart.left_TST[start][:, end], chart.right_TST[end][:, start] = left, right
        chart.can_left_TS[start] |= left > _NEG_INF
        chart.can_right_TS[end] |= right > _NEG_INF

    def _extract_tree(self, chart: _Chart, word_scores: Sequence[Floats], sentence: Sequence[Leaf]) -> Tree | None:
        """Find each cell's best rule once more, from the root down."""
        tree_events: list[TreeEvent] = []
        pending = [_PendingNode(self.grammar.root, 0, len(sentence))]
        while pending:
            symbol, start, end, is_close = pending.pop()
            if is_close:
                tree_events.append(TreeEvent("close", symbol.label))
                continue
            span_scores_S = self._score_span(chart, word_scores, start, end)
            chain = None if span_scores_S is None else self._find_best_chain(symbol, span_scores_S)
            if chain is None:
                return None
            opened_symbols = [opened_symbol for opened_symbol in chain if opened_symbol.kind == "label"]
            tree_events += (TreeEvent("open", one.label) for one in opened_symbols)
            pending += (_PendingNode(one, start, end, is_close=True) for one in opened_symbols)
            if chain[-1].kind == "tag":
                word, tag = sentence[start]
                tree_events.append(TreeEvent("leaf", chain[-1].label if tag is None else tag, word))
            else:
                pending += self._find_best_split(chart, chain[-1], start, end)
        return build_tree(tree_events)

    def _find_best_chain(self, symbol: Symbol, span_scores_S: Floats) -> tuple[Symbol, ...] | None:
        """The symbols over the same words, from this one down to the one that branches or is a tag."""
        symbol_id = self.symbol_ids[symbol]
        chain_range = slice(*np.searchsorted(self.top_U, [symbol_id, symbol_id + 1]))
        chain_scores = span_scores_S[self.bottom_U[chain_range]] + self.score_U[chain_range]
        if len(chain_scores) and chain_scores.max() > span_scores_S[symbol_id]:
            bottom = self.symbols[self.bottom_U[chain_range][chain_scores.argmax()]]
            return self.grammar.unary_chains[UnaryRule(symbol, bottom)][1]
        return (symbol,) if span_scores_S[symbol_id] > _NEG_INF else None

    def _find_best_split(self, chart: _Chart, symbol: Symbol, start: int, end: int) -> list[_PendingNode]:
        """What a symbol that branches is made of, the right half first."""
        parent_index = int(np.searchsorted(self.parent_ids, self.symbol_ids[symbol]))
        rule_range = slice(
            self.first_R[parent_index], self.first_R[parent_index + 1] if parent_index + 1 < len(self.parent_ids) else None
        )
        pairs = self.pair_R[rule_range]
        scores_RK = self._score_splits(chart, start, end, pairs) + self.score_R[rule_range, None]
        rule, split_index = np.unravel_index(scores_RK.argmax(), scores_RK.shape)
        left = self.symbols[self.left_ids[self.left_P[pairs[rule]]]]
        right = self.symbols[self.right_ids[self.right_P[pairs[rule]]]]
        middle = start + 1 + int(split_index)
        return [_PendingNode(right, middle, end), _PendingNode(left, start, middle)]

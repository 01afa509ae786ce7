"""CKY chart parser: the most probable tree of a sentence under a grammar (Cocke, Kasami and Younger).

Each cell applies all rules at all split points at once. It keeps the symbols whose log-probability, with the prior of the
symbol, is within `beam` of the best one. The result is the best tree among those that this pruning leaves.

Shapes: S symbols, P pairs of child symbols, R rules, U unary chains, K split points, T boundaries between words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.paper.pcfg import Grammar, Symbol, UnaryRule
from dragoman.parsing.trees.tree import Leaf, Tree, TreeEvent, build_tree

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_NEG_INF = np.float32(-np.inf)


class _Chart(NamedTuple):
    """Log-probability of each symbol over each span, for the symbols that occur as a left or as a right child.

    left_TST: by the start of the span, then by symbol and end
    right_TST: by the end of the span, then by symbol and start
    can_left_TS, can_right_TS: whether any span with this start (end) has the symbol
    """

    left_TST: list[Floats]
    right_TST: list[Floats]
    can_left_TS: Bools
    can_right_TS: Bools


class _PendingNode(NamedTuple):
    """Next step of the tree's construction: a symbol over a span, or the end of its bracket."""

    symbol: Symbol
    start: int
    end: int
    is_close: bool = False


class ChartParser:
    """Chart parser for a grammar. A larger beam (in nats) loses fewer of the best trees and takes longer."""

    def __init__(self, grammar: Grammar, *, beam: float = 12.0) -> None:
        self.grammar, self.beam = grammar, beam
        self.symbols = sorted(grammar.log_prior)
        self.symbol_ids = {symbol: column for column, symbol in enumerate(self.symbols)}
        self.prior_S = np.array([grammar.log_prior[symbol] for symbol in self.symbols], dtype=np.float32)
        rules = sorted((*(self.symbol_ids[symbol] for symbol in rule), score) for rule, score in grammar.binary_rules.items())
        parent_R, left_R, right_R = (np.array([rule[field] for rule in rules], dtype=np.intp) for field in range(3))
        self.score_R = np.array([rule[3] for rule in rules], dtype=np.float32)
        self.parent_ids, self.first_R = np.unique(parent_R, return_index=True)
        self.left_ids, self.right_ids = np.unique(left_R), np.unique(right_R)
        pairs, self.pair_R = np.unique(np.stack([left_R, right_R]), axis=1, return_inverse=True)
        self.left_P, self.right_P = np.searchsorted(self.left_ids, pairs[0]), np.searchsorted(self.right_ids, pairs[1])
        chains = sorted(
            (self.symbol_ids[unary_rule.parent], self.symbol_ids[unary_rule.child], score)
            for unary_rule, (score, _) in grammar.unary_chains.items()
        )
        self.top_U, self.bottom_U = (np.array([chain[field] for chain in chains], dtype=np.intp) for field in range(2))
        self.score_U = np.array([chain[2] for chain in chains], dtype=np.float32)

    def parse(self, sentence: Sequence[Leaf]) -> Tree | None:
        """Return the best tree, or None if the grammar has no tree or the beam prunes all. Words without a tag get one."""
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
        """Return the log-probability of each symbol over this span as a tag or by a binary rule, or None without any. → (S,)"""
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
        """Return the log-probability of these pairs at each split point. → (P, K)"""
        left_SK, right_SK = (side[:, start + 1 : end] for side in (chart.left_TST[start], chart.right_TST[end]))
        scores_PK: Floats = left_SK[self.left_P[pairs]] + right_SK[self.right_P[pairs]]
        return scores_PK

    def _store_cell(self, chart: _Chart, start: int, end: int, span_scores_S: Floats) -> None:
        """Add unary chains to a cell, prune it and store it in the chart."""
        cell_S = span_scores_S.copy()
        np.maximum.at(cell_S, self.top_U, span_scores_S[self.bottom_U] + self.score_U)
        pruning_scores_S = cell_S + self.prior_S
        cell_S[pruning_scores_S < pruning_scores_S.max() - self.beam] = _NEG_INF
        left, right = cell_S[self.left_ids], cell_S[self.right_ids]
        chart.left_TST[start][:, end], chart.right_TST[end][:, start] = left, right
        chart.can_left_TS[start] |= left > _NEG_INF
        chart.can_right_TS[end] |= right > _NEG_INF

    def _extract_tree(self, chart: _Chart, word_scores: Sequence[Floats], sentence: Sequence[Leaf]) -> Tree | None:
        """Return the best tree by a second search for the best rule of each cell, from the root down."""
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
            opened_symbols = [opened_symbol for opened_symbol in chain if opened_symbol.is_label]
            tree_events += (TreeEvent("open", opened_symbol.label) for opened_symbol in opened_symbols)
            pending += (_PendingNode(opened_symbol, start, end, is_close=True) for opened_symbol in opened_symbols)
            if chain[-1].is_tag:
                word, tag = sentence[start]
                tree_events.append(TreeEvent("leaf", chain[-1].label if tag is None else tag, word))
            else:
                pending += self._find_best_split(chart, chain[-1], start, end)
        return build_tree(tree_events)

    def _find_best_chain(self, symbol: Symbol, span_scores_S: Floats) -> tuple[Symbol, ...] | None:
        """Return the symbols of the best unary chain from this one down to a symbol that branches or is a tag."""
        symbol_id = self.symbol_ids[symbol]
        chain_range = slice(*np.searchsorted(self.top_U, [symbol_id, symbol_id + 1]))
        chain_scores = span_scores_S[self.bottom_U[chain_range]] + self.score_U[chain_range]
        if len(chain_scores) and chain_scores.max() > span_scores_S[symbol_id]:
            bottom = self.symbols[self.bottom_U[chain_range][chain_scores.argmax()]]
            return self.grammar.unary_chains[UnaryRule(symbol, bottom)][1]
        return (symbol,) if span_scores_S[symbol_id] > _NEG_INF else None

    def _find_best_split(self, chart: _Chart, symbol: Symbol, start: int, end: int) -> list[_PendingNode]:
        """Return the children of a symbol that branches, the right one first."""
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

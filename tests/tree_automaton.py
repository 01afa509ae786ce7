"""Tokens that may come next in a linearized tree, by rules that read one output from its start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dragoman.parsing.trees.constraint_automaton import ConstraintAutomaton

OPEN, WORD, CLOSE, END = 1, 2, 3, 4
"""Kinds of tokens in `ConstraintAutomaton.kind_V`."""


def find_allowed_tokens(
    automaton: ConstraintAutomaton, output: Sequence[int], length: int, limit: int
) -> npt.NDArray[np.bool_]:
    """Return whether each token may follow an output over `length` words, of at most `limit` tokens. (V,)"""
    open_labels, words_left, opens = list[int](), length, 0
    for token in output:
        kind = automaton.kind_V[token]
        opens = opens + 1 if kind == OPEN else 0
        words_left -= kind == WORD
        if kind == OPEN:
            open_labels.append(automaton.label_V[token])
        elif kind == CLOSE:
            open_labels.pop()
    if not open_labels and not words_left:
        return np.array(automaton.kind_V == END)
    depth = len(open_labels)
    kinds = {WORD} if words_left and depth else set()
    # A bracket with a word in it, all other words, the closing brackets and the end must fit.
    if words_left and limit - len(output) >= 1 + words_left + depth + 1 + 1:
        kinds |= {OPEN} if depth < automaton.max_depth and opens < automaton.max_consecutive_opens else set()
    kinds |= {CLOSE} if not opens and (depth > 1 or not words_left) else set()
    is_allowed_V = np.isin(automaton.kind_V, list(kinds))
    if CLOSE in kinds:
        is_allowed_V &= (automaton.kind_V != CLOSE) | np.isin(automaton.label_V, (open_labels[-1], -1))
    return np.array(is_allowed_V)

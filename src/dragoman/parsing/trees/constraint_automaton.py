"""Stack automaton of the tokens that may come next, so that an output becomes a well-formed tree over exactly n words.

The allowed tokens depend on three things: whether a bracket may open, whether a word may come, and which label may close. So
the masks are the rows of one small table, which is copied to a device once. `compute_mask_row` selects rows, and the search
computes no masks.

Shapes: V vocabulary, R rows of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.parsing.trees.linearization import Action, Linearization

Bools = npt.NDArray[np.bool_]

_INVALID, _OPEN, _WORD, _CLOSE, _END = range(5)
_KIND_IDS = {"invalid": _INVALID, "open": _OPEN, "word": _WORD, "close": _CLOSE}


class ConstraintAutomaton:
    """Automaton for one linearization and one vocabulary.

    max_depth: maximum number of open brackets
    max_consecutive_opens: maximum number of brackets that open between two words; limits unary chains
    """

    def __init__(
        self,
        linearization: Linearization,
        vocabulary: Sequence[str],
        *,
        end_id: int,
        special_ids: Sequence[int] = (),
        max_depth: int = 64,
        max_consecutive_opens: int = 16,
    ) -> None:
        """Build the mask table.

        end_id: token that ends an output
        special_ids: tokens that no output contains

        Raises ValueError for a limit below 1 and for a vocabulary that cannot express a tree.
        """
        if min(max_depth, max_consecutive_opens) < 1:
            raise ValueError(
                f"max_depth = {max_depth}, max_consecutive_opens = {max_consecutive_opens}: too small; use 1 or more"
            )
        actions = linearization.parse_actions(vocabulary)
        for token_id in (end_id, *special_ids):
            actions[token_id] = Action("invalid")
        self.max_depth, self.max_consecutive_opens, self.end_id = max_depth, max_consecutive_opens, end_id
        closing_labels = {action.label for action in actions if action.is_close}
        closes_any_label = None in closing_labels
        opening_labels = {
            action.label for action in actions if action.is_open and (closes_any_label or action.label in closing_labels)
        }
        self.labels = sorted(label or "" for label in opening_labels)
        label_ids = {label: label_id for label_id, label in enumerate(self.labels)}

        self.kind_V = np.array([_KIND_IDS[action.kind] for action in actions], dtype=np.int32)
        self.label_V = np.full(len(actions), -1, dtype=np.int32)
        for token, action in enumerate(actions):
            if (action.is_open or action.is_close) and action.label is not None:
                self.label_V[token] = label_ids.get(action.label, -1)
                if action.label not in label_ids:
                    self.kind_V[token] = _INVALID
        self.kind_V[end_id] = _END
        if not self.labels or not (self.kind_V == _WORD).any():
            raise ValueError(
                "vocabulary: no label has both brackets, or no token stands for a word; learn the vocabulary from trees"
            )
        self.mask_table_RV = self._build_mask_table()
        # Change of the number of open brackets and of the number of words by each token.
        self.depth_change_V = (self.kind_V == _OPEN).astype(np.int64) - (self.kind_V == _CLOSE)
        self.word_change_V = (self.kind_V == _WORD).astype(np.int64)

    def _build_mask_table(self) -> Bools:
        """Return the masks by closing label (none first), opening bracket (no, yes) and word (no, yes). → (R, V)

        The last mask allows the end token only.
        """
        open_V, word_V = self.kind_V == _OPEN, self.kind_V == _WORD
        rows = []
        for label in range(-1, len(self.labels)):
            close_V = (self.kind_V == _CLOSE) & np.isin(self.label_V, (label, -1)) & (label >= 0)
            for can_open in (False, True):
                rows += [close_V | (open_V & can_open) | (word_V & can_add_word) for can_add_word in (False, True)]
        return np.stack([*rows, self.kind_V == _END])

    def check_limits(self, lengths: Sequence[int], max_tokens: Sequence[int]) -> None:
        """Raise ValueError if `max_tokens`, the end token included, allows no tree over a sentence of this many words."""
        for length, max_length in zip(lengths, max_tokens, strict=True):
            if max_length < self.min_tokens(length):
                raise ValueError(
                    f"max_tokens = {max_length}: a tree over {length} words needs {self.min_tokens(length)}; use at least these"
                )

    @staticmethod
    def min_tokens(length: int) -> int:
        """Return the number of tokens of the shortest tree over `length` words: one pair of brackets and the end token."""
        return length + 3 if length else 1

    def compute_mask_row(
        self, num_words_left: Any, depth: Any, consecutive_opens: Any, tokens_left: Any, top_label: Any
    ) -> Any:
        """Return the row of `mask_table_RV` for numbers, arrays, or tensors on any device.

        num_words_left: number of words still to come
        depth: number of open brackets
        consecutive_opens: number of brackets opened since the last word or closing bracket
        tokens_left: number of tokens that may still come, the end token included
        top_label: label id of the innermost open bracket
        """
        has_words_left = num_words_left > 0
        can_add_word = has_words_left & (depth > 0)
        # After this bracket opens, there must be tokens left for the words, all closing brackets and the end token.
        has_enough_tokens = tokens_left >= num_words_left + depth + 3
        can_open = (
            has_words_left & has_enough_tokens & (depth < self.max_depth) & (consecutive_opens < self.max_consecutive_opens)
        )
        # A bracket without content cannot close; the outermost one closes only after the last word.
        can_close = (consecutive_opens == 0) & (depth > has_words_left)
        rows = 4 * (can_close * (top_label + 1)) + 2 * can_open + can_add_word
        at_end = (num_words_left <= 0) & (depth == 0)
        return rows + at_end * (len(self.mask_table_RV) - 1 - rows)

"""Stack automaton of the tokens that may come next, so that an output becomes a well-formed tree over exactly n words.

It advances a batch of hypotheses at once, as plain arrays. The allowed tokens depend on three things: whether a bracket may
open, whether a word may come, and which label may close. So the masks are the rows of one small table, which is copied to a
device once. `get_mask_rows` selects rows, and the search computes no masks.

Shapes: N hypotheses, V vocabulary, R rows of the table, D maximum depth, W words of the longest sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.parsing.trees.linearization import Action, Linearization, TopDownLinearization

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_INVALID, _OPEN, _WORD, _CLOSE, _END = range(5)
_KIND_IDS = {"invalid": _INVALID, "open": _OPEN, "word": _WORD, "close": _CLOSE}


@dataclass(frozen=True, slots=True)
class AutomatonState:
    """State of each hypothesis.

    stack_ND: label ids of the open brackets, the outermost first; entries from `depth_N` on have no meaning
    depth_N: number of open brackets
    length_N: number of words in the sentence
    words_left_N: number of words still to come
    consecutive_opens_N: number of brackets opened since the last word or closing bracket
    tokens_left_N: number of tokens that may still come, the end token included
    is_finished_N: whether the hypothesis has its end token
    word_ids_NW: ids of the sentence's words if the linearization has words as tokens, else (N, 0)
    """

    stack_ND: Ints
    depth_N: Ints
    length_N: Ints
    words_left_N: Ints
    consecutive_opens_N: Ints
    tokens_left_N: Ints
    is_finished_N: Bools
    word_ids_NW: Ints

    def next_word_positions(self) -> Ints:
        """Return the index of each hypothesis's next word, or the sentence length after the last word. → (N,)"""
        return self.length_N - self.words_left_N

    def next_word_ids(self) -> Ints:
        """Return the id of each next word, or -1 after the last word, for a linearization with words as tokens. → (N,)"""
        padded_NW = np.pad(self.word_ids_NW, ((0, 0), (0, 1)), constant_values=-1)
        last_position = padded_NW.shape[1] - 1
        return np.take_along_axis(padded_NW, self.next_word_positions().clip(max=last_position)[:, None], axis=1)[:, 0]

    def reorder(self, rows_N: npt.ArrayLike) -> AutomatonState:
        """Return the state of the hypotheses at these rows, which may repeat."""
        rows = np.asarray(rows_N)
        return AutomatonState(*(getattr(self, field.name)[rows] for field in fields(self)))


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
        self.has_word_tokens = isinstance(linearization, TopDownLinearization)
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
        if self.has_word_tokens:
            word_V = np.zeros_like(word_V)  # `get_allowed_mask` adds the next word of the sentence
        rows = []
        for label in range(-1, len(self.labels)):
            close_V = (self.kind_V == _CLOSE) & np.isin(self.label_V, (label, -1)) & (label >= 0)
            for can_open in (False, True):
                rows += [close_V | (open_V & can_open) | (word_V & can_add_word) for can_add_word in (False, True)]
        return np.stack([*rows, self.kind_V == _END])

    def initial_state(
        self, lengths: Sequence[int], max_tokens: Sequence[int], word_ids: Sequence[Sequence[int]] | None = None
    ) -> AutomatonState:
        """Return the state before the first token.

        lengths: number of words of each sentence
        max_tokens: maximum number of output tokens of each sentence, the end token included
        word_ids: ids of each sentence's words, for a linearization with words as tokens

        Raises ValueError if `max_tokens` allows no tree, or if word ids are missing or no words.
        """
        if self.has_word_tokens and (word_ids is None or [len(ids) for ids in word_ids] != list(lengths)):
            raise ValueError("word_ids: this linearization has words as tokens; give the id of each word of each sentence")
        for length, max_length in zip(lengths, max_tokens, strict=True):
            if max_length < self.min_tokens(length):
                raise ValueError(
                    f"max_tokens = {max_length}: a tree over {length} words needs {self.min_tokens(length)}; use at least these"
                )
        ids = word_ids if self.has_word_tokens and word_ids is not None else [[] for _ in lengths]
        words_NW = np.full((len(lengths), max(map(len, ids), default=0)), -1, dtype=np.int32)
        for row, sentence_ids in enumerate(ids):
            if any(not 0 <= token < len(self.kind_V) or self.kind_V[token] != _WORD for token in sentence_ids):
                raise ValueError(f"word_ids: a word of sentence {row} is not in the vocabulary; check its id")
            words_NW[row, : len(sentence_ids)] = sentence_ids
        length_N, zeros_N = np.array(lengths, dtype=np.int32), np.zeros(len(lengths), dtype=np.int32)
        return AutomatonState(
            stack_ND=np.zeros((len(lengths), self.max_depth), dtype=np.int32),
            depth_N=zeros_N,
            length_N=length_N,
            words_left_N=length_N,
            consecutive_opens_N=zeros_N,
            tokens_left_N=np.array(max_tokens, dtype=np.int32),
            is_finished_N=np.zeros(len(lengths), dtype=np.bool_),
            word_ids_NW=words_NW,
        )

    @staticmethod
    def min_tokens(length: int) -> int:
        """Return the number of tokens of the shortest tree over `length` words: one pair of brackets and the end token."""
        return length + 3 if length else 1

    def get_mask_rows(self, state: AutomatonState) -> Ints:
        """Return the row of `mask_table_RV` for each hypothesis. → (N,)

        For a linearization with words as tokens, an odd row also allows the sentence's next word.
        """
        top_N = state.stack_ND[np.arange(len(state.depth_N)), state.depth_N - 1]  # has no meaning without an open bracket
        rows_N = self.compute_mask_row(state.words_left_N, state.depth_N, state.consecutive_opens_N, state.tokens_left_N, top_N)
        return np.where(state.is_finished_N, len(self.mask_table_RV) - 1, rows_N).astype(np.int32)

    def compute_mask_row(
        self, num_words_left: Any, depth: Any, consecutive_opens: Any, tokens_left: Any, top_label: Any
    ) -> Any:
        """Return the row of `mask_table_RV` for numbers, arrays, or tensors on any device.

        The arguments are the fields of `AutomatonState`, and the label id of the innermost open bracket.
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

    def get_allowed_mask(self, state: AutomatonState) -> Bools:
        """Return whether each token may come next; after the end token, only the end token may. → (N, V)"""
        rows_N = self.get_mask_rows(state)
        mask_NV = self.mask_table_RV[rows_N]
        if self.has_word_tokens:
            [word_rows] = np.nonzero((rows_N % 2 == 1) & (rows_N < len(self.mask_table_RV) - 1))
            mask_NV[word_rows, state.next_word_ids()[word_rows]] = True
        return mask_NV

    def advance(self, state: AutomatonState, tokens_N: npt.ArrayLike) -> AutomatonState:
        """Return the state after one more allowed token of each hypothesis."""
        tokens = np.asarray(tokens_N)
        kind_N = np.where(state.is_finished_N, _END, self.kind_V[tokens])
        opened_N, closed_N = kind_N == _OPEN, kind_N == _CLOSE
        stack_ND = state.stack_ND.copy()
        stack_ND[opened_N, state.depth_N[opened_N]] = self.label_V[tokens[opened_N]]
        return replace(
            state,
            stack_ND=stack_ND,
            depth_N=state.depth_N + opened_N - closed_N,
            words_left_N=state.words_left_N - (kind_N == _WORD),
            consecutive_opens_N=np.where(opened_N, state.consecutive_opens_N + 1, 0).astype(np.int32),
            tokens_left_N=state.tokens_left_N - ~state.is_finished_N,
            is_finished_N=kind_N == _END,
        )

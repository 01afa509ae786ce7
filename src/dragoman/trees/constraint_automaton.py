"""Which tokens may follow, so that a sequence ends as a well-formed tree over exactly n words: a stack automaton.

It runs over a batch of hypotheses at once, as plain arrays. What may follow depends on few things: whether a bracket may open,
whether a word may come, and which label may close. So the masks are the rows of one small table, which can be put on a device
once; `rows` picks them, and no mask is ever computed in the search.

Shapes: N hypotheses, V vocabulary, R rows of the table, D deepest, W words of the longest sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.trees.linearization import Action, Linearization, TopDownLinearization

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_INVALID, _OPEN, _WORD, _CLOSE, _END = range(5)
_KIND_IDS = {"junk": _INVALID, "open": _OPEN, "word": _WORD, "close": _CLOSE}


@dataclass(frozen=True, slots=True)
class AutomatonState:
    """How far each hypothesis is.

    stack_ND: labels of the open brackets, the outermost first; beyond `depth_N` without meaning
    left_N: words that are yet to come
    opens_N: brackets opened since the last word or closing one
    room_N: tokens that may yet come, the end among them
    words_NW: ids of the sentence's words where tokens tell words, else of no width
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
        """The place of each hypothesis' next word (N); the sentence's length where there is none left."""
        return self.length_N - self.words_left_N

    def next_word_ids(self) -> Ints:
        """The id of each next word's token (N) where tokens tell words; -1 where none is left."""
        padded_NW = np.pad(self.word_ids_NW, ((0, 0), (0, 1)), constant_values=-1)
        last_position = padded_NW.shape[1] - 1
        return np.take_along_axis(padded_NW, self.next_word_positions().clip(max=last_position)[:, None], axis=1)[:, 0]

    def reorder(self, rows_N: npt.ArrayLike) -> AutomatonState:
        """The hypotheses at these rows, as often as they are named."""
        rows = np.asarray(rows_N)
        return AutomatonState(*(getattr(self, field.name)[rows] for field in fields(self)))


class ConstraintAutomaton:
    """What may follow in one way to write trees, with the tokens of one vocabulary.

    deepest: brackets that may be open at once
    most_opens: brackets that may open between one word and the next; bounds chains of brackets over the same words
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
        """`end` is the id of the token that ends a sequence, `special` are ids that never stand in one.

        Raises ValueError for a vocabulary that no tree can be written with.
        """
        if min(max_depth, max_consecutive_opens) < 1:
            raise ValueError(f"deepest {max_depth} and most_opens {max_consecutive_opens} must be at least 1")
        actions = linearization.parse_actions(vocabulary)
        for token_id in (end_id, *special_ids):
            actions[token_id] = Action("junk")
        self.max_depth, self.max_consecutive_opens, self.end_id = max_depth, max_consecutive_opens, end_id
        self.has_word_tokens = isinstance(linearization, TopDownLinearization)
        closing_labels = {action.label for action in actions if action.kind == "close"}
        closes_any_label = None in closing_labels
        opening_labels = {
            action.label for action in actions if action.kind == "open" and (closes_any_label or action.label in closing_labels)
        }
        self.labels = sorted(label or "" for label in opening_labels)
        label_ids = {label: number for number, label in enumerate(self.labels)}

        self.kind_V = np.array([_KIND_IDS[action.kind] for action in actions], dtype=np.int32)
        self.label_V = np.full(len(actions), -1, dtype=np.int32)
        for token, action in enumerate(actions):
            if action.kind in ("open", "close") and action.label is not None:
                self.label_V[token] = label_ids.get(action.label, -1)
                if action.label not in label_ids:
                    self.kind_V[token] = _INVALID
        self.kind_V[end_id] = _END
        if not self.labels or not (self.kind_V == _WORD).any():
            raise ValueError("the vocabulary has no label that opens and closes, or no token for a word")
        self.mask_table_RV = self._build_mask_table()
        # By how much a token changes how many brackets are open, and how many words have been.
        self.depth_change_V = (self.kind_V == _OPEN).astype(np.int64) - (self.kind_V == _CLOSE)
        self.word_change_V = (self.kind_V == _WORD).astype(np.int64)

    def _build_mask_table(self) -> Bools:
        """The masks: for each label that may close, none first, without and with opening, without and with a word; the end."""
        open_V, word_V = self.kind_V == _OPEN, self.kind_V == _WORD
        if self.has_word_tokens:
            word_V = np.zeros_like(word_V)  # only the sentence's next one, which `allowed` lets in
        rows = []
        for label in range(-1, len(self.labels)):
            close_V = (self.kind_V == _CLOSE) & np.isin(self.label_V, (label, -1)) & (label >= 0)
            for can_open in (False, True):
                rows += [close_V | (open_V & can_open) | (word_V & can_add_word) for can_add_word in (False, True)]
        return np.stack([*rows, self.kind_V == _END])

    def initial_state(
        self, lengths: Sequence[int], max_tokens: Sequence[int], word_ids: Sequence[Sequence[int]] | None = None
    ) -> AutomatonState:
        """Nothing is written yet.

        lengths: words of each sentence
        rooms: the most tokens that may be written for it, the end among them
        words: ids of each sentence's words, where tokens tell words
        Raises ValueError where no tree fits into the room, or words are missing.
        """
        if self.has_word_tokens and (word_ids is None or [len(ids) for ids in word_ids] != list(lengths)):
            raise ValueError("this way to write trees tells the words, so the id of each is needed")
        for length, max_length in zip(lengths, max_tokens, strict=True):
            if max_length < self.min_tokens(length):
                raise ValueError(
                    f"a tree over {length} words takes {self.min_tokens(length)} tokens at least, not {max_length}"
                )
        ids = word_ids if self.has_word_tokens and word_ids is not None else [[] for _ in lengths]
        words_NW = np.full((len(lengths), max(map(len, ids), default=0)), -1, dtype=np.int32)
        for row, sentence_ids in enumerate(ids):
            if any(not 0 <= token < len(self.kind_V) or self.kind_V[token] != _WORD for token in sentence_ids):
                raise ValueError(f"a word of sentence {row} has no token in the vocabulary")
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
        """Tokens of the shortest tree over so many words: one bracket, and the end."""
        return length + 3 if length else 1

    def get_mask_rows(self, state: AutomatonState) -> Ints:
        """The row of `table_RV` for each hypothesis (N). Where tokens tell words, `next_word` may come, too, in odd rows."""
        top_N = state.stack_ND[np.arange(len(state.depth_N)), state.depth_N - 1]  # of no meaning where none is open
        rows_N = self.compute_mask_row(state.words_left_N, state.depth_N, state.consecutive_opens_N, state.tokens_left_N, top_N)
        return np.where(state.is_finished_N, len(self.mask_table_RV) - 1, rows_N).astype(np.int32)

    def compute_mask_row(
        self, num_words_left: Any, depth: Any, consecutive_opens: Any, tokens_left: Any, top_label: Any
    ) -> Any:
        """The row of `table_RV` by what a hypothesis' state comes down to: numbers, arrays, or tensors on any device.

        They are what `Stacks` calls left_N, depth_N, opens_N and room_N, and the label of the innermost open bracket.
        """
        has_words_left = num_words_left > 0
        can_add_word = has_words_left & (depth > 0)
        # After it, the words left, the brackets open, this one and the end must have room.
        has_room = tokens_left >= num_words_left + depth + 3
        can_open = has_words_left & has_room & (depth < self.max_depth) & (consecutive_opens < self.max_consecutive_opens)
        # A bracket that has just opened is empty; the outermost waits for all words.
        can_close = (consecutive_opens == 0) & (depth > has_words_left)
        rows = 4 * (can_close * (top_label + 1)) + 2 * can_open + can_add_word
        at_end = (num_words_left <= 0) & (depth == 0)
        return rows + at_end * (len(self.mask_table_RV) - 1 - rows)

    def get_allowed_mask(self, state: AutomatonState) -> Bools:
        """Of shape N, V: whether a token may follow. After the end, only the end may."""
        rows_N = self.get_mask_rows(state)
        mask_NV = self.mask_table_RV[rows_N]
        if self.has_word_tokens:
            [word_rows] = np.nonzero((rows_N % 2 == 1) & (rows_N < len(self.mask_table_RV) - 1))
            mask_NV[word_rows, state.next_word_ids()[word_rows]] = True
        return mask_NV

    def advance(self, state: AutomatonState, tokens_N: npt.ArrayLike) -> AutomatonState:
        """Each hypothesis with one more token, which must be one of those that may follow."""
        tokens = np.asarray(tokens_N)
        kind_N = np.where(state.is_finished_N, _END, self.kind_V[tokens])
        opened_N, closed_N = kind_N == _OPEN, kind_N == _CLOSE
        stack_ND = state.stack_ND.copy()
        stack_ND[opened_N, state.depth_N[opened_N]] = self.label_V[tokens[opened_N]]
        return replace(
            state,
            stack_ND=stack_ND,
            depth_N=state.depth_N + opened_N - closed_N,
            left_N=state.words_left_N - (kind_N == _WORD),
            opens_N=np.where(opened_N, state.consecutive_opens_N + 1, 0).astype(np.int32),
            room_N=state.tokens_left_N - ~state.is_finished_N,
            ended_N=kind_N == _END,
        )

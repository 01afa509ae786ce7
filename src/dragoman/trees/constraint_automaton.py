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

from dragoman.trees.linearization import Action, Linearisation, TopDown

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_NEVER, _OPEN, _WORD, _CLOSE, _END = range(5)
_KINDS = {"junk": _NEVER, "open": _OPEN, "word": _WORD, "close": _CLOSE}


@dataclass(frozen=True, slots=True)
class Stacks:
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
    left_N: Ints
    opens_N: Ints
    room_N: Ints
    ended_N: Bools
    words_NW: Ints

    def pointer(self) -> Ints:
        """The place of each hypothesis' next word (N); the sentence's length where there is none left."""
        return self.length_N - self.left_N

    def next_word(self) -> Ints:
        """The id of each next word's token (N) where tokens tell words; -1 where none is left."""
        padded_NW = np.pad(self.words_NW, ((0, 0), (0, 1)), constant_values=-1)
        last = padded_NW.shape[1] - 1
        return np.take_along_axis(padded_NW, self.pointer().clip(max=last)[:, None], axis=1)[:, 0]

    def reorder(self, rows_N: npt.ArrayLike) -> Stacks:
        """The hypotheses at these rows, as often as they are named."""
        rows = np.asarray(rows_N)
        return Stacks(*(getattr(self, field.name)[rows] for field in fields(self)))


class Automaton:
    """What may follow in one way to write trees, with the tokens of one vocabulary.

    deepest: brackets that may be open at once
    most_opens: brackets that may open between one word and the next; bounds chains of brackets over the same words
    """

    def __init__(
        self,
        how: Linearisation,
        vocabulary: Sequence[str],
        *,
        end: int,
        special: Sequence[int] = (),
        deepest: int = 64,
        most_opens: int = 16,
    ) -> None:
        """`end` is the id of the token that ends a sequence, `special` are ids that never stand in one.

        Raises ValueError for a vocabulary that no tree can be written with.
        """
        if min(deepest, most_opens) < 1:
            raise ValueError(f"deepest {deepest} and most_opens {most_opens} must be at least 1")
        actions = how.actions(vocabulary)
        for never in (end, *special):
            actions[never] = Action("junk")
        self.deepest, self.most_opens, self.end = deepest, most_opens, end
        self.tells_words = isinstance(how, TopDown)
        closing = {action.label for action in actions if action.kind == "close"}
        any_label = None in closing
        opening = {action.label for action in actions if action.kind == "open" and (any_label or action.label in closing)}
        self.labels = sorted(label or "" for label in opening)
        index = {label: number for number, label in enumerate(self.labels)}

        self.kind_V = np.array([_KINDS[action.kind] for action in actions], dtype=np.int32)
        self.label_V = np.full(len(actions), -1, dtype=np.int32)
        for token, action in enumerate(actions):
            if action.kind in ("open", "close") and action.label is not None:
                self.label_V[token] = index.get(action.label, -1)
                if action.label not in index:
                    self.kind_V[token] = _NEVER
        self.kind_V[end] = _END
        if not self.labels or not (self.kind_V == _WORD).any():
            raise ValueError("the vocabulary has no label that opens and closes, or no token for a word")
        self.table_RV = self._table()
        # By how much a token changes how many brackets are open, and how many words have been.
        self.deeper_V = (self.kind_V == _OPEN).astype(np.int64) - (self.kind_V == _CLOSE)
        self.wordier_V = (self.kind_V == _WORD).astype(np.int64)

    def _table(self) -> Bools:
        """The masks: for each label that may close, none first, without and with opening, without and with a word; the end."""
        open_V, word_V = self.kind_V == _OPEN, self.kind_V == _WORD
        if self.tells_words:
            word_V = np.zeros_like(word_V)  # only the sentence's next one, which `allowed` lets in
        rows = []
        for label in range(-1, len(self.labels)):
            close_V = (self.kind_V == _CLOSE) & np.isin(self.label_V, (label, -1)) & (label >= 0)
            for opens in (False, True):
                rows += [close_V | (open_V & opens) | (word_V & words) for words in (False, True)]
        return np.stack([*rows, self.kind_V == _END])

    def start(self, lengths: Sequence[int], rooms: Sequence[int], words: Sequence[Sequence[int]] | None = None) -> Stacks:
        """Nothing is written yet.

        lengths: words of each sentence
        rooms: the most tokens that may be written for it, the end among them
        words: ids of each sentence's words, where tokens tell words
        Raises ValueError where no tree fits into the room, or words are missing.
        """
        if self.tells_words and (words is None or [len(ids) for ids in words] != list(lengths)):
            raise ValueError("this way to write trees tells the words, so the id of each is needed")
        for length, room in zip(lengths, rooms, strict=True):
            if room < self.least_room(length):
                raise ValueError(f"a tree over {length} words takes {self.least_room(length)} tokens at least, not {room}")
        ids = words if self.tells_words and words is not None else [[] for _ in lengths]
        words_NW = np.full((len(lengths), max(map(len, ids), default=0)), -1, dtype=np.int32)
        for row, one in enumerate(ids):
            if any(not 0 <= token < len(self.kind_V) or self.kind_V[token] != _WORD for token in one):
                raise ValueError(f"a word of sentence {row} has no token in the vocabulary")
            words_NW[row, : len(one)] = one
        length_N, zeros_N = np.array(lengths, dtype=np.int32), np.zeros(len(lengths), dtype=np.int32)
        return Stacks(
            stack_ND=np.zeros((len(lengths), self.deepest), dtype=np.int32),
            depth_N=zeros_N,
            length_N=length_N,
            left_N=length_N,
            opens_N=zeros_N,
            room_N=np.array(rooms, dtype=np.int32),
            ended_N=np.zeros(len(lengths), dtype=np.bool_),
            words_NW=words_NW,
        )

    @staticmethod
    def least_room(length: int) -> int:
        """Tokens of the shortest tree over so many words: one bracket, and the end."""
        return length + 3 if length else 1

    def rows(self, state: Stacks) -> Ints:
        """The row of `table_RV` for each hypothesis (N). Where tokens tell words, `next_word` may come, too, in odd rows."""
        top_N = state.stack_ND[np.arange(len(state.depth_N)), state.depth_N - 1]  # of no meaning where none is open
        rows_N = self.row_of(state.left_N, state.depth_N, state.opens_N, state.room_N, top_N)
        return np.where(state.ended_N, len(self.table_RV) - 1, rows_N).astype(np.int32)

    def row_of(self, left: Any, depth: Any, opens: Any, room: Any, top: Any) -> Any:
        """The row of `table_RV` by what a hypothesis' state comes down to: numbers, arrays, or tensors on any device.

        They are what `Stacks` calls left_N, depth_N, opens_N and room_N, and the label of the innermost open bracket.
        """
        words_left = left > 0
        may_word = words_left & (depth > 0)
        # After it, the words left, the brackets open, this one and the end must have room.
        fits = room >= left + depth + 3
        may_open = words_left & fits & (depth < self.deepest) & (opens < self.most_opens)
        # A bracket that has just opened is empty; the outermost waits for all words.
        may_close = (opens == 0) & (depth > words_left)
        rows = 4 * (may_close * (top + 1)) + 2 * may_open + may_word
        at_end = (left <= 0) & (depth == 0)
        return rows + at_end * (len(self.table_RV) - 1 - rows)

    def allowed(self, state: Stacks) -> Bools:
        """Of shape N, V: whether a token may follow. After the end, only the end may."""
        rows_N = self.rows(state)
        mask_NV = self.table_RV[rows_N]
        if self.tells_words:
            [telling] = np.nonzero((rows_N % 2 == 1) & (rows_N < len(self.table_RV) - 1))
            mask_NV[telling, state.next_word()[telling]] = True
        return mask_NV

    def advance(self, state: Stacks, tokens_N: npt.ArrayLike) -> Stacks:
        """Each hypothesis with one more token, which must be one of those that may follow."""
        tokens = np.asarray(tokens_N)
        kind_N = np.where(state.ended_N, _END, self.kind_V[tokens])
        opened_N, closed_N = kind_N == _OPEN, kind_N == _CLOSE
        stack_ND = state.stack_ND.copy()
        stack_ND[opened_N, state.depth_N[opened_N]] = self.label_V[tokens[opened_N]]
        return replace(
            state,
            stack_ND=stack_ND,
            depth_N=state.depth_N + opened_N - closed_N,
            left_N=state.left_N - (kind_N == _WORD),
            opens_N=np.where(opened_N, state.opens_N + 1, 0).astype(np.int32),
            room_N=state.room_N - ~state.ended_N,
            ended_N=kind_N == _END,
        )

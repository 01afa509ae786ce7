"""Pointer of a parser's decoder to the source's next word, in NumPy.

B sentences    N rows    S source positions    W words of a sentence, and its end token    D width of the model in whole vectors
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CompiledPointerState:
    """Counterpart of `dragoman.model.pointer.PointerState`.

    vectors_BSD: the vector that each word adds to the decoder's input. The end token's fills the places behind the words
    num_words_N: consumed words of each row; None before the first step
    """

    vectors_BSD: NDArray[np.float32]
    num_words_N: NDArray[np.int64] | None = None

    def reorder(self, rows_N: NDArray[np.int64]) -> CompiledPointerState:
        """Return the state in which row i is the former row rows_N[i]."""
        return replace(self, num_words_N=None if self.num_words_N is None else self.num_words_N[rows_N])

    def select_sentences(self, sentences_B: NDArray[np.int64]) -> CompiledPointerState:
        """Return the state of these sentences alone, with all their rows."""
        num_words_N = self.num_words_N
        if num_words_N is not None:
            num_words_N = num_words_N.reshape(len(self.vectors_BSD), -1)[sentences_B].reshape(-1)
        return CompiledPointerState(self.vectors_BSD[sentences_B], num_words_N)


@dataclass(frozen=True)
class CompiledPointer:
    """Pointer that adds the source's next word to the decoder's input, as `dragoman.model.pointer.Pointer` does.

    is_word_start_V: whether a source piece begins a word
    shifts_V: 1 for a target token that consumes a word
    weight_DD, bias_D: projection of the encoder's output
    """

    padding_id: int
    is_word_start_V: NDArray[np.bool_]
    shifts_V: NDArray[np.int64]
    weight_DD: NDArray[np.float32]
    bias_D: NDArray[np.float32]

    def start(self, memory_ND: NDArray[np.float32], source_BS: NDArray[np.int64]) -> CompiledPointerState:
        """Return the state before the first target token. memory_ND: the encoder's output, token by token

        Each sentence is multiplied alone, because the rounding of a product depends on its number of rows.
        """
        num_sentences, num_positions = source_BS.shape
        vectors_BSD = np.empty((num_sentences, num_positions, len(self.weight_DD)), np.float32)
        first = 0
        for source_S, vectors_SD in zip(source_BS, vectors_BSD, strict=True):
            tokens = source_S[source_S != self.padding_id]
            words_W = self.find_words(tokens)[:num_positions]
            vectors_SD[: len(words_W)] = memory_ND[first + words_W] @ self.weight_DD.T + self.bias_D
            vectors_SD[len(words_W) :] = vectors_SD[len(words_W) - 1]
            first += len(tokens)
        return CompiledPointerState(vectors_BSD)

    def find_words(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each word's first piece, then that of the end token."""
        return np.append(np.flatnonzero(self.is_word_start_V[tokens]), len(tokens) - 1)

    def __call__(
        self, tokens_N: NDArray[np.int64], state: CompiledPointerState
    ) -> tuple[NDArray[np.float32], CompiledPointerState]:
        """Return the vectors (N, D) to add to the decoder's inputs, and the state after these tokens."""
        num_words_N = self.shifts_V[tokens_N]
        if state.num_words_N is not None:
            num_words_N = num_words_N + state.num_words_N
        num_sentences, num_places, width = state.vectors_BSD.shape
        word_BR = np.minimum(num_words_N, num_places - 1).reshape(num_sentences, -1)
        added_ND = state.vectors_BSD[np.arange(num_sentences)[:, None], word_BR].reshape(-1, width)
        return added_ND, replace(state, num_words_N=num_words_N)

"""Interface of tokenizers: text to ids and back, and the pieces of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dragoman.config import TaskConfig
from dragoman.formats.pair import Pair

NotifyFn = Callable[[str], None]
"""Receives messages for the user."""


class Vocabulary(Protocol):
    """Vocabulary of one side: a tokenizer of text, or a closed list of labels.

    `serialized_model` holds the bytes of its file. `SentencePieceTokenizer` documents the methods.
    """

    @property
    def serialized_model(self) -> bytes: ...
    @property
    def reserved_ids(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...
    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def piece_to_id(self, piece: str) -> int | None: ...
    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]: ...


class TextTokenizer(Vocabulary, Protocol):
    """Tokenizer of text, whose pieces mark spaces by ▁: at the start of a word, as SentencePiece does, or at its end."""

    @property
    def lowercase(self) -> bool: ...
    def encode_continuation(self, text: str) -> list[int]: ...
    @property
    def word_start_mask(self) -> npt.NDArray[np.bool_]: ...


class StructuredVocabulary(Vocabulary, Protocol):
    """Closed list of the tokens of targets that are no text, such as trees. The words of a target are its source."""

    def describe(self) -> str:
        """Return one sentence about the vocabulary."""
        ...

    def get_source_text(self, target: str) -> str:
        """Return the words of a target as a line for the tokenizer of the source."""
        ...

    def encode_pairs(
        self, targets: Sequence[str], origins: Sequence[str], source: TextTokenizer
    ) -> tuple[list[list[int]], list[list[int]], dict[str, int]]:
        """Return the ids of the sources and of the targets, and the counts of unknown labels.

        origins: file and line of each target, for messages

        Raises DataError for a target that cannot be encoded.
        """
        ...


class StructuredTask(Protocol):
    """Task whose target is no text: an entry of the hook `tasks`."""

    def read_pairs(self, path: Path | None) -> Iterator[Pair]:
        """Yield words and targets of a file of the format `brackets`. A path of None is standard input."""
        ...

    def collect_vocabulary(self, targets: Iterable[Pair], task: TaskConfig) -> StructuredVocabulary:
        """Return the labels of these targets."""
        ...

    def read_vocabulary(self, serialized_model: bytes, *, name: str) -> StructuredVocabulary:
        """Return the labels of a file. Raises BundleError if it holds none."""
        ...

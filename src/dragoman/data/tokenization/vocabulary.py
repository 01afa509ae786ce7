"""Interface of tokenizers: text to ids and back, and the pieces of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

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

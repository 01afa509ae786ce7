"""Tokenizer of two files, as MarianMT has it: a SentencePiece model splits text, and a list of pieces numbers the pieces.

Two such tokenizers can share one list, so that source and target have separate models over one vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import sentencepiece as spm

from dragoman.data.tokenization.sentencepiece import encode_utf8, load_processor
from dragoman.data.tokenization.sentencepiece_proto import remove_dummy_prefix
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS, UNKNOWN_ID
from dragoman.data.tokenization.subword_sampling import METASPACE
from dragoman.errors import BundleError

# The unknown token is no control token: SentencePiece decodes it to " ⁇ ".
CONTROL_IDS = (PADDING_ID, BEGIN_ID, END_ID)


class PieceVocabulary:
    """SentencePiece model whose pieces have the ids of a separate list; see `Vocabulary` for the methods.

    A piece that the list does not have becomes `<unk>`. A character that the model does not know has an id of its own if the
    list has it.

    Args:
        serialized_model: the bytes of the SentencePiece model; its own ids are not used
        pieces: the pieces by id; the first four are padding, unknown, begin and end
        name: the file that error messages name

    Raises:
        BundleError: the bytes are not a model, or there are fewer than four pieces.
    """

    lowercase = False
    reserved_ids: tuple[int, ...] = ()

    def __init__(self, serialized_model: bytes, pieces: Sequence[str], *, name: str = "tokenizer") -> None:
        self.serialized_model = serialized_model
        self.pieces = tuple(pieces)
        self._processor = load_processor(serialized_model, name=name)
        if len(self.pieces) < len(SPECIAL_IDS):
            raise BundleError(
                f"{name}: its vocabulary has {len(self.pieces)} pieces; copy the file again", code="tokenizer-damaged"
            )
        # A special token wins over an ordinary piece of the same text.
        self._ids = {piece: index for index, piece in reversed(list(enumerate(self.pieces)))}

    @property
    def serialized_pieces(self) -> bytes:
        """Return the bytes of the file that holds the pieces: a JSON list."""
        return json.dumps(self.pieces, ensure_ascii=False, separators=(",\n", ":")).encode()

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a line. Raise DataError for half of a surrogate pair, which UTF-8 cannot encode."""
        return self._encode(self._processor, text)

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of a text that follows other text without a space between them."""
        return self._encode(self._continuing_processor, text)

    @cached_property
    def _continuing_processor(self) -> spm.SentencePieceProcessor:
        return load_processor(remove_dummy_prefix(self.serialized_model), name="tokenizer")

    def _encode(self, processor: spm.SentencePieceProcessor, text: str) -> list[int]:
        encode_utf8(text, lowercase=False)
        pieces: list[str] = processor.encode(text, out_type=str)
        return [self._ids.get(piece, UNKNOWN_ID) for piece in pieces]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several lines, as `encode` does."""
        return [self.encode(text) for text in texts]

    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """Return `encode(text)` for `alpha` = 0. Raise ValueError for any other value."""
        if alpha:
            raise ValueError("a tokenizer with a separate vocabulary has no subword sampling")
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids as one line; line breaks from byte pieces become spaces."""
        pieces = [self.pieces[index] for index in ids if index not in CONTROL_IDS]
        text: str = self._processor.decode_pieces(pieces)
        return re.sub(r"[\r\n]", " ", text.replace(METASPACE, " ")).strip()

    def piece_to_id(self, piece: str) -> int | None:
        """Return the id of a piece, including `<unk>`; None if there is no such piece."""
        return self._ids.get(piece)

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of ids."""
        return [self.pieces[index] for index in ids]

    @cached_property
    def word_start_mask(self) -> npt.NDArray[np.bool_]:
        """Mask of the ids whose piece starts a word. (V,)"""
        return np.array([piece.startswith(METASPACE) for piece in self.pieces])


def read_pieces_file(data: bytes, *, name: str) -> tuple[str, ...]:
    """Return the pieces of a file that holds `PieceVocabulary.serialized_pieces`. Raise BundleError if it is damaged."""
    try:
        pieces = json.loads(data)
    except (ValueError, RecursionError):
        pieces = None
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise BundleError(f"{name}: is not a list of pieces; copy the bundle again", code="tokenizer-damaged")
    return tuple(pieces)

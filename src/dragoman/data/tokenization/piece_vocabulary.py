"""Tokenizer of two files, as MarianMT has it: a SentencePiece model splits text, and a list of pieces numbers the pieces.

Two such tokenizers can share one list, so that source and target have separate models over one vocabulary. The list may have
added tokens, which are found before the model splits the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import sentencepiece as spm

from dragoman.data.tokenization.added_tokens import (
    AddedToken,
    AddedTokenSplitter,
    SplitRules,
    read_added_tokens,
    split_marian_code,
)
from dragoman.data.tokenization.grapheme_normalization import GraphemeNormalizer
from dragoman.data.tokenization.sentencepiece import encode_utf8, load_processor
from dragoman.data.tokenization.sentencepiece_proto import read_charsmap, remove_dummy_prefix, replace_normalization
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, METASPACE, PADDING_ID, SPECIAL_IDS, UNKNOWN_ID
from dragoman.errors import BundleError

# The unknown token is no control token: SentencePiece decodes it to " ⁇ ".
CONTROL_IDS = (PADDING_ID, BEGIN_ID, END_ID)
WHITESPACE = re.compile(r"[^\S\x1c-\x1f]+")
"""Characters that Unicode has as `White_Space`."""


@dataclass(frozen=True)
class PieceList:
    """Content of the file of a vocabulary.

    pieces: the pieces by id; the first four are padding, unknown, begin and end
    added: tokens that are found in a text before it is split into pieces
    rules: program whose rules split a text at the added tokens
    """

    pieces: tuple[str, ...]
    added: tuple[AddedToken, ...] = ()
    rules: SplitRules = "transformers"

    def serialize(self) -> bytes:
        """Return the bytes of the file: a JSON list of the pieces, or an object with the added tokens."""
        document: object = self.pieces
        if self != PieceList(self.pieces):
            added = [token.to_dict() for token in self.added]
            document = {"pieces": self.pieces, "added_tokens": added, "rules": self.rules}
        return json.dumps(document, ensure_ascii=False, separators=(",\n", ":")).encode()


class PieceVocabulary:
    """SentencePiece model whose pieces have the ids of a separate list; see `Vocabulary` for the methods.

    A piece that the list does not have becomes `<unk>`. A character that the model does not know has an id of its own if the
    list has it.

    serialized_model: the bytes of the SentencePiece model; its own ids are not used
    name: the file that error messages name

    Raises BundleError: the bytes are not a model, there are fewer than four pieces, or an added token has no piece.
    """

    lowercase = False
    reserved_ids: tuple[int, ...] = ()

    def __init__(self, serialized_model: bytes, pieces: PieceList | Sequence[str], *, name: str = "tokenizer") -> None:
        self.serialized_model = serialized_model
        self.piece_list = pieces if isinstance(pieces, PieceList) else PieceList(tuple(pieces))
        self.pieces = self.piece_list.pieces
        self._has_tokenizers_rules = self.piece_list.rules.startswith("tokenizers")
        # The library tokenizers normalizes a text before it finds added tokens, and otherwise than SentencePiece.
        self._splitting_model = (
            replace_normalization(serialized_model, "identity", b"") if self._has_tokenizers_rules else serialized_model
        )
        self._processor = load_processor(self._splitting_model, name=name)
        if len(self.pieces) < len(SPECIAL_IDS):
            raise BundleError(
                f"{name}: its vocabulary has {len(self.pieces)} pieces; copy the file again", code="tokenizer-damaged"
            )
        if foreign := [token for token in self.piece_list.added if not 0 <= token.id < len(self.pieces)]:
            raise BundleError(
                f"{name}: its added token {foreign[0].text[:40]!r} has the id {foreign[0].id}, but there are "
                f"{len(self.pieces)} pieces; copy the file again",
                code="tokenizer-damaged",
            )
        # A special token wins over an ordinary piece of the same text.
        self._ids = {token.text: token.id for token in self.piece_list.added}
        self._ids |= {piece: index for index, piece in reversed(list(enumerate(self.pieces)))}
        # Unknown characters are one piece with their own text, which may be `<s>` and is no special token then.
        self._text_ids = {**self._ids, **dict.fromkeys(self.pieces[: len(SPECIAL_IDS)], UNKNOWN_ID)}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the normalizer, which another process builds itself."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_normalizer", "_splitter")}

    @property
    def added(self) -> tuple[AddedToken, ...]:
        return self.piece_list.added

    @property
    def serialized_pieces(self) -> bytes:
        """Return the bytes of the file that holds the pieces and the added tokens."""
        return self.piece_list.serialize()

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return self._encode(self._processor, text)

    def encode_continuation(self, text: str) -> list[int]:
        return self._encode(self._continuing_processor, text)

    @cached_property
    def _continuing_processor(self) -> spm.SentencePieceProcessor:
        return load_processor(remove_dummy_prefix(self._splitting_model), name="tokenizer")

    def _encode(self, processor: spm.SentencePieceProcessor, text: str) -> list[int]:
        encode_utf8(text, lowercase=False)
        if self.piece_list == PieceList(self.pieces):
            return self._encode_part(processor, text)
        ids: list[int] = []
        for part in self._splitter.split(text):
            ids += [part.id] if isinstance(part, AddedToken) else self._encode_part(processor, part)
            processor = self._processor  # each later part begins a word
        return ids

    def _encode_part(self, processor: spm.SentencePieceProcessor, text: str) -> list[int]:
        """Return the ids of a text between two added tokens."""
        if self.piece_list.rules == "tokenizers-words":
            return [index for word in WHITESPACE.split(text) for index in self._encode_words(self._processor, word)]
        if self._has_tokenizers_rules:
            return self._encode_words(processor, text)
        code = ""
        if self.piece_list.rules == "marian":
            code, text = split_marian_code(text)
        pieces: list[str] = processor.encode(text, out_type=str)
        return [self._text_ids.get(piece, UNKNOWN_ID) for piece in ([code, *pieces] if code else pieces)]

    def _encode_words(self, processor: spm.SentencePieceProcessor, text: str) -> list[int]:
        """Return the ids of a part by the rules of `tokenizers`: each space begins a word, those that no word follows too."""
        space = self._text_ids.get(METASPACE, UNKNOWN_ID)
        ids: list[int] = []
        for spaces, words in re.findall(r"( *)([^ ]+(?: [^ ]+)*)?", text.replace(METASPACE, " ")):
            ids += [space] * (len(spaces) - bool(words))  # SentencePiece drops spaces before and behind its text
            ids += [self._model_ids[index] for index in (self._processor if spaces else processor).encode(words)]
        return ids

    @cached_property
    def _model_ids(self) -> list[int]:
        processor = self._processor
        names: list[str] = processor.id_to_piece(list(range(processor.get_piece_size())))
        ids = [self._text_ids.get(name, UNKNOWN_ID) for name in names]
        ids[processor.unk_id()] = UNKNOWN_ID
        return ids

    def _normalize(self, text: str) -> str:
        """Return the text after the normalization of the library tokenizers, and with one space for several."""
        text = self._normalizer.normalize(text)
        match self.piece_list.rules:
            case "tokenizers-strip":
                return re.sub(" {2,}", METASPACE, text.rstrip())
            case "tokenizers-spaces" | "tokenizers-words":
                return text
        return re.sub(" {2,}", " ", text)

    @cached_property
    def _normalizer(self) -> GraphemeNormalizer | spm.SentencePieceNormalizer:
        normalizer = spm.SentencePieceNormalizer(
            model_proto=self.serialized_model, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
        )
        charsmap = read_charsmap(self.serialized_model)
        return GraphemeNormalizer(charsmap, normalizer.normalize) if charsmap else normalizer

    @cached_property
    def _splitter(self) -> AddedTokenSplitter:
        return AddedTokenSplitter(self.piece_list.added, self.piece_list.rules, self._normalize)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """Return `encode(text)` for `alpha` = 0. Raise ValueError for any other value."""
        if alpha:
            raise ValueError("a tokenizer with a separate vocabulary has no subword sampling")
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self.added_texts.get(index, self.pieces[index]) for index in ids if index not in self._silent_ids]
        text: str = self._processor.decode_pieces(pieces)
        return re.sub(r"[\r\n]", " ", text.replace(METASPACE, " ")).strip()

    @cached_property
    def _silent_ids(self) -> frozenset[int]:
        """Ids that decode to no text. The unknown token is none of them, although it is special."""
        texts = self.added_texts
        special = {token.id for token in self.piece_list.added if token.special and texts.get(token.id) == token.text}
        return frozenset({*CONTROL_IDS, *special} - {UNKNOWN_ID})

    @cached_property
    def added_texts(self) -> dict[int, str]:
        """Texts of the added tokens by id; the library tokenizers writes some as it finds them, in normalized text."""
        tokens = [token for token in self.piece_list.added if token.id != UNKNOWN_ID]
        is_found_late = [self._has_tokenizers_rules and token.normalized for token in tokens]
        return {
            token.id: self._normalize(token.text) if is_late else token.text
            for token, is_late in zip(tokens, is_found_late, strict=True)
        }

    def piece_to_id(self, piece: str) -> int | None:
        return self._ids.get(piece)

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.pieces[index] for index in ids]

    @cached_property
    def word_start_mask(self) -> npt.NDArray[np.bool_]:
        return np.array([piece.startswith(METASPACE) for piece in self.pieces])


def read_pieces_file(data: bytes, *, name: str) -> PieceList:
    """Return the content of a file that holds `PieceVocabulary.serialized_pieces`. Raise BundleError if it is damaged."""
    try:
        document = json.loads(data)
        if isinstance(document, list):
            document = {"pieces": document, "added_tokens": [], "rules": "transformers"}
        pieces, added, rules = (
            document["pieces"],
            read_added_tokens(document["added_tokens"]),
            document["rules"],
        )
        if not all(isinstance(piece, str) for piece in pieces) or rules not in get_args(SplitRules):
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BundleError(f"{name}: is not a list of pieces; copy the bundle again", code="tokenizer-damaged") from None
    return PieceList(tuple(pieces), added, rules)

"""Tokenizers of a converted model: a list of tokens, and a file that splits text into them.

The file is a SentencePiece model, or codes of subword-nmt or fastBPE. Without a file, the text holds the tokens already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.source_files import SourceFiles
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme, parse_codes
from dragoman.data.tokenization.subword_sampling import METASPACE
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.vocabulary import TextTokenizer
from dragoman.errors import DataError

PIECES_NOTE = "The source has no codes and no SentencePiece model, so the text must hold the tokens of its vocabulary."
MOSES_NOTE = "The codes split words, so the text must be split by the Moses tokenizer."


def find_segmenters(
    files: SourceFiles, pairs: Sequence[tuple[str, str]], single: Sequence[str]
) -> tuple[str | None, str | None]:
    """Return the names of the files that split source and target; None for both if there is none.

    Args:
        files: files of the model
        pairs: names for source and target, most common first
        single: names of a file for both sides, most common first

    Raises:
        DataError: only one side has a file.
    """
    for source, target in pairs:
        if source in files and target in files:
            return source, target
        if source in files or target in files:
            missing = target if source in files else source
            raise damaged(files.folder, f"has no {missing}, which splits the text of the other side")
    name = next((name for name in single if name in files), None)
    return name, name


def build_pair_tokenizer(
    files: SourceFiles,
    segmenters: tuple[str | None, str | None],
    orders: tuple[VocabularyOrder, VocabularyOrder],
    *,
    append_source_eos: bool,
    codes: Sequence[str] = (),
) -> PairTokenizer:
    """Return the tokenizers of both sides.

    Args:
        files: files of the model
        segmenters: file of each side that splits text; None if the text holds the tokens already
        orders: tokens of each side
        append_source_eos: the encoder reads an end token after each source
        codes: names of files that hold codes instead of a SentencePiece model

    Raises:
        DataError: a file is missing or damaged, or the tokens are those of a SentencePiece model that is missing.
        BundleError: a file is not a SentencePiece model.
    """
    source, target = (
        _build_tokenizer(files, name, order, name in codes) for name, order in zip(segmenters, orders, strict=True)
    )
    is_joint = segmenters[0] == segmenters[1] and orders[0] == orders[1]
    return PairTokenizer(source, source if is_joint else target, append_source_eos=append_source_eos)


def _build_tokenizer(files: SourceFiles, name: str | None, order: VocabularyOrder, is_codes: bool) -> TextTokenizer:
    if name is not None and not is_codes:
        return PieceVocabulary(files.read_bytes(name), order.pieces, name=str(files.folder / name))
    if any(METASPACE in piece for piece in order.pieces):
        raise DataError(
            f"{files.folder}: its tokens are pieces of SentencePiece, but it has no SentencePiece model; copy it into the "
            "folder as source.spm and target.spm",
            code="source-damaged",
        )
    scheme = SubwordNmtScheme(None)
    if name is not None:
        scheme = parse_codes(files.read_text(name).split("\n"), str(files.folder / name))
    return TokenListTokenizer(scheme, order.pieces[len(SPECIAL_IDS) :], name=str(files.folder))


def describe_tokenizer(tokenizer: PairTokenizer) -> dict[str, Any]:
    """Return the recipe section `tokenizer`."""
    is_list = isinstance(tokenizer.source, TokenListTokenizer)
    is_shared = tokenizer.shares_vocabulary
    return {
        **({"model_type": "subword-nmt", "normalization": "identity"} if is_list else {}),
        "joint": is_shared,
        "vocab_size": len(tokenizer.source),
        **({} if is_shared else {"target_vocab_size": len(tokenizer.target)}),
        "byte_fallback": False,
    }


def describe_text(tokenizer: PairTokenizer, has_segmenter: bool) -> tuple[str, ...]:
    """Return the note on the text that the model reads."""
    if not isinstance(tokenizer.source, TokenListTokenizer):
        return ()
    return (MOSES_NOTE,) if has_segmenter else (PIECES_NOTE,)

"""Tokenizers of a converted model: a list of tokens, and a file that splits text into them.

The file is a SentencePiece model, or codes of subword-nmt or fastBPE. Without a file, the text holds the tokens already.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.source_files import SourceFiles
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_IDS
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme, parse_codes
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.vocabulary import TextTokenizer
from dragoman.errors import DataError

SENTENCEPIECE_NAME, CODES_NAME = r".+\.model", r"(.*[._-])?(bpe)?codes?([._-].{1,40})?"
"""Names of files that split text: SentencePiece models, or codes such as `bpecodes`, `codes.en` and `ende30k.fastbpe.code`."""
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


def find_segmenter(files: SourceFiles, marks: Collection[str], advice: str) -> str | None:
    """Return the name of a file that looks like a SentencePiece model or codes of one side; None if there is none.

    Args:
        files: files of the model
        marks: parts of the names of the side's files, which count if there are several files
        advice: what to do about files whose side is unknown

    Raises:
        DataError: several files may be meant.
    """
    for pattern in (SENTENCEPIECE_NAME, CODES_NAME):
        names = sorted(name for name in files.names if re.fullmatch(pattern, name))
        of_side = [name for name in names if not {*re.split(r"[._-]", name)}.isdisjoint(marks)] if len(names) > 1 else names
        if names and len(of_side) != 1:
            raise DataError(
                f"{files.folder}: several files may split the text ({', '.join(names)[:120]}); leave one, or {advice}",
                code="source-damaged",
            )
        if names:
            return of_side[0]
    return None


def build_pair_tokenizer(
    files: SourceFiles,
    segmenters: tuple[str | None, str | None],
    orders: tuple[VocabularyOrder, VocabularyOrder],
    *,
    append_source_eos: bool,
    codes: Sequence[str | None] = (),
    may_hold_pieces: bool = False,
) -> PairTokenizer:
    """Return the tokenizers of both sides.

    Args:
        files: files of the model
        segmenters: file of each side that splits text; None if the text holds the tokens already
        orders: tokens of each side
        append_source_eos: the encoder reads an end token after each source
        codes: names of files that hold codes instead of a SentencePiece model
        may_hold_pieces: text without a file may hold pieces of SentencePiece

    Raises:
        DataError: a file is missing or damaged, or the tokens are those of a SentencePiece model that is missing.
        BundleError: a file is not a SentencePiece model.
    """
    is_joint = segmenters[0] == segmenters[1] and orders[0] == orders[1]
    needs_pieces = any(METASPACE in piece for order in orders for piece in order.pieces)
    if needs_pieces and not may_hold_pieces and segmenters[0] in (None, *codes):
        raise DataError(
            f"{files.folder}: its tokens are pieces of SentencePiece, but it has no SentencePiece model; copy it into the "
            "folder as source.spm and target.spm",
            code="source-damaged",
        )
    sides = list(zip(segmenters, orders, strict=True))[: 1 if is_joint else 2]
    tokenizers = [_build_tokenizer(files, name, order, name in codes) for name, order in sides]
    return PairTokenizer(tokenizers[0], tokenizers[-1], append_source_eos=append_source_eos)


def _build_tokenizer(files: SourceFiles, name: str | None, order: VocabularyOrder, is_codes: bool) -> TextTokenizer:
    if name is not None and not is_codes:
        return PieceVocabulary(files.read_bytes(name), order.pieces, name=str(files.folder / name))
    scheme = SubwordNmtScheme(None) if name is None else read_codes_file(files, name)
    return TokenListTokenizer(scheme, order.pieces[len(SPECIAL_IDS) :], name=str(files.folder))


def read_codes_file(files: SourceFiles, name: str) -> SubwordNmtScheme:
    """Return the codes of a file. Raise DataError if it is missing or damaged."""
    return parse_codes(files.read_text(name).split("\n"), str(files.folder / name))


def describe_text(tokenizer: PairTokenizer, has_segmenter: bool) -> tuple[str, ...]:
    """Return the note on the text that the model reads."""
    if not isinstance(tokenizer.source, TokenListTokenizer):
        return ()
    return (MOSES_NOTE,) if has_segmenter else (PIECES_NOTE,)

"""Vocabulary files of other toolkits: fairseq's dict.txt, with a count behind each token, and plain lists of tokens."""

from __future__ import annotations

from pathlib import Path

from dragoman.data.tokenization.special_tokens import SPECIAL_PIECES
from dragoman.errors import DataError
from dragoman.formats.text import read_lines

MAX_TOKENS = 2**24
FAIRSEQ_OVERWRITE_FLAG = " #fairseq:overwrite"


def read_vocabulary_file(path: Path, key: str) -> list[str]:
    """Return the tokens of a file in its order, without special tokens, which fairseq leaves out and JoeyNMT writes.

    Each line holds a token, or a token and its count behind a space or a tab. The first line decides.

    key: the recipe key that names it, for error messages

    Raises DataError: the file cannot be read, a line is of another form than the first, or a token occurs twice.
    """
    location = f"{path} (tokenizer.{key})"
    tokens: dict[str, None] = {}
    has_counts = None
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue
        token, count = _split_count(line.removesuffix(FAIRSEQ_OVERWRITE_FLAG))
        if has_counts is None:
            has_counts = count is not None
        if has_counts != (count is not None) or not token or " " in token or "\t" in token:
            form = "a token and its count" if has_counts else "one token without spaces"
            raise DataError(
                f"{location}, line {number}: {line[:40]!r} is not {form}; give a file like fairseq's dict.txt, or a list of "
                "tokens",
                code="invalid-format",
            )
        if token in tokens:
            raise DataError(f"{location}, line {number}: {token[:40]!r} occurs twice; remove one", code="invalid-format")
        if token not in SPECIAL_PIECES:
            tokens[token] = None
        if len(tokens) > MAX_TOKENS:
            raise DataError(f"{location}: has more than {MAX_TOKENS:,} tokens; give a shorter list", code="input-too-long")
    if not tokens:
        raise DataError(f"{location}: holds no tokens; give a vocabulary file", code="empty-data")
    return list(tokens)


def _split_count(line: str) -> tuple[str, str | None]:
    """Return the token of a line and its count, or None if there is no count."""
    for separator in ("\t", " "):
        token, found_separator, count = line.rpartition(separator)
        if found_separator and count.isascii() and count.isdigit():
            return token, count
    return line, None

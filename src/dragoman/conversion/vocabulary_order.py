"""Order of the tokens of a source in a bundle: the special tokens move to the ids 0 to 3, the others keep their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.data.tokenization.special_tokens import BEGIN_ID, SPECIAL_IDS, SPECIAL_PIECES

UNREACHABLE_LOGIT = -3e4
"""Output bias of a token that the source does not have: its probability is 0 in every precision, float16 included."""


@dataclass(frozen=True)
class VocabularyOrder:
    """Tokens of a bundle, and the row of each in the matrices of the source.

    Attributes:
        pieces: the tokens by id
        rows: the source's id of each; None for a special token that the source does not have
        num_padding_rows: rows of the source behind the last token, which are left out
    """

    pieces: tuple[str, ...]
    rows: tuple[int | None, ...]
    num_padding_rows: int = 0

    @classmethod
    def build(
        cls,
        pieces: Sequence[str],
        *,
        padding: int | None,
        unknown: int | None,
        begin: int | None,
        end: int | None,
        begin_is_text: bool = False,
        num_padding_rows: int = 0,
    ) -> VocabularyOrder:
        """Return the order of a vocabulary.

        A decoder that starts with the source's padding token has that token as `begin`, and None as `padding`: dragoman never
        embeds padding, and never outputs either of them.

        Args:
            pieces: tokens of the source by id
            padding, unknown, begin, end: the source's ids of the special tokens; None for one that it does not have
            begin_is_text: text has the token that starts the decoder, so its row is in the bundle twice
            num_padding_rows: rows of the source behind the last token
        """
        special_rows = (padding, unknown, begin, end)
        moved = {row for row in special_rows if row is not None and not (begin_is_text and row == begin)}
        rows = (*special_rows, *(row for row in range(len(pieces)) if row not in moved))
        names = (*SPECIAL_PIECES, *(pieces[row] for row in rows[len(SPECIAL_IDS) :] if row is not None))
        return cls(names, rows, num_padding_rows)

    @property
    def ids(self) -> dict[int | None, int]:
        """Return the id of each row of the source. Text has no begin token, so its id counts only if its row has no other."""
        return {row: index for index, row in sorted(enumerate(self.rows), key=lambda item: item[0] != BEGIN_ID)}

    @property
    def has_missing_rows(self) -> bool:
        """Return whether the source lacks a special token, whose output bias is then `UNREACHABLE_LOGIT`."""
        return None in self.rows

    @property
    def num_source_rows(self) -> int:
        """Return the number of rows that a matrix of the source has."""
        return 1 + max(row for row in self.rows if row is not None) + self.num_padding_rows

    def __len__(self) -> int:
        """Return the number of tokens of the bundle."""
        return len(self.rows)

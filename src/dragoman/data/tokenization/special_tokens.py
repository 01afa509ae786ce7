"""Four special ids at the start of every vocabulary, and the mark of a space in pieces."""

from __future__ import annotations

SPECIAL_IDS = [0, 1, 2, 3]
PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID = SPECIAL_IDS
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
WORD_ID = len(SPECIAL_IDS)
"""First id after them; in the vocabulary of trees it stands for a word of the source."""
METASPACE = "▁"

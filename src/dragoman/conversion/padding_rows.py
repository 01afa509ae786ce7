"""Rows behind the last token of an embedding, with which fine-tuners fill its size up to a multiple (`pad_to_multiple_of`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.conversion.source_files import SourceFiles
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.io.bfloat16 import widen

MAX_PADDING_ROWS = 127
"""Most rows behind the last token: sizes are multiples of 8 to 128."""
MULTIPLE = 8
TOLERANCE = 0.01
"""Largest distance of two rows that have learned nothing, in standard deviations of the values of the tokens' rows."""


@np.errstate(invalid="ignore", over="ignore")  # values that are not finite have an error of their own
def are_padding_rows(files: SourceFiles, names: Sequence[str], num_tokens: int) -> bool:
    """Return whether the rows behind the last token have learned nothing, so that a model without them is the same.

    `transformers` starts new rows near the mean of the others. A text that holds a token changes the token's row alone, so
    rows that are still equal belong to no token. Rows of zeros have learned nothing either.

    files: files of the model
    names: names of the embedding, the first of which that exists counts
    num_tokens: rows that belong to a token
    """
    tensors = files.open_tensors()
    matrix_VD = tensors[next((name for name in names if name in tensors), names[0])]
    if matrix_VD.ndim != 2 or not 0 < len(matrix_VD) - num_tokens <= MAX_PADDING_ROWS or len(matrix_VD) % MULTIPLE:
        return False
    padding_PD = widen(matrix_VD[num_tokens:])
    if not padding_PD.any():
        return True
    tokens_VD = widen(matrix_VD[:num_tokens])
    center_D = (padding_PD if len(padding_PD) > 1 else tokens_VD).mean(0)
    return bool(np.abs(padding_PD - center_D).max() <= TOLERANCE * tokens_VD.std())


def describe_padding(*orders: VocabularyOrder, num_made_up: int = 0) -> tuple[str, ...]:
    """Return the notes about the rows of a source that belong to no token.

    num_made_up: rows that the published models of the family have, too
    """
    num_rows = max(order.num_padding_rows for order in orders)
    made_up = (
        f"The bundle keeps {num_made_up} rows of the embedding without a token, as the published models of the family have."
    )
    note = f"The last {num_rows} rows of the embedding belong to no token and have learned nothing, so the bundle lacks them."
    return (*([made_up] if num_made_up else []), *([note] if num_rows else []))

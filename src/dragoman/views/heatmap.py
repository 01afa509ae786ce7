"""Attention as a matrix of cells: the stronger the colour, the greater the weight.

Tokens are shown as the model has them: SentencePiece's ▁ stays, so that a label can be looked up in the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dragoman.views.svg import fitted, inert, label, number, picture, text_width

_LIGHT = {".cell": "fill:#08519c"}
_DARK = {".cell": "fill:#79b8ff"}
_MARGIN, _TITLE_HEIGHT, _TITLE_SIZE, _SCALE_SIZE = 16, 44, 16, 11
_LONGEST_LABEL = 150
_SLANT_DEGREES = 55
_LEVELS = 255


def attention_heatmap(
    weights: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    row_label: str = "target",
    column_label: str = "source",
) -> str:
    """An SVG of `weights[row][column]`, each between 0 and 1, in 256 shades and with its number as a tooltip.

    Raises `ValueError` where the sizes do not match, or a weight is not within 1/255 of [0, 1].
    """
    _check(weights, rows, columns)
    cell = max(13, min(28, 640 // max(len(rows), len(columns), 1)))
    size = min(13, cell - 2)
    row_texts = [fitted(token, _LONGEST_LABEL, size) for token in rows]
    column_texts = [fitted(token, _LONGEST_LABEL, size) for token in columns]
    corner = [fitted(f"{name} {arrow}", _LONGEST_LABEL, size) for name, arrow in ((column_label, "→"), (row_label, "↓"))]
    slant = math.radians(_SLANT_DEGREES)
    left = _MARGIN + 8 + max(text_width(text, size) for text in [*row_texts, *corner])
    rise = max((text_width(text, size) for text in column_texts), default=0) * math.sin(slant)
    top = _TITLE_HEIGHT + max(rise + size, 2 * size + 12)
    right, bottom = left + cell * len(columns), top + cell * len(rows)
    reach = (left + cell * (j + 0.5) + text_width(t, size) * math.cos(slant) + size for j, t in enumerate(column_texts))
    title_text = fitted(title, 560, _TITLE_SIZE)
    width = max(right, *reach, _MARGIN + text_width(title_text, _TITLE_SIZE), left + 150) + _MARGIN

    body = [label(title_text, _MARGIN, 26, _TITLE_SIZE, extra=' font-weight="600"')]
    body += [label(t, left - 8, top - 8 - (1 - i) * (size + 4), size, kind="muted", anchor="end") for i, t in enumerate(corner)]
    body += [label(text, left - 8, top + cell * (i + 0.5) + size * 0.35, size, anchor="end") for i, text in enumerate(row_texts)]
    body += [_slanted(text, left + cell * (j + 0.5) + size * 0.3, top - 6, size) for j, text in enumerate(column_texts)]
    body.append("PLACEHOLDER")
    return ""

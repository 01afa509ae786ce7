"""Which word came from which: attention over pieces, read as links between words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SPACE = "▁"
"""What SentencePiece writes for the space before a word."""

Link = tuple[int, int]
"""Word of the source, word of the target, both counted from 0."""


def words_of(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece belongs to. Words are what spaces part."""
    numbers: list[int] = []
    for piece in pieces:
        begun = numbers[-1] if numbers else -1
        after_bare_space = bool(numbers) and pieces[len(numbers) - 1] == SPACE  # which has opened the word already
        numbers.append(begun + (not numbers or (piece.startswith(SPACE) and not after_bare_space)))
    return numbers


def links(weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]) -> list[Link]:
    """For each word of the target the one of the source that its pieces look at most; none where they look at the end.

    weights: a row for each piece of the target (rows beyond are left out), over the pieces of the source and what ends it
    source, target: pieces without end tokens
    """
    if not source or not target:
        return []
    from_words, to_words = words_of(source), words_of(target)
    rows_TS = np.asarray([row for row, _ in zip(weights, target, strict=False)], dtype=np.float64)
    summed_TW = np.zeros((len(to_words), from_words[-1] + 2))  # the last column is the end's
    np.add.at(summed_TW, (slice(None), [*from_words, *[from_words[-1] + 1] * (rows_TS.shape[1] - len(source))]), rows_TS)
    looks = np.zeros((to_words[-1] + 1, summed_TW.shape[1]))
    np.add.at(looks, to_words, summed_TW)
    best = looks.argmax(1)
    return [(int(word), number) for number, word in enumerate(best) if word <= from_words[-1]]


def pharaoh(found: Sequence[Link]) -> str:
    """Links as `i-j i-j …`, the format of Pharaoh's successors."""
    return " ".join(f"{source}-{target}" for source, target in sorted(found))

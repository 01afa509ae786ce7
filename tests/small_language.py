"""A small language, whose words have two consonants and two vowels, for tests of tokenizers."""

from __future__ import annotations

import random

WORDS = [f"{a}{b}{c}{d}" for a in "bdgklmnprst" for b in "aeiou" for c in "lmnrst" for d in "aeiou"]


def random_sentences(count: int, seed: int) -> list[str]:
    """Return sentences of one to nine words. Some 60 of them give at least 300 pieces."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]

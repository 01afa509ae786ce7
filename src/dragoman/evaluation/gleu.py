"""GLEU of one sentence (Wu et al. 2016, "Google's neural machine translation system", section 5).

GLEU is the smaller of recall and precision over all n-grams of one to four tokens. It is between 0 and 1. It stays the same if
output and reference are exchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

MAX_ORDER = 4


def count_ngrams(tokens: Sequence[Hashable]) -> Counter[tuple[Hashable, ...]]:
    """Return the number of times that each n-gram of one to four tokens occurs."""
    return Counter(
        ngram for order in range(1, MAX_ORDER + 1) for ngram in zip(*(tokens[start:] for start in range(order)), strict=False)
    )


def ngram_gleu(output: Counter[tuple[Hashable, ...]], reference: Counter[tuple[Hashable, ...]]) -> float:
    """Return the GLEU of an output from the n-grams of both sides, as `count_ngrams` returns them; 0 if either has none."""
    num_matches = sum(min(count, reference[ngram]) for ngram, count in output.items() if ngram in reference)
    return num_matches / max(output.total(), reference.total(), 1)

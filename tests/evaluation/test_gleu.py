"""GLEU of a sentence against values by hand and against an independent count."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dragoman.evaluation.gleu import count_ngrams, ngram_gleu


def test_gleu_equals_values_by_hand(subtests: pytest.Subtests) -> None:
    for output, reference, gleu in [
        ("the cat sat", "the cat sat", 1.0),  # 3 + 2 + 1 n-grams of 6
        ("the cat", "the cat sat", 3 / 6),  # recall: 2 + 1 matches of 6
        ("the cat sat", "the cat", 3 / 6),  # precision: the same, because both sides count alike
        ("the the the", "the cat", 1 / 6),  # each n-gram of the reference matches once
        ("a b c d e", "a b c d f", 10 / 14),  # 5 + 4 + 3 + 2 n-grams; 4 + 3 + 2 + 1 match
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("", "", 0.0),
    ]:
        with subtests.test(output=output, reference=reference, gleu=gleu):
            assert ngram_gleu(count_ngrams(output.split()), count_ngrams(reference.split())) == pytest.approx(gleu, abs=1e-12)


def gleu_by_crossing_out(output: Sequence[int], reference: Sequence[int]) -> float:
    """Count matches by removing each matched n-gram from a list of the reference's n-grams."""
    num_matches = num_output = num_reference = 0
    for order in (1, 2, 3, 4):
        output_ngrams = [list(output[start : start + order]) for start in range(len(output) - order + 1)]
        reference_ngrams = [list(reference[start : start + order]) for start in range(len(reference) - order + 1)]
        num_output += len(output_ngrams)
        num_reference += len(reference_ngrams)
        for ngram in output_ngrams:
            if ngram in reference_ngrams:
                reference_ngrams.remove(ngram)
                num_matches += 1
    return min(num_matches / num_output, num_matches / num_reference)


def test_gleu_equals_independent_count_on_random_pairs() -> None:
    rng = random.Random(1)
    for _ in range(300):
        output, reference = (rng.choices(range(4), k=rng.randint(1, 9)) for _ in range(2))
        assert ngram_gleu(count_ngrams(output), count_ngrams(reference)) == pytest.approx(
            gleu_by_crossing_out(output, reference), abs=1e-12
        )

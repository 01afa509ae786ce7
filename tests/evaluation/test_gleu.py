"""GLEU of a sentence against values by hand and against an independent count."""

from __future__ import annotations

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

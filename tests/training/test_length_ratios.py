"""Usual lengths of translations, measured at the end of a training, and the pairs for measurements with the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.bundle import Bundle, BundleMetadata, read_config
from dragoman.data.prepare import PreparedData
from dragoman.data.tokenization.pair_tokenizer import read_tokenizer
from dragoman.formats.pair import Pair
from dragoman.inference.text_options import ModelLimits
from dragoman.text import length_ratios
from dragoman.training.measure_parts import limit_tokens, measure_corpus_lengths


def test_ratios_of_the_training_corpus_are_in_the_metadata(
    trained: Path, bundle: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length_ratios, "MIN_BUCKET", 10)
    monkeypatch.setattr(length_ratios, "MAX_BUCKETS", 1)
    monkeypatch.setattr(length_ratios, "MIN_LENGTH", 1)
    recipe, _, metadata = read_config(bundle)
    assert metadata.length_ratios is None, "60 pairs are too few"
    tokenizer = read_tokenizer(bundle, recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    ratios = measure_corpus_lengths(recipe.training_directions, PreparedData(trained / "data", tokenizer, {}, is_new=False))
    assert ratios is not None
    sides = [(corpus / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    expected = [len(target) / len(source) for source, target in zip(*sides, strict=True)]
    assert (ratios[0].lowest, ratios[0].highest) == ((round(min(expected), 4),), (round(max(expected), 4),))
    known = Bundle(recipe, tokenizer, {}, BundleMetadata.from_dict(replace(metadata, length_ratios=ratios).to_dict()))
    languages = ratios[0].source_language, ratios[0].target_language
    assert ModelLimits.read(known, *languages).length_ratios == ratios[0]
    assert ModelLimits.read(known, "xx", "de").length_ratios is None


def test_long_pairs_are_measured_on_fewer(bundle: Path) -> None:
    recipe, _, _ = read_config(bundle)
    tokenizer = read_tokenizer(bundle, recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    pairs = [Pair("one", "eins")] * 10
    size = len(tokenizer.encode_source("one")) + len(tokenizer.encode_target("eins"))
    assert [len(limit_tokens(tokenizer, pairs, limit, 3)) for limit in (0, 5 * size, 6 * size - 1, 99 * size)] == [3, 5, 5, 10]
    assert len(limit_tokens(tokenizer, pairs[:2], 0, 3)) == 2

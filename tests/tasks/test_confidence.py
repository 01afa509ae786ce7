"""Confidence: its signals against a table of attention and teacher forcing, its quantiles against closed forms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dragoman
from conftest import edit_config
from dragoman import Translator
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.errors import DataError
from dragoman.evaluation.correlation import spearman_correlation
from dragoman.tasks import confidence as confidence_module
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.confidence import (
    QUANTILE_LEVELS,
    OutputSignals,
    SignalQuantiles,
    _compute_coverage,
    calibrate,
    compute_signals,
)
from dragoman.tasks.forced_decoding import compute_cross_attentions
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.training import finalize as finalize_module
from dragoman.training import measure_parts
from expected_errors import raises_code
from tiny_runs import WORDS

pytestmark = pytest.mark.usefixtures("one_core")

EVEN = [OutputSignals(10, -1.0 + rank / 100, -5.0, 0.9) for rank in range(101)]
"""Outputs that differ in their mean log-probability alone: −1.00, −0.99, …, 0."""
LINES = [" ".join(list(WORDS)[(start + step) % len(WORDS)] for step in range(start % 5 + 1)) for start in range(120)]


@pytest.fixture(scope="module")
def calibrated(bundle: Path, tmp_path_factory: pytest.TempPathFactory, one_core: None) -> Path:
    """Copy of the trained bundle, calibrated by the command on 120 lines of its own language."""
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "valid.en").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    references = [" ".join(WORDS[word] for word in line.split()) for line in LINES]
    (folder / "valid.de").write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    target = folder / "bundle"
    target.mkdir()
    for path in bundle.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    arguments = ["model", "calibrate", str(target), str(folder / "valid.en"), str(folder / "valid.de"), "--json"]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    return target


@pytest.fixture(scope="module")
def translator(calibrated: Path) -> Translator:
    return dragoman.load(calibrated, task="translation", device="cpu", precision="float32")


def test_confidence_is_share_of_calibration_set() -> None:
    calibration = calibrate(EVEN)
    assert calibration is not None
    for mean, expected in [(-2.0, 0.0), (-1.0, 0.0), (-0.75, 0.25), (-0.5, 0.5), (-0.1, 0.9), (0.0, 1.0), (1.0, 1.0)]:
        assert calibration.compute_confidence(OutputSignals(10, mean, -5.0, 0.9)) == pytest.approx(expected, abs=1e-6)


def test_coverage_counts_words_alone() -> None:
    received_S = np.array([0.5, 3.0, 0.1, 7.0], dtype=np.float32)
    assert _compute_coverage(received_S, ["▁ab", "c", ".", "</s>"], [9, 8, 7, 3]) == pytest.approx((0.5 + 1.0) / 2)
    assert _compute_coverage(received_S, [".", "▁", "!", "</s>"], [9, 8, 7, 3]) == 1.0


@pytest.mark.parametrize("change", [{"min_log_prob": -9.0}, {"coverage": 0.2}, {"mean_log_prob": -3.0}])
def test_one_unusual_signal_lowers_confidence(change: dict[str, Any]) -> None:
    calibration = calibrate(EVEN)
    assert calibration is not None
    usual = OutputSignals(10, -0.1, -5.0, 0.9)
    assert calibration.compute_confidence(usual) == pytest.approx(0.9, abs=1e-6)
    assert calibration.compute_confidence(replace(usual, **change)) == 0.0


def test_signals_are_compared_within_similar_lengths() -> None:
    lengths = np.repeat([5.0, 20.0], 100)
    values = np.concatenate([np.linspace(0, 1, 100), np.linspace(10, 30, 100)])
    quantiles = SignalQuantiles.measure(values, lengths, num_buckets=2)
    assert quantiles.max_source_tokens == [5]
    assert quantiles.means == pytest.approx([0.5, 20.0])
    assert quantiles.rank(0.5, 4) == pytest.approx(quantiles.rank(20.0, 90), abs=1e-6) == pytest.approx(0.5, abs=0.01)


def test_signals_equal_teacher_forcing(translator: Translator) -> None:
    tokenizer, decoder = translator.bundle.tokenizer, TorchForcedDecoder(translator.models[0])
    source, target = tokenizer.encode_source("red one ten"), tokenizer.encode_target("rot eins zehn")
    start_id, head = get_decoder_start_id(translator.recipe.model), AlignmentHead(0, 1)
    forced = translator.score(["red one ten"], ["rot eins zehn"])[0].token_log_probs
    [weights_LHTS] = compute_cross_attentions(decoder, [source], [target], start_id=start_id, finished=[True])
    received_S = weights_LHTS[0, 1].sum(0)
    full, cut = compute_signals(
        decoder,
        tokenizer,
        [(source, target, True), (source, target, False)],
        translator.resolve_decoding({}),
        start_id=start_id,
        head=head,
    )
    assert (full.mean_log_prob, full.min_log_prob) == pytest.approx((sum(forced) / len(forced), min(forced)), abs=1e-6)
    assert (cut.mean_log_prob, cut.min_log_prob) == pytest.approx((sum(forced[:-1]) / len(target), min(forced[:-1])), abs=1e-6)
    pieces = tokenizer.source.ids_to_pieces(source)
    words = [index for index, piece in enumerate(pieces) if any(map(str.isalpha, piece)) and piece != "</s>"]
    assert full.coverage == pytest.approx(sum(min(float(received_S[index]), 1.0) for index in words) / len(words), abs=1e-6)
    assert full.source_length == len(source)


def test_wrong_translation_has_low_confidence(translator: Translator) -> None:
    sources, right = ["red one ten", "big blue four"], ["rot eins zehn", "groß blau vier"]
    confidences = [translation.confidence for translation in translator.score(sources, right[::-1], confidence=True)]
    assert confidences == [0.0, 0.0]
    # The k-th lowest of the calibration set has a confidence of about k / n, so nearly all outputs of its lines are above 0.
    own = [translation.confidence for translation in translator.translate(LINES, confidence=True) if translation.tokens]
    assert all(confidence is not None for confidence in own)
    assert np.mean([confidence > 0 for confidence in own if confidence is not None]) > 0.9
    assert [translation.confidence for translation in translator.translate(["", "red"])] == [None, None]
    assert translator.translate([""], confidence=True)[0].confidence is None


def test_calibration_keeps_weights_and_survives_reading(bundle: Path, calibrated: Path, translator: Translator) -> None:
    assert (calibrated / "weights.safetensors").read_bytes() == (bundle / "weights.safetensors").read_bytes()
    calibration = load_bundle(calibrated).metadata.confidence
    assert calibration is not None
    assert calibration.chrf_correlation is not None
    num_outputs = sum(bool(translation.tokens) for translation in translator.translate(LINES))
    assert (calibration.sentences, len(calibration.combined)) == (num_outputs, len(QUANTILE_LEVELS))
    assert replace(load_bundle(calibrated).metadata, confidence=None) == load_bundle(bundle).metadata


def test_bundle_without_calibration_is_an_error(bundle: Path) -> None:
    uncalibrated = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    with raises_code("calibration-missing"):
        uncalibrated.translate(["red"], confidence=True)


@pytest.mark.parametrize("quantiles", [[], [0.0], [float("nan")] * len(QUANTILE_LEVELS), [*range(len(QUANTILE_LEVELS), 0, -1)]])
def test_damaged_calibration_is_an_error(calibrated: Path, bundle_copy: Path, quantiles: list[float]) -> None:
    section = json.loads((calibrated / "config.json").read_text(encoding="utf-8"))["metadata"]["confidence"]
    edit_config(bundle_copy, lambda document: document["metadata"].update(confidence={**section, "combined": quantiles}))
    with raises_code("bundle-damaged"):
        load_bundle(bundle_copy)


def test_bundle_of_a_run_is_calibrated(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_bundle(trained / "bundle").metadata.confidence is None  # ten validation sentences are too few
    for module in (confidence_module, measure_parts):
        monkeypatch.setattr(module, "MIN_CALIBRATION_SENTENCES", 5)
    finalize_module.average_run(trained, tmp_path / "bundle", averaging="last", count=1)
    calibration = load_bundle(tmp_path / "bundle").metadata.confidence
    assert calibration is not None
    assert 5 <= calibration.sentences <= 10
    assert calibration.chrf_correlation is not None


def test_too_few_lines_are_an_error(calibrated: Path, tmp_path: Path) -> None:
    (tmp_path / "few.en").write_text("red\n" * 20, encoding="utf-8")
    result = CliRunner().invoke(cli, ["model", "calibrate", str(calibrated), str(tmp_path / "few.en")])
    assert isinstance(result.exception, DataError)
    assert result.exception.code == "empty-data"


def test_confidence_needs_json(calibrated: Path, tmp_path: Path) -> None:
    (tmp_path / "in.en").write_text("red one ten\n", encoding="utf-8")
    arguments = [
        "translate",
        str(calibrated),
        str(tmp_path / "in.en"),
        "--precision",
        "float32",
        "--device",
        "cpu",
        "--confidence",
    ]
    assert CliRunner().invoke(cli, arguments).exit_code == 2
    line = json.loads(CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert 0 <= line["confidence"] <= 1


def test_spearman_correlation(subtests: pytest.Subtests) -> None:
    for first, second, expected in [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 1 - 6 * 4 / (5 * 24)),  # 1 − 6 Σ d² / (n (n² − 1)) without ties
        ([1, 1, 2], [1, 2, 3], 0.8660254037844387),  # ranks 1.5, 1.5, 3: Pearson gives √3 / 2
        ([1, 1, 1], [1, 2, 3], 0.0),
    ]:
        with subtests.test(first=first, second=second, expected=expected):
            assert spearman_correlation(first, second) == pytest.approx(expected)

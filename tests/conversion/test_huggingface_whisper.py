"""Converted Whisper folders against the `transformers` library, and errors of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from damaged_sources import change_json, check_any_refusal
from dragoman.bundle import Bundle, load_bundle
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.model.factory import build_model
from dragoman.model_forward import NumpyTransformer
from expected_errors import raises_code
from tuned_folders import WHISPER_LANGUAGES, write_whisper

pytest.importorskip("transformers", reason="parity with Whisper needs transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bundle]:
    folder = tmp_path_factory.mktemp("peer")
    model = write_whisper(folder / "source")
    dragoman.convert(folder / "source", folder / "bundle")
    return model, load_bundle(folder / "bundle")


def make_spectrograms(model: Any, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    config = model.config
    return torch.randn(count, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)


def list_new_ids(model: Any) -> np.ndarray[Any, Any]:
    """Return the ids of a bundle for the ids of its source: two special tokens are new, and the end and the start move."""
    end, start = model.config.eos_token_id, model.config.decoder_start_token_id
    others = [row for row in range(model.config.vocab_size) if row not in (end, start)]
    ids = np.empty(model.config.vocab_size, np.int64)
    ids[[start, end, *others]] = np.arange(2, 2 + len(ids))
    return ids


@torch.no_grad()
def test_encoder_and_logits_are_equal(peer: tuple[Any, Bundle]) -> None:
    model, bundle = peer
    features, new_ids = make_spectrograms(model), list_new_ids(model)
    tokens = torch.randint(0, model.config.vocab_size, (3, 12), generator=torch.Generator().manual_seed(3))
    assert bundle.weights is not None
    forward = NumpyTransformer(bundle.weights)
    memory_BSD = forward.encode(features.numpy())
    expected_memory = model.model.encoder(features).last_hidden_state.numpy()
    np.testing.assert_allclose(memory_BSD, expected_memory, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(bundle.model.encoder(features).numpy(), expected_memory, rtol=0, atol=TOLERANCE)
    expected = model(input_features=features, decoder_input_ids=tokens, use_cache=False).logits.numpy()
    logits = forward.compute_logits(forward.decode(new_ids[tokens.numpy()], memory_BSD, features.numpy()))
    np.testing.assert_allclose(logits[:, :, new_ids], expected, rtol=0, atol=TOLERANCE)
    assert (logits[:, :, :2] < -1e4).all()
    compiled = compile_model(bundle.weights, "float32")
    state = compiled.start(features.numpy())
    for position in range(tokens.shape[1]):
        step_logits, state = compiled.step(new_ids[tokens[:, position].numpy()], state)
        np.testing.assert_allclose(step_logits[:, new_ids], expected[:, position], rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_windows_may_have_more_positions_than_outputs(tmp_path: Path) -> None:
    """The compiled encoder attends to all 400 positions, although the decoder begins with room for 64 tokens."""
    model = write_whisper(tmp_path / "source", max_source_positions=400)
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    weights = load_bundle(tmp_path / "bundle").weights
    assert weights is not None
    features, new_ids = make_spectrograms(model), list_new_ids(model)
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    expected = model(input_features=features, decoder_input_ids=start, use_cache=False).logits[:, 0].numpy()
    compiled = compile_model(weights, "float32")
    logits, _ = compiled.step(new_ids[start[:, 0].numpy()], compiled.start(features.numpy()))
    np.testing.assert_allclose(logits[:, new_ids], expected, rtol=0, atol=TOLERANCE)


def test_bundle_declares_its_input(peer: tuple[Any, Bundle]) -> None:
    model, bundle = peer
    config, speech, new_ids = bundle.recipe.model, bundle.metadata.speech, list_new_ids(model)
    assert (bundle.recipe.task.kind, config.frontend) == ("transcription", "log-mel")
    assert (config.num_mel_bins, config.max_source_positions, config.max_positions) == (80, 50, 64)
    assert speech is not None
    generation = model.generation_config
    expected_ids = {language: new_ids[generation.lang_to_id[f"<|{language}|>"]] for language in WHISPER_LANGUAGES}
    assert speech.languages == expected_ids
    assert speech.no_timestamps == new_ids[generation.no_timestamps_token_id]
    assert speech.previous == new_ids[generation.prev_sot_token_id]
    assert speech.first_timestamp == new_ids[generation.no_timestamps_token_id + 1]
    assert speech.suppressed == sorted(new_ids[generation.suppress_tokens].tolist())
    assert speech.suppressed_first == sorted(new_ids[generation.begin_suppress_tokens].tolist())
    assert speech.max_initial_timestamp == 20
    assert bundle.metadata.origin is not None
    assert bundle.metadata.origin.source_languages == list(WHISPER_LANGUAGES)


def test_model_of_one_language_has_no_language_tokens(tmp_path: Path) -> None:
    write_whisper(tmp_path / "source", is_multilingual=False)
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    speech = load_bundle(tmp_path / "bundle").metadata.speech
    assert speech is not None
    assert (speech.languages, speech.tasks) == ({}, {})


def test_unnamed_timestamps_are_converted(tmp_path: Path) -> None:
    """Earlier files name no timestamps, but the embedding has rows for 0.00 to 30.00 seconds."""
    model = write_whisper(tmp_path / "source", num_timestamps=1501)
    path = tmp_path / "source" / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"][2].isalpha()]
    path.write_text(json.dumps(document), encoding="utf-8")
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    assert bundle.metadata.speech is not None
    assert len(bundle.tokenizer.target) - bundle.metadata.speech.first_timestamp == 1501
    assert len(bundle.tokenizer.target) == model.config.vocab_size + 2


@pytest.mark.parametrize(
    ("file_name", "change", "name"),
    [
        ("config.json", lambda document: document.update(tie_word_embeddings=False), "tie_word_embeddings"),
        ("config.json", lambda document: document.update(eos_token_id=9), "eos_token_id"),
        ("config.json", lambda document: document.update(num_mel_bins=128), "feature_size"),
        ("config.json", lambda document: document.update(max_source_positions=49), "encoder.embedding.positions.weight"),
        ("config.json", lambda document: document.update(decoder_attention_heads=2), "decoder_attention_heads"),
        ("generation_config.json", lambda document: document.update(suppress_tokens=[10**6]), "suppress_tokens"),
        ("generation_config.json", lambda document: document.update(begin_suppress_tokens="no"), "begin_suppress_tokens"),
        ("preprocessor_config.json", lambda document: document.update(hop_length=80), "hop_length"),
        ("tokenizer.json", lambda document: document["added_tokens"].pop(-52), "no token"),
        (
            "tokenizer.json",
            lambda document: document["added_tokens"][-56].update(content="<|sing|>"),
            "no token <|transcribe|>",
        ),
    ],
)
def test_false_settings_raise(file_name: str, change: Callable[[Any], object], name: str, tmp_path: Path) -> None:
    write_whisper(tmp_path / "source")
    change_json(tmp_path / "source" / file_name, change)
    check_any_refusal(tmp_path / "source", name)


def test_more_bands_than_frequencies_raise(tmp_path: Path) -> None:
    """A window of 400 samples has 200 frequencies above 0 Hz."""
    write_whisper(tmp_path / "source", num_mel_bins=80)
    change_json(tmp_path / "source" / "config.json", num_mel_bins=201)
    change_json(tmp_path / "source" / "preprocessor_config.json", feature_size=201)
    check_any_refusal(tmp_path / "source", "model.num_mel_bins = 201")


def test_other_uses_of_the_bundle_raise(peer: tuple[Any, Bundle]) -> None:
    _, bundle = peer
    with pytest.raises(dragoman.DragomanError, match="is a transcriber of speech, not a translator; use dragoman transcribe"):
        dragoman.Translator.from_bundles([bundle])
    with raises_code("frontend-unsupported"):  # as in training
        build_model(bundle.recipe.model, source_vocab_size=9, target_vocab_size=9)

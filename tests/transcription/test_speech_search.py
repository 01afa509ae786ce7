"""Outputs, languages and timestamps of converted Whisper models against `generate` of the `transformers` library."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.transcription.speech_search import MASKED, SpeechRules, SpeechSearch
from dragoman.transcription.transcriber import Transcriber
from tuned_folders import write_whisper

pytest.importorskip("transformers", reason="parity with Whisper needs transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
COUNT = 6


def favor_end_and_timestamps(model: Any) -> None:
    """Make the end likelier at each position, so that outputs end at several lengths, and timestamps likelier than text."""
    config, decoder = model.config, model.model.decoder
    with torch.no_grad():
        weight = decoder.embed_tokens.weight
        weight *= 0.3
        weight[config.eos_token_id] = 0.1 * torch.randn(config.d_model)  # transformers begins with zeros
        decoder.layer_norm.bias += 3 * weight[config.eos_token_id] / weight[config.eos_token_id].norm()


@pytest.fixture(scope="module", params=[True, False], ids=["multilingual", "english"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Transcriber]:
    folder = tmp_path_factory.mktemp("peer")
    model = write_whisper(folder / "source", is_multilingual=request.param, change_model=favor_end_and_timestamps)
    dragoman.convert(folder / "source", folder / "bundle")
    return model, Transcriber.load(folder / "bundle", precision="float32")


def make_features(model: Any) -> torch.Tensor:
    config, generator = model.config, torch.Generator().manual_seed(2)
    return torch.randn(COUNT, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)


def list_new_ids(model: Any) -> dict[int, int]:
    """Return the id in a bundle of each id of the source: the start and the end are 2 and 3, the others follow in order."""
    end, start = model.config.eos_token_id, model.config.decoder_start_token_id
    others = [row for row in range(model.config.vocab_size) if row not in (end, start)]
    return {row: index for index, row in enumerate([start, end, *others], start=2)}


def generate(
    model: Any, features: torch.Tensor, prompt: list[str], *, has_timestamps: bool, previous: Sequence[int] = ()
) -> list[list[int]]:
    """Return the outputs of transformers for one window each, in the ids of the bundle, without the prompt and the end.

    `generate` of Whisper decodes the rest of a window again after a pair of timestamps, so this is its inner search.
    """
    transformers: Any = importlib.import_module("transformers")
    config = copy.deepcopy(model.generation_config)
    config.return_timestamps, config.no_speech_threshold = has_timestamps, None
    ids = {"start": config.decoder_start_token_id, "none": config.no_timestamps_token_id}
    if "de" in prompt:
        ids |= {"de": config.lang_to_id["<|de|>"], "transcribe": config.task_to_id["transcribe"]}
    begin = [*previous, *(ids[name] for name in prompt)]
    inputs = torch.tensor([begin] * len(features))
    processors = model._retrieve_logit_processors(config, None, begin_index=len(begin), num_beams=1, device="cpu")
    rows = transformers.GenerationMixin.generate(
        model, features, generation_config=config, logits_processor=processors, decoder_input_ids=inputs, do_sample=False
    )
    return [cut_output(model, row[len(begin) :]) for row in rows.tolist()]


def cut_output(model: Any, row: list[int]) -> list[int]:
    """Return the ids in the bundle of a row of the source, without a prompt before it and the end."""
    end, last, new_ids = model.config.eos_token_id, model.generation_config.no_timestamps_token_id, list_new_ids(model)
    row = row[row.index(last) + 1 :] if last in row else row
    return [new_ids[token] for token in (row[: row.index(end)] if end in row else row)]


def search_windows(
    transcriber: Transcriber,
    features: torch.Tensor,
    *,
    has_timestamps: bool,
    previous: Sequence[int] = (),
    **decoding: Any,
) -> list[list[int]]:
    decoding = {"repetition_window": 0, **decoding}
    config = transcriber.session.resolve_decoding(decoding)
    search = SpeechSearch(transcriber.session.inference_model, transcriber.tokens, config)
    state = search.encode(features.numpy())
    language = "de" if transcriber.languages else None
    prompt = search.build_prompt(language, "transcribe", has_timestamps=has_timestamps, previous=previous)
    return [list(output.tokens) for output in search.run(state, [prompt] * len(features), has_timestamps=has_timestamps)]


@pytest.mark.parametrize("has_timestamps", [False, True])
def test_greedy_outputs_are_equal(peer: tuple[Any, Transcriber], has_timestamps: bool) -> None:
    model, transcriber = peer
    features = make_features(model)
    prompt = ["start", *(["de", "transcribe"] if transcriber.languages else []), *([] if has_timestamps else ["none"])]
    expected = generate(model, features, prompt, has_timestamps=has_timestamps)
    outputs = search_windows(transcriber, features, has_timestamps=has_timestamps)
    assert outputs == expected
    assert len({len(output) for output in outputs}) > 1
    first = transcriber.tokens.first_timestamp
    assert any(token >= first for output in outputs for token in output) or not has_timestamps
    if not has_timestamps:  # the whole `generate` of Whisper builds the same prompt itself
        options = {"language": "de", "task": "transcribe"} if transcriber.languages else {}
        rows = model.generate(features, do_sample=False, num_beams=1, **options).tolist()
        assert [cut_output(model, row) for row in rows] == outputs


def test_outputs_behind_a_prompt_are_equal(peer: tuple[Any, Transcriber]) -> None:
    model, transcriber = peer
    features, new_ids = make_features(model), list_new_ids(model)
    limit = model.config.max_target_positions // 2 - 1
    texts = [token for token in range(5, 5 + 2 * limit) if token < model.config.eos_token_id]
    assert len(texts) > limit  # the last tokens count
    prompt = ["start", *(["de", "transcribe"] if transcriber.languages else [])]
    previous = [model.generation_config.prev_sot_token_id, *texts[-limit:]]
    expected = generate(model, features, prompt, has_timestamps=True, previous=previous)
    outputs = search_windows(transcriber, features, has_timestamps=True, previous=[new_ids[token] for token in texts])
    assert outputs == expected
    assert outputs != search_windows(transcriber, features, has_timestamps=True)


def test_detected_languages_are_equal(peer: tuple[Any, Transcriber]) -> None:
    model, transcriber = peer
    if not transcriber.languages:
        pytest.skip("the model has one language")
    features = make_features(model)
    search = SpeechSearch(transcriber.session.inference_model, transcriber.tokens, transcriber.session.resolve_decoding({}))
    starts = search.predict_starts(search.encode(features.numpy()), COUNT)
    new_ids = list_new_ids(model)
    detected = [new_ids[token] for token in model.detect_language(features).tolist()]
    assert [transcriber.tokens.languages[start.language or ""] for start in starts] == detected
    assert all(0 < start.language_probability <= 1 and 0 <= start.no_speech_probability <= 1 for start in starts)


def test_windows_of_a_batch_do_not_change_each_other(peer: tuple[Any, Transcriber]) -> None:
    model, transcriber = peer
    features = make_features(model)
    together = search_windows(transcriber, features, has_timestamps=True, method="beam", beam_size=3)
    alone = [
        search_windows(transcriber, features[index : index + 1], has_timestamps=True, method="beam", beam_size=3)[0]
        for index in range(COUNT)
    ]
    assert together == alone


def test_int8_logits_are_near_float32(peer: tuple[Any, Transcriber]) -> None:
    model, transcriber = peer
    features = make_features(model).numpy()
    quantized = Transcriber.from_bundle(transcriber.bundle, precision="int8")
    logits = []
    for each in (transcriber, quantized):
        inference_model = each.session.inference_model
        logits_NV, _ = inference_model.step(np.full(COUNT, 2), inference_model.start(features))
        logits.append(np.array(logits_NV[:, 2:]))
    # int8 has steps of 1/127 of the largest value; the errors of the layers add up to a few of them.
    assert np.abs(logits[0] - logits[1]).max() < 0.1 * np.abs(logits[0]).max()


def test_rules_follow_every_output() -> None:
    """Each case lists the tokens that may follow: 4 to 7 are text, 8 no timestamps, 9 to 14 timestamps, 3 the end."""
    from dragoman.bundle import SpeechTokens

    tokens = SpeechTokens(
        languages={}, tasks={}, first_special=8, no_timestamps=8, first_timestamp=9, no_speech=None, suppressed=[5],
        suppressed_first=[3, 4], max_initial_timestamp=2,
    )  # fmt: skip
    for output, has_timestamps, allowed in [
        ([], False, {6, 7, 8, 9, 10, 11, 12, 13, 14}),
        ([6], False, {3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14}),
        ([], True, {9, 10, 11}),
        ([10], True, {3, 4, 6, 7}),  # a first timestamp stands alone
        ([10, 6], True, {3, 4, 6, 7, 11, 12, 13, 14}),
        ([10, 6, 12], True, {3, 12, 13, 14}),  # its pair may be equal
        ([10, 6, 12, 12], True, {3, 4, 6, 7}),
        ([10, 6, 12, 12, 7], True, {3, 4, 6, 7, 13, 14}),
    ]:
        logits_NV = np.zeros((1, 15), np.float32)
        logits_NV[:, :9] = 5.0  # each token of text is likelier than all timestamps
        SpeechRules(tokens, has_timestamps).mask(logits_NV, np.array([output], np.int64).reshape(1, -1))
        assert set(np.flatnonzero(logits_NV[0] > MASKED)) == allowed, output
    logits_NV = np.zeros((1, 15), np.float32)  # four timestamps are together likelier than each token of text
    SpeechRules(tokens, True).mask(logits_NV, np.array([[10, 6]], np.int64))
    assert set(np.flatnonzero(logits_NV[0] > MASKED)) == {11, 12, 13, 14}

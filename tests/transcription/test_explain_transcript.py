"""Explanations of transcripts: attention over the spectrogram, and the page of the command."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import dragoman
from dragoman.cli.main import cli
from dragoman.frontends.sound_file import read_sound
from dragoman.model_forward import NumpyTransformer
from dragoman.transcription import explain_transcript as module
from dragoman.transcription.explain_transcript import SEARCH_NOTE, explain_transcript
from dragoman.transcription.transcriber import Transcriber
from tuned_folders import write_whisper

pytest.importorskip("transformers", reason="Whisper folders are made with transformers: dragoman[test]")
pytest.importorskip("soxr", reason="soundfile and soxr are not installed: pip install 'dragoman[speech]'")
pytestmark = pytest.mark.usefixtures("quiet")
RATE = 16_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a bundle with windows of one second, and of a recording of half a second and one of two."""
    folder = tmp_path_factory.mktemp("model")
    write_whisper(folder / "source")
    dragoman.convert(folder / "source", folder / "bundle")
    for name, seconds in (("short.wav", 0.5), ("long.wav", 2.0)):
        samples_N = 0.1 * np.random.default_rng(1).standard_normal(round(seconds * RATE))
        with wave.open(str(folder / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((samples_N * 32767).astype("<i2").tobytes())
    return folder


def test_attention_is_that_of_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second is 25 positions of 20 ms. With room for 10 columns, a column is three positions, and the last one one."""
    transcriber = Transcriber.load(folder / "bundle", precision="float32")
    explanation = explain_transcript(transcriber, folder / "short.wav")
    assert explanation.source_tokens[:3] == ("0 s", "0.02 s", "0.04 s")
    assert explanation.decoder_input[0] == "<s>"
    assert explanation.decoder_input[2] == "<|transcribe|>"
    assert explanation.notes == (SEARCH_NOTE,)
    weights, vocabulary = transcriber.bundle.weights, transcriber.bundle.tokenizer.target
    assert weights is not None
    ids = {piece: index for index, piece in enumerate(vocabulary.ids_to_pieces(range(len(vocabulary))))}
    samples_N = read_sound(folder / "short.wav")
    source = transcriber.compute_features(samples_N)[None]
    inputs = np.array([[ids[token] for token in explanation.decoder_input]])
    model = NumpyTransformer(weights)
    layers: list[NDArray[np.float32]] = []
    model.decode(inputs, model.encode(source), source, cross_weights=layers)
    expected = np.concatenate(layers)[:, :, -len(explanation.output_tokens) :, :25]
    np.testing.assert_allclose(explanation.cross.weights_LHTS, expected, rtol=0, atol=1e-5)
    monkeypatch.setattr(module, "MAX_TOKENS", 10)
    grouped = explain_transcript(transcriber, folder / "short.wav")
    assert grouped.source_tokens[:2] == ("0 s", "0.06 s")
    assert grouped.cross.shape[3] == 9
    np.testing.assert_allclose(grouped.cross.weights_LHTS[..., 7], expected[..., 21:24].sum(-1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(grouped.cross.weights_LHTS[..., 8], expected[..., 24], rtol=0, atol=1e-5)
    assert "A column is 3 positions" in grouped.notes[-1]


def test_command_writes_the_page(folder: Path) -> None:
    page = folder / "page.html"
    arguments = ["explain", str(folder / "bundle"), str(folder / "long.wav"), "-o", str(page), "--json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    assert "Only the first 1 s" in output["notes"][1]
    assert "&lt;|transcribe|&gt;" in page.read_text(encoding="utf-8")
    forced = json.loads(CliRunner().invoke(cli, [*arguments, "--overwrite", "--target", "house"]).stdout)
    assert forced["target"] == "house"
    assert forced["teacher_forced"]


def test_damaged_recording_gets_one_line(folder: Path) -> None:
    (folder / "damaged.wav").write_bytes(b"RIFF")
    result = CliRunner().invoke(cli, ["explain", str(folder / "bundle"), str(folder / "damaged.wav")], standalone_mode=False)
    assert isinstance(result.exception, dragoman.DragomanError)
    assert "not a sound file" in str(result.exception)

"""Transcripts of recordings: windows, times, formats, the command, and errors of one line."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import dragoman
from capital_letters import make_client
from dragoman.cli.main import cli
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.serving.model_set import ModelSet
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits
from dragoman.transcription.transcriber import Transcriber
from dragoman.transcription.transcript import Segment, Transcript
from tuned_folders import write_whisper

pytest.importorskip("transformers", reason="Whisper folders are made with transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
RATE = 16_000
MISSING = "soundfile and soxr are not installed: pip install 'dragoman[speech]'"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_whisper(folder / "source")
    dragoman.convert(folder / "source", folder / "bundle")
    return folder / "bundle"


@pytest.fixture(scope="module")
def transcriber(bundle: Path) -> Transcriber:
    return Transcriber.load(bundle, precision="float32")


@pytest.fixture
def needs_sound_libraries() -> None:
    pytest.importorskip("soxr", reason=MISSING)
    pytest.importorskip("soundfile", reason=MISSING)


def make_noise(seconds: float) -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(1).standard_normal(round(seconds * RATE))).astype(np.float32)


def write_wave(path: Path, samples_N: NDArray[np.float32], *, rate: int = RATE, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat((samples_N * 32767).astype("<i2"), channels).tobytes())
    return path


def test_features_equal_those_of_transformers(transcriber: Transcriber) -> None:
    transformers: Any = importlib.import_module("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    for seconds in (0.3, 1.0):
        samples_N = make_noise(seconds)
        expected = extractor(samples_N, sampling_rate=RATE, return_tensors="np")["input_features"][0]
        np.testing.assert_allclose(transcriber.compute_features(samples_N), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("output", "times", "covered"),
    [
        # Timestamps are negative here: -1 is 0.00, -2 is 0.02. All other numbers are tokens of text.
        ([-1, 10, 11, -26], [(0.0, 0.5)], 1.0),
        ([-1, 10, -11, -11, 11, -36], [(0.0, 0.2), (0.2, 0.7)], 1.0),
        ([-1, 10, -26, -26], [(0.0, 0.5)], 0.5),  # a segment begins at 0.5 s, and its words are in the next window
        ([-1, 10, -26, -26, 11, 12], [(0.0, 0.5)], 0.5),  # the window cuts the words 11 and 12
        ([-1, 10, 11], [(0.0, 1.0)], 1.0),
        ([10, 11], [(0.0, 1.0)], 1.0),
        ([-1, 10, -1, -1], [(0.0, 0.0)], 0.0),
        ([-1, -1], [], 1.0),
        ([], [], 1.0),
    ],
)
def test_outputs_are_split_at_timestamps(
    output: list[int], times: list[tuple[float, float]], covered: float, transcriber: Transcriber
) -> None:
    first = transcriber.tokens.first_timestamp
    tokens = tuple(first - token - 1 if token < 0 else token for token in output)
    parts, seconds = transcriber._split_output(Hypothesis(tokens, (0.0,) * len(tokens), 0.0, True), 1.0)
    assert [part[:2] for part in parts] == [pytest.approx(pair) for pair in times]
    assert seconds == pytest.approx(covered)


def test_long_recordings_are_read_by_windows(transcriber: Transcriber) -> None:
    """Times grow, stay within the recording, and the seconds that are reported add up to it."""
    reported: list[float] = []
    transcript = transcriber.transcribe(make_noise(3.4), language="de", on_progress=reported.append)
    assert transcript.duration == pytest.approx(3.4)
    assert sum(reported) == pytest.approx(3.4)
    assert transcript.language == "de"
    starts = [segment.start for segment in transcript.segments]
    assert starts == sorted(starts)
    assert len(starts) >= 3
    assert all(0 <= segment.start <= segment.end <= 3.4 for segment in transcript.segments)


def test_next_window_begins_later_in_any_case(transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs that cover nothing move each window by 1/30 of a full one, also in the last window, which is shorter."""
    reported: list[float] = []
    monkeypatch.setattr(transcriber, "_split_output", lambda output, seconds: ([], 0.0))
    transcriber.transcribe(make_noise(0.5), language="de", on_progress=reported.append)
    assert reported == pytest.approx([533 / RATE] * 15 + [5 / RATE])  # 16,000 / 30 and 8,000 samples


def test_model_without_room_for_an_output_raises(tmp_path: Path) -> None:
    write_whisper(tmp_path / "source", max_target_positions=4)
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    with pytest.raises(dragoman.DragomanError, match=r"model\.max_positions = 4, but the prompt has up to 4 tokens"):
        Transcriber.load(tmp_path / "bundle")


@pytest.mark.parametrize(
    "arguments",
    [
        *(["export", "BUNDLE", "--to", engine, "out.argosmodel"] for engine in ("ctranslate2", "huggingface", "onnx", "argos")),
        ["model", "shortlist", "BUNDLE", "text.txt", "text.txt", "-o", "shortlist"],
    ],
)
def test_other_commands_refuse_in_one_line(
    arguments: list[str], bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("hello\n", encoding="utf-8")
    result = CliRunner().invoke(cli, [str(bundle) if argument == "BUNDLE" else argument for argument in arguments])
    assert isinstance(result.exception, dragoman.DragomanError)
    [message] = str(result.exception).splitlines()
    assert "dragoman exports models of text only; use dragoman transcribe" in message or "is no translator" in message


@pytest.mark.parametrize("change", [{"suppressed": [10**6]}, {"tasks": {}}, {"first_timestamp": -1}])
def test_tokens_that_do_not_fit_raise(change: dict[str, Any], transcriber: Transcriber) -> None:
    bundle = transcriber.bundle
    speech = replace(transcriber.tokens, **change)
    with pytest.raises(dragoman.DragomanError, match="convert the model again"):
        Transcriber.from_bundle(replace(bundle, metadata=replace(bundle.metadata, speech=speech)))


def test_load_names_the_class(bundle: Path) -> None:
    with pytest.raises(dragoman.DragomanError, match=r"open it with dragoman\.Transcriber\.load"):
        dragoman.load(bundle)


def test_silence_has_no_text(transcriber: Transcriber) -> None:
    transcript = transcriber.transcribe(np.zeros(3 * RATE, np.float32))
    assert (transcript.text, transcript.duration, transcript.language) == ("", 3.0, None)


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (np.zeros(0, np.float32), {}, "samples: there is no sound in it"),
        (np.zeros((5, 2), np.float32), {}, "mono samples"),
        (np.full(5, np.nan, np.float32), {}, "finite"),
        (make_noise(0.1), {"language": "xx"}, "is not one of the model's, en, de, yue"),
        (make_noise(0.1), {"task": "sing"}, "the model has transcribe, translate"),
        (make_noise(0.1), {"beam": 5}, "beam"),
        (make_noise(0.1), {"method": "sample"}, "has no effect on transcription"),
        (make_noise(0.1), {"min_length": 5}, "decoding.min_length = 5: has no effect"),
        (np.full(5, 1e300), {}, "finite"),  # is infinite in float32
    ],
)
def test_bad_input_raises(samples: Any, options: dict[str, Any], message: str, transcriber: Transcriber) -> None:
    with pytest.raises(dragoman.DragomanError, match=message) as raised:
        transcriber.transcribe(samples, **options)
    assert "\n" not in str(raised.value)


def make_transcript() -> Transcript:
    texts = [(0.0, 1.25, " Hello & <b>."), (1.25, 3.0, " a --> b"), (3.0, 3.5, "  "), (3661.5, 3662.0, " Fin.")]
    segments = [Segment(start, end, text, (5,), -0.25, 0.5) for start, end, text in texts]
    return Transcript("en", 3662.0, segments)


def test_subtitles_have_cues() -> None:
    transcript = make_transcript()
    assert transcript.format("srt") == (
        "1\n00:00:00,000 --> 00:00:01,250\nHello & <b>.\n\n2\n00:00:01,250 --> 00:00:03,000\na -> b\n\n"
        "3\n01:01:01,500 --> 01:01:02,000\nFin.\n"
    )
    assert transcript.format("vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nHello &amp; &lt;b&gt;.\n\n00:00:01.250 --> 00:00:03.000\na -&gt; b\n\n"
        "01:01:01.500 --> 01:01:02.000\nFin.\n"
    )


def test_text_and_json_have_all_segments() -> None:
    transcript = make_transcript()
    assert transcript.format("text") == "Hello & <b>.\na --> b\nFin.\n"
    document = json.loads(transcript.format("json"))
    assert (document["language"], document["duration"]) == ("en", 3662.0)
    assert document["segments"][0] == {
        "start": 0.0, "end": 1.25, "text": "Hello & <b>.", "mean_log_prob": -0.25, "no_speech_probability": 0.5,
    }  # fmt: skip


@pytest.mark.usefixtures("needs_sound_libraries")
def test_command_writes_each_recording(bundle: Path, tmp_path: Path) -> None:
    first = write_wave(tmp_path / "a.wav", make_noise(1.5))
    # Eight equal channels at 192 kHz are mixed down to one at 16 kHz.
    second = write_wave(tmp_path / "b.wav", np.repeat(make_noise(0.5), 12), rate=192_000, channels=8)
    output = tmp_path / "texts"
    arguments = ["transcribe", str(bundle), str(first), str(second), "--language", "en", "--to", "srt", "-o", str(output)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in output.iterdir()) == ["a.srt", "b.srt"]
    assert " --> " in (output / "a.srt").read_text(encoding="utf-8")
    result = CliRunner().invoke(cli, ["transcribe", str(bundle), str(first), "--json", "method=beam", "beam_size=2"])
    assert json.loads(result.stdout)["duration"] == 1.5


@pytest.mark.usefixtures("needs_sound_libraries")
def test_refused_recordings_are_named_in_one_line(bundle: Path, tmp_path: Path) -> None:
    good = write_wave(tmp_path / "good.wav", make_noise(0.5))
    damaged = tmp_path / "damaged.wav"
    damaged.write_bytes(b"RIFF, but no sound")
    empty = write_wave(tmp_path / "empty.wav", make_noise(0))
    silent = write_wave(tmp_path / "silent.wav", np.zeros(RATE, np.float32))
    paths = [str(path) for path in (good, damaged, empty, silent, tmp_path / "missing.wav")]
    result = CliRunner().invoke(cli, ["transcribe", str(bundle), *paths])
    assert result.exit_code == 4
    messages = result.stderr.splitlines()
    assert [Path(message.partition(":")[0]).name for message in messages] == [
        "damaged.wav", "empty.wav", "silent.wav", "missing.wav",
    ]  # fmt: skip
    assert "no speech was found in 1.0 s" in messages[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.wav", "b.wav", "--to", "srt"], "need a folder"),
        (["x/a.wav", "y/a.wav", "-o", "texts"], "would both become"),
        (["method=beam"], "no FILE is given"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str, bundle: Path) -> None:
    result = CliRunner().invoke(cli, ["transcribe", str(bundle), *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_missing_library_names_the_extra(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_wave(tmp_path / "a.wav", make_noise(0.1))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(dragoman.DragomanError, match=r"dragoman\[speech\]"):
        Transcriber.load(bundle).transcribe(path)
    with pytest.raises(dragoman.DragomanError, match=r"dragoman\[speech\]"):
        ModelSet.load([bundle])


def test_prompt_is_text_that_begins_with_a_space(transcriber: Transcriber) -> None:
    tokenizer = transcriber.bundle.tokenizer.target
    assert tokenizer.decode(transcriber._encode_prompt("Ada < | ")) == " Ada < |"
    for token, piece in (("<|endoftext|>", "</s>"), ("<|0.00|>", "<|0.00|>"), ("<|de|>", "<|de|>")):
        with pytest.raises(dragoman.DragomanError, match=rf"prompt: {re.escape(piece)} is a special token"):
            transcriber.transcribe(make_noise(0.1), prompt=f"Ada {token}")
    window = make_noise(1.0)
    assert transcriber.transcribe(window, prompt="Ada").segments != transcriber.transcribe(window).segments


def test_prompt_of_an_earlier_bundle_raises(transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcriber, "tokens", replace(transcriber.tokens, previous=None))
    assert transcriber.transcribe(make_noise(1.0), prompt=" ").duration == 1.0
    with pytest.raises(dragoman.DragomanError, match="convert the model again"):
        transcriber.transcribe(make_noise(1.0), prompt="Ada")


@pytest.mark.usefixtures("needs_sound_libraries")
def test_server_refuses_folders_of_one_name(bundle: Path) -> None:
    with pytest.raises(dragoman.DragomanError, match="bundle: two transcribers are in folders of one name"):
        ModelSet.load([bundle, bundle], device="cpu", precision="float32")


@pytest.mark.usefixtures("needs_sound_libraries")
def test_server_answers_as_the_transcriber(bundle: Path, transcriber: Transcriber, tmp_path: Path) -> None:
    path = write_wave(tmp_path / "a.wav", make_noise(2.5))
    expected = transcriber.transcribe(path)
    models = ModelSet.load([bundle], device="cpu", precision="float32")
    with make_client(TranslationService(models, ServerLimits())) as client:
        answer = client.post(
            "/v1/audio/transcriptions",
            data={"model": "whisper-1", "response_format": "verbose_json"},
            files={"file": ("a.wav", path.read_bytes())},
        ).json()
        refused = client.post(
            "/v1/audio/transcriptions", data={"model": "whisper-1"}, files={"file": ("a.wav", b"RIFF")}
        ).json()
    assert (answer["text"], answer["duration"]) == (expected.text, 2.5)
    assert [segment["text"] for segment in answer["segments"]] == [segment.text for segment in expected.segments]
    assert refused["error"]["code"] == "invalid-format"


def test_transcription_needs_no_pytorch(bundle: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import numpy as np\n"
        "from dragoman.transcription.transcriber import Transcriber\n"
        "samples = 0.1 * np.random.default_rng(1).standard_normal(8000).astype(np.float32)\n"
        f"print(Transcriber.load({str(bundle)!r}).transcribe(samples, language='en').duration)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("0.5\n", 0), result.stderr

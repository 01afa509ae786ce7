"""`Transcriber`: recordings to text with times, in the spoken language or in English."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal, Self, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import Bundle, SpeechTokens, load_bundle
from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import BundleError, DataError
from dragoman.frontends.log_mel import LogMel, pad_samples
from dragoman.frontends.sound_file import MAX_MAGNITUDE, SAMPLE_RATE, iter_sound
from dragoman.inference.bundle_store import locate_bundle
from dragoman.inference.session import InferenceSession, open_session
from dragoman.runtime.device_options import DeviceOptions
from dragoman.runtime.shared_weights import find_copy
from dragoman.transcription.speech_search import DECODING_KEYS, MAX_PROMPT_TOKENS, SpeechSearch
from dragoman.transcription.transcript import Segment, Transcript

SpeechTask = Literal["transcribe", "translate"]
TIMESTAMP_SECONDS = 0.02
"""Seconds between two timestamps (Radford et al. 2022, section 2.3), and of a position of the encoder."""
MIN_NO_SPEECH_PROBABILITY, MAX_SILENT_LOG_PROB = 0.6, -1.0
"""A window is silent if both limits are passed, as in Whisper (Radford et al. 2022, section 4.5)."""
MIN_COVERED = 1 / 30
"""Least share of a full window before the next one, so that the number of windows is linear in the duration."""


class Transcriber:
    """Model of speech on a CPU."""

    def __init__(self, session: InferenceSession) -> None:
        bundle = session.bundle
        if bundle.metadata.speech is None or not _are_known(bundle.metadata.speech, len(bundle.tokenizer.target)):
            raise BundleError(
                f"{bundle.recipe.name}: states no tokens of languages, tasks and timestamps that fit; convert the model again",
                code="bundle-mismatch",
            )
        max_positions = bundle.recipe.model.max_positions
        if max_positions <= MAX_PROMPT_TOKENS:
            raise BundleError(
                f"{bundle.recipe.name}: model.max_positions = {max_positions}, but the prompt has up to {MAX_PROMPT_TOKENS} "
                "tokens; convert another model",
                code="bundle-mismatch",
            )
        self.session, self.bundle, self.tokens = session, bundle, bundle.metadata.speech
        self.precision = session.precision

    @classmethod
    def from_bundle(cls, bundle: Bundle, **options: Unpack[DeviceOptions]) -> Self:
        """Return the transcriber of an open bundle; see `dragoman.load` for the options and errors."""
        device_options: DeviceOptions = {"device": "cpu", **options}
        return cls(open_session([bundle], "transcription", release_mapped_weights=True, **device_options))

    @classmethod
    def load(cls, path: str | Path, **options: Unpack[DeviceOptions]) -> Self:
        """Open a bundle; see `dragoman.load` for the options and errors."""
        return cls.from_bundle(load_bundle(find_copy(path) or locate_bundle(path)), **options)

    @property
    def languages(self) -> tuple[str, ...]:
        """Language codes that the model transcribes; empty for a model of one language."""
        return tuple(self.tokens.languages)

    @property
    def window_samples(self) -> int:
        """Samples of a window: 30 s in the published models."""
        return round(self.bundle.recipe.model.max_source_positions * TIMESTAMP_SECONDS * SAMPLE_RATE)

    @cached_property
    def log_mel(self) -> LogMel:
        """Function from samples to features."""
        return LogMel(self.bundle.recipe.model.num_mel_bins, scaling="whisper")

    def compute_features(self, samples_N: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the features of at most one window of samples, filled up with silence. → (M, F)"""
        return self.log_mel(pad_samples(samples_N, self.window_samples)).T

    def transcribe(
        self,
        source: str | Path | IO[bytes] | NDArray[np.float32],
        *,
        name: str | None = None,
        language: str | None = None,
        task: SpeechTask = "transcribe",
        prompt: str = "",
        on_progress: Callable[[float], None] = lambda _: None,
        **decoding: Any,
    ) -> Transcript:
        """Return the transcript of a recording of any length.

        source: a file, or mono samples at 16 kHz
        name: name of the source in errors
        language: code of the spoken language; by default, the model detects it in the first window with sound
        task: `translate` writes English
        prompt: text that each window continues, such as a sentence with names as they are spelled
        on_progress: called with the number of seconds that are done
        decoding: keys of the recipe's [decoding] section to change, such as method="beam"

        Raises DataError for a damaged file, one without sound, and a language or a task that the model does not have.
        """
        done = 0.0
        for transcript in self.iter_transcripts(source, name=name, language=language, task=task, prompt=prompt, **decoding):
            on_progress(transcript.duration - done)
            done = transcript.duration
        return transcript

    def iter_transcripts(
        self,
        source: str | Path | IO[bytes] | NDArray[np.float32],
        *,
        name: str | None = None,
        language: str | None = None,
        task: SpeechTask = "transcribe",
        prompt: str = "",
        **decoding: Any,
    ) -> Generator[Transcript]:
        """Yield the transcript up to the end of each window; the last one is whole. See `transcribe`.

        The transcripts share the list of segments, which grows.
        """
        self._check_options(language, task)
        previous = self._encode_prompt(prompt)
        search = SpeechSearch(self.session.inference_model, self.tokens, self.resolve_decoding(decoding))
        if isinstance(source, np.ndarray):
            name = name or "samples"
            blocks = _split_samples(_check_samples(source, name), self.window_samples)
        else:
            blocks = iter_sound(Path(source) if isinstance(source, str) else source, name=name)
        samples = _SampleQueue(blocks)
        segments: list[Segment] = []
        while len(window_N := samples.peek(self.window_samples)):
            offset, advance = samples.position / SAMPLE_RATE, len(window_N)
            if window_N.any():  # digital silence holds no speech
                language, window_segments, advance = self._transcribe_window(search, window_N, offset, language, task, previous)
                segments += window_segments
            samples.skip(advance)
            yield Transcript(language, samples.position / SAMPLE_RATE, segments)
        if not samples.position:
            raise DataError(f"{name or source}: there is no sound in it; record it again", code="empty-data")

    def resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """Return the recipe's decoding settings with these changes. Raises RecipeError and DataError for a wrong one."""
        config = self.session.resolve_decoding(decoding)
        _check_decoding(decoding)
        return config

    def _check_options(self, language: str | None, task: SpeechTask) -> None:
        if task not in get_args(SpeechTask) or (task != "transcribe" and task not in self.tokens.tasks):
            tasks = ", ".join(self.tokens.tasks) or "transcribe"
            raise DataError(f"task = {task!r}: the model has {tasks}; choose one of them", code="invalid-argument")
        if language is not None and self.languages and language not in self.languages:
            raise DataError(
                f"language = {language!r}: is not one of the model's, {', '.join(self.languages)}; choose one of them",
                code="unsupported-language",
            )

    def _encode_prompt(self, prompt: str) -> list[int]:
        """Return the tokens of a text before a window.

        Raises DataError if the bundle knows no token that begins it, and for a text with special tokens.
        """
        if not prompt.strip():
            return []
        if self.tokens.previous is None:
            raise DataError(
                f"prompt: {self.bundle.recipe.name} states no token before a prompt; convert the model again, or leave it out",
                code="invalid-argument",
            )
        target = self.bundle.tokenizer.target
        tokens = target.encode(f" {prompt.strip()}")
        if special := [token for token in tokens if token <= END_ID or token >= self.tokens.first_special]:
            raise DataError(
                f"prompt: {target.ids_to_pieces(special)[0]} is a special token and no text; leave it out",
                code="invalid-argument",
            )
        return tokens

    def _transcribe_window(
        self,
        search: SpeechSearch,
        window_N: NDArray[np.float32],
        offset: float,
        language: str | None,
        task: SpeechTask,
        previous: Sequence[int],
    ) -> tuple[str | None, list[Segment], int]:
        """Return the language, the segments of a window, and the number of samples that they cover.

        offset: seconds before the window
        previous: tokens before its prompt
        """
        state = search.encode(self.compute_features(window_N)[None])
        [start] = search.predict_starts(state, 1)
        language = language or start.language
        prompt = search.build_prompt(language, task, has_timestamps=True, previous=previous)
        [output] = search.run(state, [prompt], has_timestamps=True)
        mean_log_prob = output.log_prob / max(len(output.token_log_probs), 1)
        if start.no_speech_probability > MIN_NO_SPEECH_PROBABILITY and mean_log_prob < MAX_SILENT_LOG_PROB:
            return language, [], len(window_N)
        seconds = len(window_N) / SAMPLE_RATE
        parts, covered = self._split_output(output, seconds)
        segments = [
            Segment(
                start=round(offset + begin, 3),
                end=round(offset + end, 3),
                text=self.bundle.tokenizer.target.decode(tokens),
                tokens=tuple(tokens),
                mean_log_prob=mean_log_prob,
                no_speech_probability=start.no_speech_probability,
            )
            for begin, end, tokens in parts
        ]
        advance = max(round(covered * SAMPLE_RATE), round(MIN_COVERED * self.window_samples))
        return language, segments, min(advance, len(window_N))

    def _split_output(self, output: Hypothesis, seconds: float) -> tuple[list[tuple[float, float, list[int]]], float]:
        """Return start, end and tokens of text between timestamps, and the seconds of the window that they cover.

        Two timestamps in a row end a segment and begin the next one. If that one has no end, the next window begins there, so
        that no word is cut.
        """
        parts: list[tuple[float, float, list[int]]] = []
        begin, covered, text = 0.0, 0.0, list[int]()
        for token in output.tokens:
            if token < self.tokens.first_timestamp:
                text += [token] if token < self.tokens.first_special else []
                continue
            time = min((token - self.tokens.first_timestamp) * TIMESTAMP_SECONDS, seconds)
            if text:
                parts.append((begin, time, text))
                covered, text = time, []
            begin = time
        is_open = bool(output.tokens) and output.tokens[-1] >= self.tokens.first_timestamp and self._is_pair(output.tokens)
        if text and not parts:
            parts.append((begin, seconds, text))
        elif parts and (text or is_open):
            return parts, covered
        return parts, seconds

    def _is_pair(self, tokens: Sequence[int]) -> bool:
        """Return whether an output ends with two timestamps: the second one begins a segment that the window cuts."""
        return len(tokens) > 1 and tokens[-2] >= self.tokens.first_timestamp


class _SampleQueue:
    """Samples of a recording, of which only a window is in memory. position: number of samples before the window"""

    def __init__(self, blocks: Iterator[NDArray[np.float32]]) -> None:
        self.blocks, self.position = blocks, 0
        self.buffer_N = np.empty(0, np.float32)

    def peek(self, count: int) -> NDArray[np.float32]:
        """Return the next samples, fewer at the end."""
        parts, num_samples = [self.buffer_N], len(self.buffer_N)
        while num_samples < count and (block_N := next(self.blocks, None)) is not None:
            parts.append(block_N)
            num_samples += len(block_N)
        self.buffer_N = np.concatenate(parts)
        return self.buffer_N[:count]

    def skip(self, count: int) -> None:
        self.buffer_N = self.buffer_N[count:]
        self.position += count


def _are_known(tokens: SpeechTokens, vocab_size: int) -> bool:
    """Return whether a vocabulary has all tokens, and a model of many languages a token for transcription."""
    ids = [*tokens.languages.values(), *tokens.tasks.values(), *tokens.suppressed, *tokens.suppressed_first]
    ids += [tokens.first_special, tokens.no_timestamps, tokens.first_timestamp, tokens.no_speech or 0, tokens.previous or 0]
    return all(0 <= token < vocab_size for token in ids) and ("transcribe" in tokens.tasks or not tokens.languages)


def _check_decoding(decoding: Mapping[str, Any]) -> None:
    """Raise DataError for a key that the search does not read."""
    for key, value in decoding.items():
        if key not in DECODING_KEYS or value == "sample":
            raise DataError(
                f"decoding.{key} = {value!r}: has no effect on transcription; drop it, or change one of "
                f"{', '.join(sorted(DECODING_KEYS))}, with method = 'greedy' or 'beam'",
                code="invalid-argument",
            )


def _split_samples(samples_N: NDArray[np.float32], length: int) -> Iterator[NDArray[np.float32]]:
    """Yield samples in blocks of this length, so that a window copies no more than its own samples."""
    return (samples_N[start : start + length] for start in range(0, len(samples_N), length))


def _check_samples(samples_N: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Return samples in float32. Raise DataError for another shape than (N,) and for numbers beyond those of sound files."""
    if samples_N.ndim != 1 or samples_N.dtype.kind != "f" or not (np.abs(samples_N) <= MAX_MAGNITUDE).all():
        raise DataError(
            f"{name}: has the shape {samples_N.shape} and the type {samples_N.dtype}; give finite mono samples (N,) as floats",
            code="invalid-argument",
        )
    return samples_N.astype(np.float32, copy=False)

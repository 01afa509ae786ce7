"""Transcript of a recording, and its forms: text, SubRip (SRT), WebVTT and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

TranscriptFormat = Literal["text", "srt", "vtt", "json"]
FORMATS: tuple[TranscriptFormat, ...] = get_args(TranscriptFormat)
SUFFIXES: dict[TranscriptFormat, str] = {"text": ".txt", "srt": ".srt", "vtt": ".vtt", "json": ".json"}


@dataclass(frozen=True)
class Segment:
    """Text between two timestamps.

    start, end: seconds from the beginning of the recording
    mean_log_prob: mean log-probability of the tokens of the segment's window
    no_speech_probability: probability that nobody speaks at the beginning of that window
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    mean_log_prob: float
    no_speech_probability: float


@dataclass(frozen=True)
class Transcript:
    """Text of a recording, with times.

    language: language code that was given or detected; None for a model of one language
    duration: seconds of the recording
    """

    language: str | None
    duration: float
    segments: Sequence[Segment]

    @property
    def text(self) -> str:
        """Return the text of all segments."""
        return "".join(segment.text for segment in self.segments).strip()

    def to_json(self) -> str:
        """Return one line of JSON: text, language, duration, and the segments without their tokens."""
        segments = [asdict(segment) for segment in self.segments]
        for segment in segments:
            segment["text"] = segment["text"].strip()
            del segment["tokens"]
        document = {"text": self.text, "language": self.language, "duration": self.duration, "segments": segments}
        return json.dumps(document, ensure_ascii=False)

    def format(self, output_format: TranscriptFormat) -> str:
        """Return the content of a file of this format, with a line break at its end unless it is empty."""
        match output_format:
            case "text":
                return "".join(f"{text}\n" for segment in self.segments if (text := segment.text.strip()))
            case "json":
                return self.to_json() + "\n"
            case "srt":
                return "\n".join(
                    f"{number}\n{_format_times(segment, ',')}\n{text}\n"
                    for number, (segment, text) in enumerate(self._iter_cues(), 1)
                )
            case "vtt":
                cues = [f"\n{_format_times(segment, '.')}\n{_escape_vtt(text)}\n" for segment, text in self._iter_cues()]
                return "".join(["WEBVTT\n", *cues])

    def _iter_cues(self) -> list[tuple[Segment, str]]:
        """Return the segments with a text, and their texts on one line each."""
        texts = [(segment, " ".join(segment.text.split())) for segment in self.segments]
        return [(segment, text.replace("-->", "->")) for segment, text in texts if text]


def _escape_vtt(text: str) -> str:
    """Return the text without the characters that begin tags and entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _format_times(segment: Segment, point: str) -> str:
    """Return the times of a cue, such as `00:00:01,000 --> 00:00:02,500`."""
    return " --> ".join(_format_time(seconds, point) for seconds in (segment.start, segment.end))


def _format_time(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"

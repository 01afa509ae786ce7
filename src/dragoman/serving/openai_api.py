"""API of OpenAI for speech: `/v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

import asyncio
import zlib
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import Field

from dragoman.serving.model_set import iter_language_names
from dragoman.serving.recordings import RecordingRequest
from dragoman.serving.request_fields import RequestFields
from dragoman.serving.service import TranslationService
from dragoman.serving.uploads import describe_upload, read_upload

if TYPE_CHECKING:
    from dragoman.transcription.transcriber import SpeechTask
    from dragoman.transcription.transcript import Segment, Transcript

FRAMES_PER_SECOND = 100
"""Frames of log-mel features a second, which the API counts the beginning of a segment in."""
MAX_PROMPT_CHARACTERS = 4000
"""Characters of a prompt, of which the model reads some 200 tokens."""

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]


class SpeechFields(RequestFields):
    """Fields of /v1/audio/translations besides the file.

    Attributes:
        model: name of the folder of a bundle; a server with one transcriber takes any name, such as `whisper-1`
        response_format: `json` for the text, `verbose_json` for segments with times, `text`, `srt` or `vtt`
        temperature: 0, because the search does not sample
        prompt: text that each window continues, such as names as they are spelled
    """

    model: str
    response_format: ResponseFormat = "json"
    temperature: Literal["0", "0.0"] = "0"
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)] = ""


class TranscriptionFields(SpeechFields):
    """Fields of /v1/audio/transcriptions besides the file.

    Attributes:
        language: code of the spoken language; without it, the language is detected
        timestamp_granularities: `segment`, because the times of words are not known
        stream: `false`
    """

    language: Annotated[str, Field(max_length=40)] | None = None
    timestamp_granularities: Annotated[Literal["segment"], Field(alias="timestamp_granularities[]")] = "segment"
    stream: Literal["false", "False"] = "false"


def build_openai_router(service: TranslationService) -> APIRouter:
    """Return the routes for speech."""
    router = APIRouter(prefix="/v1/audio", tags=["OpenAI"])

    @router.post("/transcriptions", openapi_extra=describe_upload(TranscriptionFields))
    async def transcribe_recording(request: Request) -> Response:
        """Write what is said in a recording, in the spoken language."""
        upload = await read_upload(request)
        fields, name = upload.check(TranscriptionFields)
        return await answer(
            fields, RecordingRequest(upload.content, name, "transcribe", fields.language or None, fields.prompt)
        )

    @router.post("/translations", openapi_extra=describe_upload(SpeechFields))
    async def translate_recording(request: Request) -> Response:
        """Write in English what is said in a recording."""
        upload = await read_upload(request)
        fields, name = upload.check(SpeechFields)
        return await answer(fields, RecordingRequest(upload.content, name, "translate", prompt=fields.prompt))

    async def answer(fields: SpeechFields, recording: RecordingRequest) -> Response:
        """Transcribe the recording, and return the answer in the format that the client names."""
        transcript = await service.transcribe(service.models.find_transcriber(fields.model), recording)
        return await asyncio.to_thread(write_answer, transcript, recording.task, fields.response_format)

    return router


def write_answer(transcript: Transcript, task: SpeechTask, response_format: ResponseFormat) -> Response:
    """Return a transcript in a format of the API."""
    if response_format != "json" and response_format != "verbose_json":
        return PlainTextResponse(transcript.format(response_format))
    content: dict[str, Any] = {"text": transcript.text, "usage": {"type": "duration", "seconds": ceil(transcript.duration)}}
    if response_format == "verbose_json":
        code = "en" if task == "translate" else transcript.language
        [(_, language)] = iter_language_names([code or ""])
        content |= {
            "task": task,
            "language": language.lower(),
            "duration": transcript.duration,
            "segments": [_describe_segment(number, segment) for number, segment in enumerate(transcript.segments)],
        }
    return JSONResponse(content)


def _describe_segment(number: int, segment: Segment) -> dict[str, Any]:
    """Return the fields of a segment. Its compression ratio is high for a text that repeats itself."""
    text = segment.text.encode()
    return {
        "id": number,
        "seek": round(segment.start * FRAMES_PER_SECOND),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": 0.0,
        "avg_logprob": segment.mean_log_prob,
        "compression_ratio": len(text) / len(zlib.compress(text)),
        "no_speech_prob": segment.no_speech_probability,
    }

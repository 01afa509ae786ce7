"""Our own API, version 1: segments with scores, statuses and checks, and sentences as they are finished."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field

from dragoman.inference.whole_texts import TextOptions, TranslatedSegment
from dragoman.serving.http_errors import HttpError, to_http_error
from dragoman.serving.libretranslate_api import MAX_ALTERNATIVES, check_number_of_texts
from dragoman.serving.request_fields import RequestFields, check_fields, describe_fields, read_fields
from dragoman.serving.service import ServedTranslation, TextRequest, TranslationService
from dragoman.serving.settings import ServerSettings

if TYPE_CHECKING:
    from dragoman.inference.translation_result import Translation

TRANSLATE_EXAMPLE = {"texts": ["Good morning. How are you?"], "source": "en", "target": "de", "alternatives": 1}
MAX_EXPLAINED_CHARACTERS = 1000
Language = Annotated[str, Field(min_length=1, max_length=40)]


class TranslationFields(RequestFields):
    """Fields of /v1/translate.

    Attributes:
        texts: texts to translate
        source: language of the texts; without it, the language of each text is detected
        target: language of the translations
        markup: `none` for plain text; `html` and `xml` keep tags
        split_sentences: translate each sentence by itself
        alternatives: other translations of each segment
        beam_size: hypotheses of beam search; by default those of the bundle
        alignment: also return, for each word of a translation, the word of its source with the most attention
    """

    texts: list[str]
    target: Language
    source: Language | None = None
    markup: Literal["none", "html", "xml"] = "none"
    split_sentences: bool = True
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0
    beam_size: Annotated[int, Field(ge=1, le=16)] | None = None
    alignment: bool = False


def build_own_router(service: TranslationService, settings: ServerSettings) -> APIRouter:
    """Return the routes of our own API."""
    router = APIRouter(prefix="/v1", tags=["dragoman"])

    async def read_request(request: Request) -> TextRequest:
        fields = check_fields(TranslationFields, await read_fields(request))
        check_number_of_texts(fields.texts, settings)
        return TextRequest(
            fields.texts,
            fields.source,
            fields.target,
            TextOptions(fields.markup, split_sentences=fields.split_sentences, attention=fields.alignment),
            _build_decoding(fields),
        )

    @router.post("/translate", openapi_extra=describe_fields(TranslationFields, TRANSLATE_EXAMPLE))
    async def translate(request: Request) -> JSONResponse:
        """Translate texts, with the score, the status and the checks of each segment."""
        results = await service.translate(await read_request(request))
        return JSONResponse({"translations": [describe_translation(result) for result in results]})

    @router.post("/translate/stream", openapi_extra=describe_fields(TranslationFields, TRANSLATE_EXAMPLE))
    async def stream(request: Request) -> StreamingResponse:
        """Translate texts, and send each sentence as a server-sent event as soon as it is finished.

        The events are `sentence`, `text` with the whole translation of one text, and `end` or `error`.
        """
        text_request = await read_request(request)
        return StreamingResponse(_stream(service, text_request), media_type="text/event-stream")

    @router.get("/explain")
    async def explain(text: str, source: Language, target: Language) -> Response:
        """Return a page that shows the attention and the search of a sentence, which one model translates."""
        if len(text) > MAX_EXPLAINED_CHARACTERS:
            raise HttpError(400, f"text: has more than {MAX_EXPLAINED_CHARACTERS} characters; give one sentence")
        page = await service.explain(text, source, target)
        return Response(
            page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": "sandbox allow-scripts"}
        )

    @router.get("/languages")
    async def languages() -> JSONResponse:
        """List the languages, each with the languages that it is translated to."""
        return JSONResponse({"languages": service.models.targets})

    return router


def _build_decoding(fields: TranslationFields) -> tuple[tuple[str, Any], ...]:
    decoding: dict[str, Any] = {}
    if fields.beam_size is not None:
        decoding |= {"method": "beam", "beam_size": fields.beam_size}
    if fields.alternatives:
        beam_size = fields.beam_size or max(4, fields.alternatives + 1)
        if beam_size <= fields.alternatives:
            raise HttpError(400, f"alternatives: a beam of {beam_size} gives {beam_size - 1} at most; raise beam_size")
        decoding |= {"method": "beam", "beam_size": beam_size, "nbest": fields.alternatives + 1}
    return tuple(sorted(decoding.items()))


def describe_translation(result: ServedTranslation) -> dict[str, Any]:
    """Return the fields of an answer for one text."""
    answer: dict[str, Any] = {
        "text": result.translation.text,
        "source": result.source,
        "status": result.translation.status,
        "segments": [describe_segment(segment) for segment in result.translation.segments],
    }
    if result.detected is not None:
        answer["confidence"] = result.detected.confidence
    if result.translation.alternatives:
        answer["alternatives"] = list(result.translation.alternatives)
    return answer


def describe_segment(segment: TranslatedSegment) -> dict[str, Any]:
    """Return the fields of a segment."""
    fields: dict[str, Any] = {
        "source": segment.source,
        "text": segment.text,
        "status": segment.status,
        "checks": list(segment.checks),
    }
    if segment.translation is not None:
        fields["score"] = segment.translation.score
        if segment.translation.alignment is not None:
            fields["alignment"] = [list(link) for link in segment.translation.alignment]
    if segment.alternatives:
        fields["alternatives"] = list(segment.alternatives)
    return fields


async def _stream(service: TranslationService, request: TextRequest) -> AsyncIterator[bytes]:
    """Yield an event for each sentence and for each text as it is finished, and one for the end."""
    events: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def translate(index: int, text: str) -> None:
        """Put the events of one text into the queue."""

        def on_line(line: str, translation: Translation) -> None:
            """Put the event of a sentence into the queue."""
            events.put_nowait(_write_event("sentence", {"index": index, "source": line, "text": translation.text}))

        (result,) = await service.translate(replace(request, texts=[text]), on_line)
        events.put_nowait(_write_event("text", {"index": index, **describe_translation(result)}))

    async def translate_all() -> None:
        """Translate all texts at the same time, and put None behind the last event."""
        try:
            async with asyncio.TaskGroup() as group:
                for index, text in enumerate(request.texts):
                    group.create_task(translate(index, text))
            events.put_nowait(_write_event("end", {"count": len(request.texts)}))
        except ExceptionGroup as errors:
            error = to_http_error(errors.exceptions[0])
            events.put_nowait(_write_event("error", {"code": error.code, "message": error.message}))
        finally:
            events.put_nowait(None)

    task = asyncio.create_task(translate_all())
    try:
        while (event := await events.get()) is not None:
            yield event
    finally:
        task.cancel()


def _write_event(name: str, fields: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()

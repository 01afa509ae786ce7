"""API of LibreTranslate, as Weblate, Mastodon, Nextcloud and OmegaT call it.

OmegaT's plug-in sends GET requests, which LibreTranslate itself refuses, and reads `translation` in some versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field, ValidationInfo, field_validator

from dragoman.documents.formats import SUFFIXES
from dragoman.documents.html_file import KEPT_TAGS
from dragoman.inference.text_options import TextOptions
from dragoman.serving.clients import admit_client, identify_client
from dragoman.serving.http_errors import HttpError
from dragoman.serving.model_set import iter_language_names
from dragoman.serving.request_fields import RequestFields, check_fields, describe_fields, read_fields
from dragoman.serving.service import ServedTranslation, TextRequest, TranslationService
from dragoman.serving.settings import ServerSettings

MAX_ALTERNATIVES = 8
TRANSLATE_EXAMPLE = {"q": "Good morning. How are you?", "source": "en", "target": "de", "format": "text", "alternatives": 0}
MISSING = "Invalid request: missing {name} parameter"


class LibreTranslateFields(RequestFields):
    """Fields of /translate."""

    q: str | Annotated[list[str], Field(fail_fast=True)]
    source: Annotated[str, Field(min_length=1, max_length=40)]
    target: Annotated[str, Field(min_length=1, max_length=40)]
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0
    api_key: str | None = None

    @field_validator("format", "alternatives", mode="before")
    @classmethod
    def _read_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Read null and an empty text as an absent field, and digits as a number, as LibreTranslate does."""
        if value is None or value == "":
            return cls.model_fields[str(info.field_name)].default
        return int(value[:9]) if isinstance(value, str) and value.isascii() and value.isdecimal() else value


class DetectFields(RequestFields):
    """Fields of /detect. The texts of a list have one language."""

    q: str | Annotated[list[str], Field(fail_fast=True)]
    api_key: str | None = None


class KeyFields(RequestFields):
    """Fields of a request without text."""

    api_key: str | None = None


def build_libretranslate_router(service: TranslationService, settings: ServerSettings) -> APIRouter:
    """Return the routes of LibreTranslate."""
    router = APIRouter(tags=["LibreTranslate"])

    @router.get(
        "/translate",
        operation_id="translate_query",
        openapi_extra=describe_fields(LibreTranslateFields, TRANSLATE_EXAMPLE, in_query=True),
    )
    @router.post("/translate", operation_id="translate", openapi_extra=describe_fields(LibreTranslateFields, TRANSLATE_EXAMPLE))
    async def translate(request: Request) -> JSONResponse:
        """Translate a text or a list of texts."""
        fields = check_fields(LibreTranslateFields, await read_fields(request), missing=MISSING)
        _check_key(request, settings, fields.api_key)
        texts = [fields.q] if isinstance(fields.q, str) else fields.q
        check_number_of_texts(texts, settings)
        if not texts:
            raise HttpError(400, MISSING.format(name="q"))
        beam = max(4, fields.alternatives + 1)
        decoding: tuple[tuple[str, Any], ...] = ()
        if fields.alternatives:
            decoding = (("beam_size", beam), ("method", "beam"), ("nbest", fields.alternatives + 1))
        results = await service.translate(
            TextRequest(
                texts,
                None if fields.source == "auto" else fields.source,
                fields.target,
                TextOptions("html", opaque_tags=KEPT_TAGS) if fields.format == "html" else TextOptions(),
                decoding,
            )
        )
        answer = _build_answer(results, is_list=not isinstance(fields.q, str), with_alternatives=fields.alternatives > 0)
        if request.method == "GET":
            answer["translation"] = answer["translatedText"]
        return JSONResponse(answer)

    @router.get("/languages")
    @router.post("/languages", operation_id="LibreTranslate_post_languages")
    async def languages(request: Request) -> JSONResponse:
        """List the languages, each with the languages that it is translated to."""
        _check_key(request, settings, check_fields(KeyFields, await read_fields(request)).api_key)
        targets = service.models.targets
        return JSONResponse(
            [{"code": code, "name": name, "targets": targets[code]} for code, name in iter_language_names(targets)]
        )

    @router.post("/detect", openapi_extra=describe_fields(DetectFields, {"q": "Good morning"}))
    async def detect(request: Request) -> JSONResponse:
        """Detect the language of a text, or of a list of texts together."""
        fields = check_fields(DetectFields, await read_fields(request), missing=MISSING)
        _check_key(request, settings, fields.api_key)
        [detected] = await service.detect([fields.q if isinstance(fields.q, str) else "\n".join(fields.q)])
        return JSONResponse([{"confidence": item.confidence, "language": item.language} for item in detected])

    router.include_router(_build_settings_router(service, settings))
    return router


def _check_key(request: Request, settings: ServerSettings, key: str | None) -> None:
    """Raise HttpError if neither a header nor the body has a valid key."""
    if not admit_body_key(request, settings, key):
        raise HttpError(
            403, "Invalid API key" if key else "Please contact the server operator to get an API key", "invalid-key"
        )


def _build_settings_router(service: TranslationService, settings: ServerSettings) -> APIRouter:
    """Return the routes that describe the server."""
    router = APIRouter()

    @router.get("/spec")
    async def spec(request: Request) -> JSONResponse:
        """Return the description of the API."""
        return JSONResponse(request.app.openapi())

    @router.get("/frontend/settings")
    async def frontend_settings() -> JSONResponse:
        """Return the settings that LibreTranslate's own page reads."""
        targets = sorted(set().union(*service.models.targets.values()))
        return JSONResponse(
            {
                "apiKeys": settings.api_keys is not None,
                "charLimit": settings.limits.max_body_bytes,
                "filesTranslation": True,
                "frontendTimeout": 500,
                "keyRequired": settings.api_keys is not None,
                "language": {
                    "source": {"code": "auto", "name": "Auto Detect"},
                    "target": {"code": targets[0] if targets else "", "name": ""},
                },
                "suggestions": False,
                "supportedFilesFormat": list(SUFFIXES),
            }
        )

    return router


def admit_body_key(request: Request, settings: ServerSettings, key: str | None) -> bool:
    """Return whether a request may be answered: it has a valid key, in a header or in its body, or the server has no keys."""
    if settings.api_keys is None or identify_client(request.scope).has_key:
        return True
    if not key or (name := settings.api_keys.identify(key)) is None:
        return False
    admit_client(request.scope, name)
    return True


def check_number_of_texts(texts: Sequence[object], settings: ServerSettings, limit: int | None = None) -> None:
    """Raise HttpError if a request has too many texts."""
    limit = limit or settings.limits.max_texts
    if len(texts) > limit:
        raise HttpError(400, f"the request has {len(texts)} texts; send at most {limit}", "too-many-texts")


def _build_answer(results: list[ServedTranslation], *, is_list: bool, with_alternatives: bool) -> dict[str, Any]:
    """Return the fields of an answer: lists for a list of texts, and otherwise single values."""
    answer: dict[str, Any] = {"translatedText": [result.translation.text for result in results]}
    if results and results[0].detected is not None:
        answer["detectedLanguage"] = [
            {"confidence": result.detected.confidence, "language": result.detected.language}
            for result in results
            if result.detected is not None
        ]
    if with_alternatives:
        answer["alternatives"] = [list(result.translation.alternatives) for result in results]
    return answer if is_list else {name: values[0] for name, values in answer.items()}

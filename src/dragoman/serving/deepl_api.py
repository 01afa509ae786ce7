"""Part of DeepL's API, version 2, that its client packages and Weblate call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field, field_validator

from dragoman.inference.whole_texts import TextOptions
from dragoman.serving.http_errors import HttpError
from dragoman.serving.libretranslate_api import check_number_of_texts
from dragoman.serving.model_set import iter_language_names
from dragoman.serving.request_fields import RequestFields, check_fields, describe_fields, read_fields
from dragoman.serving.service import TextRequest, TranslationService
from dragoman.serving.settings import DEEPL_MAX_TEXTS, ServerSettings

CHARACTER_LIMIT = 10**12
"""Limit that /v2/usage reports, because clients compare with it; nothing is counted against it."""
TRANSLATE_EXAMPLE = {"text": ["Good <b>morning</b>."], "source_lang": "EN", "target_lang": "DE", "tag_handling": "html"}
LIST_FIELDS = frozenset(("text", "ignore_tags", "splitting_tags", "non_splitting_tags", "outline_detection_tags"))


class DeeplFields(RequestFields):
    """Fields of /v2/translate. Fields that change the style of a translation have no effect."""

    text: str | list[str]
    target_lang: Annotated[str, Field(min_length=2, max_length=40)]
    source_lang: Annotated[str, Field(max_length=40)] | None = None
    tag_handling: Literal["xml", "html"] | None = None
    split_sentences: Literal["0", "1", "nonewlines"] | bool | None = None
    ignore_tags: Annotated[list[str], Field(default_factory=list)]
    formality: Literal["default", "prefer_more", "prefer_less"] | None = None
    glossary_id: str | None = None

    @field_validator("ignore_tags", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        """Read a list whose items may hold several names with commas between them."""
        names = value if isinstance(value, list) else [value]
        return [name.strip() for item in names for name in item.split(",")] if all(isinstance(x, str) for x in names) else value


class LanguagesFields(RequestFields):
    """Fields of /v2/languages."""

    type: Literal["source", "target"] = "source"


def build_deepl_router(service: TranslationService, settings: ServerSettings) -> APIRouter:
    """Return the routes of DeepL's API."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])
    num_characters = 0

    @router.post("/translate", openapi_extra=describe_fields(DeeplFields, TRANSLATE_EXAMPLE))
    async def translate(request: Request) -> JSONResponse:
        """Translate texts."""
        nonlocal num_characters
        fields = check_fields(
            DeeplFields, await read_fields(request, list_fields=LIST_FIELDS), missing="Parameter '{name}' not specified."
        )
        texts = [fields.text] if isinstance(fields.text, str) else fields.text
        check_number_of_texts(texts, settings, DEEPL_MAX_TEXTS)
        if fields.glossary_id:
            raise HttpError(404, "Glossary not found", "unknown-glossary")
        results = await service.translate(
            TextRequest(
                texts,
                fields.source_lang.lower() if fields.source_lang else None,
                fields.target_lang.lower(),
                _read_options(fields),
            )
        )
        num_characters += sum(map(len, texts))
        return JSONResponse(
            {
                "translations": [
                    {
                        "detected_source_language": result.source.upper()[:2],
                        "text": result.translation.text,
                        "billed_characters": len(text),
                    }
                    for text, result in zip(texts, results, strict=True)
                ]
            }
        )

    @router.get("/languages", openapi_extra=describe_fields(LanguagesFields, {"type": "target"}, in_query=True))
    async def languages(request: Request) -> JSONResponse:
        """List the source languages or the target languages; DeepL's package sends the field `type` in a body."""
        type = check_fields(LanguagesFields, await read_fields(request)).type
        targets = service.models.targets
        codes = (
            {code for code in targets if targets[code]} if type == "source" else {t for row in targets.values() for t in row}
        )
        names = iter_language_names(sorted(codes))
        extra: dict[str, Any] = {"supports_formality": False} if type == "target" else {}
        return JSONResponse([{"language": code.upper(), "name": name, **extra} for code, name in names])

    @router.get("/usage")
    async def usage() -> JSONResponse:
        """Return the characters that were translated since the start."""
        return JSONResponse({"character_count": num_characters, "character_limit": CHARACTER_LIMIT})

    @router.get("/glossary-language-pairs")
    async def glossary_pairs() -> JSONResponse:
        """List the pairs of languages that glossaries may have."""
        return JSONResponse({"supported_languages": []})

    @router.get("/glossaries")
    async def glossaries() -> JSONResponse:
        """List the glossaries."""
        return JSONResponse({"glossaries": []})

    return router


def _read_options(fields: DeeplFields) -> TextOptions:
    """Return how the texts are read; by default, line breaks end sentences in plain text only, as for DeepL."""
    splits = fields.split_sentences
    return TextOptions(
        fields.tag_handling or "none",
        split_sentences=splits not in ("0", False),
        keep_line_breaks=splits != "nonewlines",
        opaque_tags=frozenset(name for name in fields.ignore_tags if name),
    )

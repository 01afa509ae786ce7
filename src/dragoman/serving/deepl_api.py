"""Part of DeepL's API, version 2, that its client packages and Weblate call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field, field_validator

from dragoman.documents.html_file import KEPT_TAGS
from dragoman.inference.text_options import TextOptions
from dragoman.languages import get_language
from dragoman.serving.clients import identify_client
from dragoman.serving.glossary_store import GlossaryStore
from dragoman.serving.http_errors import HttpError
from dragoman.serving.libretranslate_api import check_number_of_texts
from dragoman.serving.model_set import iter_language_names
from dragoman.serving.request_fields import RequestFields, check_fields, describe_fields, read_fields
from dragoman.serving.service import TextRequest, TranslationService
from dragoman.serving.settings import DEEPL_MAX_TEXTS, ServerSettings
from dragoman.text.glossary import Glossary

CHARACTER_LIMIT = 10**12
"""Limit that /v2/usage reports, because clients compare with it; nothing is counted against it."""
TRANSLATE_EXAMPLE = {"text": ["Good <b>morning</b>."], "source_lang": "EN", "target_lang": "DE", "tag_handling": "html"}
Formality = Literal["default", "prefer_more", "prefer_less"]
"""Values that ask for a formality only where there is one."""
LIST_FIELDS = frozenset(("text", "ignore_tags", "splitting_tags", "non_splitting_tags", "outline_detection_tags"))


class DeeplFields(RequestFields):
    """Fields of /v2/translate. Fields that change the style of a translation have no effect."""

    text: str | Annotated[list[str], Field(fail_fast=True)]
    target_lang: Annotated[str, Field(min_length=2, max_length=40)]
    source_lang: Annotated[str, Field(max_length=40)] | None = None
    tag_handling: Literal["xml", "html"] | None = None
    split_sentences: Literal["0", "1", "nonewlines"] | bool | None = None
    ignore_tags: Annotated[list[str], Field(default_factory=list, fail_fast=True)]
    splitting_tags: Annotated[list[str], Field(default_factory=list, fail_fast=True)]
    non_splitting_tags: Annotated[list[str], Field(default_factory=list, fail_fast=True)]
    outline_detection: Literal["0", "1"] | bool | None = None
    formality: Formality | None = None
    glossary_id: str | None = None
    glossary_ids: Annotated[list[str], Field(fail_fast=True)] | None = None

    @field_validator("ignore_tags", "splitting_tags", "non_splitting_tags", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        """Read a list whose items may hold several names with commas between them."""
        names = value if isinstance(value, list) else [value]
        return [name.strip() for item in names for name in item.split(",")] if all(isinstance(x, str) for x in names) else value


class LanguagesFields(RequestFields):
    """Fields of /v2/languages."""

    type: Literal["source", "target"] = "source"


def build_deepl_router(service: TranslationService, settings: ServerSettings, glossaries: GlossaryStore) -> APIRouter:
    """Return the routes of DeepL's API."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])

    @router.post("/translate", openapi_extra=describe_fields(DeeplFields, TRANSLATE_EXAMPLE))
    async def translate(request: Request) -> JSONResponse:
        """Translate texts."""
        fields = check_fields(
            DeeplFields, await read_fields(request, list_fields=LIST_FIELDS), missing="Parameter '{name}' not specified."
        )
        texts = [fields.text] if isinstance(fields.text, str) else fields.text
        check_number_of_texts(texts, settings, DEEPL_MAX_TEXTS)
        owner = identify_client(request.scope).owner
        glossary = await asyncio.to_thread(_find_glossary, fields, glossaries, owner)
        options = replace(_read_options(fields), glossary=glossary, strict_terms=True)
        results = await service.translate(
            TextRequest(
                texts,
                fields.source_lang.lower() if fields.source_lang else None,
                fields.target_lang.lower(),
                options,
            )
        )
        service.usage.add(sum(map(len, texts)), owner)
        return JSONResponse(
            {
                "translations": [
                    {
                        "detected_source_language": get_language(result.source).upper(),
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
    async def usage(request: Request) -> JSONResponse:
        """Return the characters that all processes of the server have translated for the key since its start."""
        count = service.usage.count(identify_client(request.scope).owner)
        return JSONResponse({"character_count": count, "character_limit": CHARACTER_LIMIT})

    return router


def _find_glossary(fields: DeeplFields, glossaries: GlossaryStore, owner: str) -> Glossary | None:
    """Return the glossary of a request, or None if it names none. Raises HttpError for an unknown one, and for several."""
    ids = [fields.glossary_id] if fields.glossary_id else fields.glossary_ids or []
    if not ids:
        return None
    if len(ids) > 1:
        raise HttpError(400, "glossary_ids: the server uses one glossary for a request; give one")
    if not fields.source_lang:
        raise HttpError(400, "source_lang: a request with a glossary has to name the language of its texts")
    return glossaries.get_index(ids[0], owner, (fields.source_lang, fields.target_lang))


def _read_options(fields: DeeplFields) -> TextOptions:
    """Return how the texts are read; by default, line breaks end sentences in plain text only, as for DeepL.

    Raises HttpError for fields about tags in a request that handles none.
    """
    splits = fields.split_sentences
    names = {
        "splitting_tags": fields.splitting_tags,
        "non_splitting_tags": fields.non_splitting_tags,
        "outline_detection": fields.outline_detection,
    }
    stated = [name for name, value in names.items() if value not in (None, [], [""])]
    if stated and fields.tag_handling != "xml":
        raise HttpError(400, f"{stated[0]}: works with tag_handling 'xml' only; send that, or leave the field out")
    kept = KEPT_TAGS if fields.tag_handling == "html" else frozenset()
    return TextOptions(
        fields.tag_handling or "none",
        split_sentences=splits not in ("0", False),
        keep_line_breaks=splits != "nonewlines" and fields.tag_handling is None,
        opaque_tags=frozenset(name for name in fields.ignore_tags if name) | kept,
        splitting_tags=frozenset(name for name in fields.splitting_tags if name),
        non_splitting_tags=frozenset(name for name in fields.non_splitting_tags if name),
        detects_outline=fields.tag_handling == "xml" and fields.outline_detection not in ("0", False),
    )

"""Glossaries of DeepL's API: in version 2 with one pair of languages, in version 3 with a dictionary for each pair.

A dictionary is a stored glossary, and those of one glossary of version 3 have the same group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from dragoman.formats.glossary_file import format_tsv_entries, parse_table
from dragoman.languages import get_language
from dragoman.serving.clients import Requester, identify_client
from dragoman.serving.glossary_store import GlossaryStore, Pair, StoredGlossary, find_pair
from dragoman.serving.http_errors import HttpError
from dragoman.serving.request_fields import RequestFields, check_fields, describe_fields, read_fields
from dragoman.serving.service import TranslationService
from dragoman.text.glossary import GlossaryEntry

DICTIONARY_EXAMPLE = {"source_lang": "en", "target_lang": "de", "entries": "apple\tApfel", "entries_format": "tsv"}
GLOSSARY_EXAMPLE = {"name": "fruit", **DICTIONARY_EXAMPLE}
MULTILINGUAL_EXAMPLE = {"name": "fruit", "dictionaries": [DICTIONARY_EXAMPLE]}
MISSING = "Parameter '{name}' not specified."


class DictionaryFields(RequestFields):
    """Fields of a dictionary."""

    source_lang: Annotated[str, Field(min_length=2, max_length=40)]
    target_lang: Annotated[str, Field(min_length=2, max_length=40)]
    entries: str
    entries_format: Literal["tsv", "csv"] = "tsv"

    @property
    def pair(self) -> tuple[str, str]:
        """Return the codes of the languages."""
        return get_language(self.source_lang), get_language(self.target_lang)

    def read_entries(self) -> list[GlossaryEntry]:
        """Return the terms. Raises DataError for a wrong one."""
        lines = [line.removesuffix("\r") for line in self.entries.split("\n")]
        return list(parse_table(lines, "," if self.entries_format == "csv" else "\t", "entries", *self.pair))


class GlossaryFields(DictionaryFields):
    """Fields of a new glossary."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]


class MultilingualFields(RequestFields):
    """Fields of a glossary with several dictionaries, all of them optional in a change."""

    name: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    dictionaries: Annotated[list[DictionaryFields], Field(default_factory=list, max_length=100, fail_fast=True)]


@dataclass(frozen=True)
class _DictionaryWriter:
    """Writer of dictionaries, one after the other, because each replaces what it has read."""

    service: TranslationService
    glossaries: GlossaryStore
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(
        self, client: Requester, name: str, dictionaries: Sequence[DictionaryFields], group: str = "", *, merge: bool = False
    ) -> list[StoredGlossary]:
        """Store dictionaries in the place of those of the same languages in a group. merge: with the terms of those"""
        for fields in dictionaries:
            source, target = fields.pair
            if len(self.service.models.find_route(source, target)) != 1:
                raise HttpError(400, f"no model translates {source} to {target} in one step, so it has no glossaries")
        async with self.lock:  # in a thread, because a long glossary would hold up the other requests
            return [await asyncio.to_thread(self._write, client, name, fields, group, merge) for fields in dictionaries]

    def _write(self, client: Requester, name: str, fields: DictionaryFields, group: str, merge: bool) -> StoredGlossary:
        entries = fields.read_entries()
        members = [stored for stored in self.glossaries.list_all(client.owner) if group and group in (stored.group, stored.id)]
        former = find_pair(members, fields.pair)
        if former and merge:
            sources = {entry.source for entry in entries}
            entries = [*(entry for entry in former.entries if entry.source not in sources), *entries]
        stored = self.glossaries.add(name, *fields.pair, entries, client, group)
        if former:
            self.glossaries.delete(former.id, client.owner)
        return stored


def build_glossary_router(service: TranslationService, glossaries: GlossaryStore) -> APIRouter:
    """Return the routes of glossaries, and of those with several pairs of languages, which version 3 of the API has."""
    router = APIRouter(tags=["DeepL"])
    writer = _DictionaryWriter(service, glossaries)

    @router.get("/v2/glossary-language-pairs")
    async def glossary_pairs() -> JSONResponse:
        """List the pairs of languages that glossaries may have: those that one model translates."""
        pairs = [{"source_lang": source, "target_lang": target} for source, target in sorted(service.models.steps)]
        return JSONResponse({"supported_languages": pairs})

    @router.post("/v2/glossaries", openapi_extra=describe_fields(GlossaryFields, GLOSSARY_EXAMPLE), status_code=201)
    async def create_glossary(request: Request) -> JSONResponse:
        """Store a glossary."""
        fields = check_fields(GlossaryFields, await read_fields(request), missing=MISSING)
        (stored,) = await writer.write(identify_client(request.scope), fields.name, [fields])
        return JSONResponse(_describe_glossary(stored), 201)

    @router.get("/v2/glossaries")
    async def list_glossaries(request: Request) -> JSONResponse:
        """List the glossaries."""
        stored = [item for item in glossaries.list_all(identify_client(request.scope).owner) if not item.group]
        return JSONResponse({"glossaries": list(map(_describe_glossary, stored))})

    @router.get("/v2/glossaries/{glossary_id}")
    async def get_glossary(request: Request, glossary_id: str) -> JSONResponse:
        """Return a glossary without its terms."""
        return JSONResponse(_describe_glossary(glossaries.get(glossary_id, identify_client(request.scope).owner)))

    @router.get("/v2/glossaries/{glossary_id}/entries")
    async def get_entries(request: Request, glossary_id: str) -> Response:
        """Return the terms of a glossary as tab-separated values."""
        stored = glossaries.get(glossary_id, identify_client(request.scope).owner)
        return Response(format_tsv_entries(stored.entries), media_type="text/tab-separated-values")

    @router.delete("/v2/glossaries/{glossary_id}", status_code=204)
    async def delete_glossary(request: Request, glossary_id: str) -> Response:
        """Delete a glossary."""
        glossaries.delete(glossary_id, identify_client(request.scope).owner)
        return Response(status_code=204)

    router.include_router(_build_multilingual_router(glossaries, writer))
    router.include_router(_build_dictionary_router(glossaries, writer))
    return router


def _build_multilingual_router(glossaries: GlossaryStore, writer: _DictionaryWriter) -> APIRouter:
    """Return the routes of glossaries with several pairs of languages."""
    router = APIRouter(prefix="/v3/glossaries")

    @router.post("", openapi_extra=describe_fields(MultilingualFields, MULTILINGUAL_EXAMPLE), status_code=201)
    async def create_multilingual_glossary(request: Request) -> JSONResponse:
        """Store a glossary with a dictionary for each pair of languages."""
        fields = check_fields(MultilingualFields, await read_fields(request), missing=MISSING)
        if not fields.name or not fields.dictionaries:
            raise HttpError(400, MISSING.format(name="dictionaries" if fields.name else "name"))
        client, group = identify_client(request.scope), str(uuid4())
        return JSONResponse(_describe_group(await writer.write(client, fields.name, fields.dictionaries, group)), 201)

    @router.get("")
    async def list_multilingual_glossaries(request: Request) -> JSONResponse:
        """List the glossaries."""
        groups: dict[str, list[StoredGlossary]] = {}
        for stored in glossaries.list_all(identify_client(request.scope).owner):
            groups.setdefault(stored.group or stored.id, []).append(stored)
        return JSONResponse({"glossaries": list(map(_describe_group, groups.values()))})

    @router.get("/{group}")
    async def get_multilingual_glossary(request: Request, group: str) -> JSONResponse:
        """Return a glossary without its terms."""
        return JSONResponse(_describe_group(_get_group(glossaries, request, group)))

    @router.patch("/{group}", openapi_extra=describe_fields(MultilingualFields, MULTILINGUAL_EXAMPLE))
    async def change_multilingual_glossary(request: Request, group: str) -> JSONResponse:
        """Rename a glossary, and add terms to its dictionaries."""
        fields = check_fields(MultilingualFields, await read_fields(request), missing=MISSING)
        present = _get_group(glossaries, request, group, to_change=True)
        name = fields.name or present[0].name
        if fields.name:
            for stored in present:
                glossaries.rename(stored, name)
        await writer.write(identify_client(request.scope), name, fields.dictionaries, group, merge=True)
        return JSONResponse(_describe_group(_get_group(glossaries, request, group)))

    @router.delete("/{group}", status_code=204)
    async def delete_multilingual_glossary(request: Request, group: str) -> Response:
        """Delete a glossary."""
        return _delete_dictionaries(glossaries, request, group, ("", ""))

    return router


def _build_dictionary_router(glossaries: GlossaryStore, writer: _DictionaryWriter) -> APIRouter:
    """Return the routes of the dictionaries of a glossary with several pairs of languages."""
    router = APIRouter(prefix="/v3/glossaries/{group}")

    @router.get("/entries")
    async def get_multilingual_entries(request: Request, group: str, source_lang: str = "", target_lang: str = "") -> Response:
        """Return the terms of a dictionary, or of all."""
        stored = [item for item in _get_group(glossaries, request, group) if item.has_pair((source_lang, target_lang))]
        return JSONResponse({"dictionaries": list(map(_describe_dictionary, stored))})

    @router.put("/dictionaries", openapi_extra=describe_fields(DictionaryFields, DICTIONARY_EXAMPLE))
    async def replace_dictionary(request: Request, group: str) -> JSONResponse:
        """Replace a dictionary of a glossary."""
        fields = check_fields(DictionaryFields, await read_fields(request), missing=MISSING)
        name = _get_group(glossaries, request, group, to_change=True)[0].name
        (stored,) = await writer.write(identify_client(request.scope), name, [fields], group)
        return JSONResponse(_describe_pair(stored))

    @router.delete("/dictionaries", status_code=204)
    async def delete_dictionary(request: Request, group: str, source_lang: str, target_lang: str) -> Response:
        """Delete the dictionary of a pair of languages."""
        return _delete_dictionaries(glossaries, request, group, (source_lang, target_lang))

    return router


def _get_group(glossaries: GlossaryStore, request: Request, group: str, *, to_change: bool = False) -> list[StoredGlossary]:
    return glossaries.get_group(group, identify_client(request.scope).owner, to_change=to_change)


def _delete_dictionaries(glossaries: GlossaryStore, request: Request, group: str, pair: Pair) -> Response:
    chosen = [item for item in _get_group(glossaries, request, group, to_change=True) if item.has_pair(pair)]
    if not chosen:
        raise HttpError(404, "Glossary not found: it has no dictionary of these languages", "unknown-glossary")
    for stored in chosen:
        glossaries.delete(stored.id, identify_client(request.scope).owner)
    return Response(status_code=204)


def _describe_glossary(stored: StoredGlossary) -> dict[str, Any]:
    return {
        "glossary_id": stored.id,
        "name": stored.name,
        "ready": True,
        "creation_time": stored.creation_time,
        **_describe_pair(stored),
    }


def _describe_pair(stored: StoredGlossary) -> dict[str, Any]:
    return {
        "source_lang": stored.source_language,
        "target_lang": stored.target_language,
        "entry_count": len(stored.entries),
    }


def _describe_group(stored: Sequence[StoredGlossary]) -> dict[str, Any]:
    first = min(stored, key=lambda item: item.creation_time)
    return {
        "glossary_id": first.group or first.id,
        "name": first.name,
        "creation_time": first.creation_time,
        "dictionaries": list(map(_describe_pair, stored)),
    }


def _describe_dictionary(stored: StoredGlossary) -> dict[str, Any]:
    return {**_describe_pair(stored), "entries": format_tsv_entries(stored.entries), "entries_format": "tsv"}

"""Our own API, version 1: segments with scores, statuses and checks, sentences as they are finished, and parses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field

from dragoman.bundle import get_license
from dragoman.client import ClientBracket, ClientHypothesis, ClientParse, ClientSegment, ClientTerm, ClientTranslation
from dragoman.inference.text_options import TextOptions
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.whole_texts import TranslatedSegment
from dragoman.serving.clients import identify_client
from dragoman.serving.glossary_store import GlossaryStore, check_number_of_entries
from dragoman.serving.http_errors import HttpError, to_http_error
from dragoman.serving.libretranslate_api import MAX_ALTERNATIVES, check_number_of_texts
from dragoman.serving.model_set import ServedModel
from dragoman.serving.request_fields import OwnFields, check_fields, describe_fields, read_fields
from dragoman.serving.service import ParseRequest, ServedTranslation, TextRequest, TranslationService, is_long
from dragoman.serving.settings import ServerSettings
from dragoman.text.glossary import Glossary, GlossaryEntry

if TYPE_CHECKING:
    from dragoman.inference.translation_result import Translation
    from dragoman.parsing.parse_result import Parse

TRANSLATE_EXAMPLES = {
    "alternatives": {"texts": ["Good morning. How are you?"], "source": "en", "target": "de", "alternatives": 1},
    "attention": {"texts": ["Two dogs run."], "source": "en", "target": "de", "alignment": True, "attention": True},
    "constraints": {
        "texts": ["Two dogs run."],
        "source": "en",
        "target": "de",
        "constraints": [{"prefix": "Zwei", "include": ["Hunde"], "exclude": ["springen"]}],
    },
    "glossary": {
        "texts": ["Two dogs run."],
        "source": "en",
        "target": "de",
        "glossary": [{"source": "dog", "target": ["Hund", "Hunde"]}, {"source": "Linux", "do_not_translate": True}],
    },
}
PARSE_EXAMPLES = {
    "text": {"sentences": ["The cat isn't here."], "tokenize": "ptb", "alternatives": 1},
    "words": {"sentences": [["The", "cat", "sat"]], "tags": [["DT", "NN", "VBD"]]},
}
MAX_EXPLAINED_CHARACTERS = 1000
MAX_WEIGHED_CHARACTERS = 20_000
"""Characters of a request with attention weights, whose answer is as large as the lengths multiplied; a sentence counts once
for each hypothesis."""
MAX_PHRASES = 32
"""Phrases that a translation contains, and phrases that it does not contain."""
WEIGHT_DIGITS = 6
"""Digits of an attention weight after the point."""
Phrase = Annotated[str, Field(min_length=1, max_length=1000)]
Words = Annotated[list[str], Field(fail_fast=True)]
Group = Annotated[list[Phrase], Field(min_length=1, max_length=MAX_PHRASES)]
Language = Annotated[str, Field(min_length=1, max_length=40)]

ResultT = TypeVar("ResultT")

logger = logging.getLogger("dragoman.serving")


class ConstraintFields(OwnFields):
    """Constraints on a translation.

    Attributes:
        prefix: text that the translation starts with
        include: phrases that the translation contains; beam search only
        exclude: phrases that the translation does not contain
        include_any: groups of phrases, of which the translation contains one each, such as one form of a word; beam search only
    """

    prefix: Annotated[str, Field(max_length=1000)] = ""
    include: list[Phrase] = Field(default_factory=list, max_length=MAX_PHRASES)
    exclude: list[Phrase] = Field(default_factory=list, max_length=MAX_PHRASES)
    include_any: list[Group] = Field(default_factory=list, max_length=MAX_PHRASES)

    def to_constraints(self) -> TranslationConstraints | None:
        """Return the constraints, or None if there are none."""
        groups = tuple(map(tuple, self.include_any))
        constraints = TranslationConstraints(self.prefix, tuple(self.include), tuple(self.exclude), groups)
        return None if constraints == TranslationConstraints() else constraints


class TermFields(OwnFields):
    """Term of a glossary; see `GlossaryEntry`. target: the translation, or a list of the forms that it may have"""

    source: str
    target: str | Annotated[list[str], Field(fail_fast=True)] = Field(default_factory=list)
    case_sensitive: bool = False
    do_not_translate: bool = False

    def to_entry(self) -> GlossaryEntry:
        """Return the entry. Raises DataError for a term that is empty or too long."""
        targets = (self.target,) if isinstance(self.target, str) else tuple(self.target)
        return GlossaryEntry(self.source, targets, self.case_sensitive, self.do_not_translate)


class TranslationFields(OwnFields):
    """Fields of /v1/translate.

    Attributes:
        texts: texts to translate
        source: language of the texts; without it, the language of each text is detected
        target: language of the translations
        markup: `none` for plain text; `html` and `xml` keep tags
        split_sentences: translate each sentence by itself
        alternatives: other translations of each segment
        beam_size: hypotheses of beam search, 1 for greedy search; by default the search of the bundle
        alignment: also return, for each word of a translation, the word of its source with the most attention
        attention: also return the tokens and the attention weights: one row for each token of a translation. The texts of such
            a request have 20,000 characters at most, counted once for each hypothesis.
        constraints: constraints on the translation of each text, or null for a text without. A text with constraints is one
            sentence.
        glossary: terms to use, or the id of a glossary that the server stores. Each segment of the answer has the use of its
            terms.
        strict_terms: require the terms also where the model finds them unlikely
    """

    texts: Annotated[list[str], Field(fail_fast=True)]
    target: Language
    source: Language | None = None
    markup: Literal["none", "html", "xml"] = "none"
    split_sentences: bool = True
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0
    beam_size: Annotated[int, Field(ge=1, le=16)] | None = None
    alignment: bool = False
    attention: bool = False
    constraints: Annotated[list[ConstraintFields | None], Field(fail_fast=True)] = Field(default_factory=list)
    glossary: str | Annotated[list[TermFields], Field(fail_fast=True)] | None = None
    strict_terms: bool = False


class ParseFields(OwnFields):
    """Fields of /v1/parse.

    Attributes:
        sentences: sentences to parse, as texts or as lists of words
        tokenize: rule that splits a text into words: `none` at white space, `ptb` as the Penn treebank does, `ontonotes` also
            at hyphens
        tags: POS tags of each sentence, or null to predict them
        alternatives: other trees of each sentence
        beam_size: hypotheses of beam search; by default those of the bundle
        constrained: allow only tokens that a tree over the words can continue with; otherwise the output is repaired
    """

    sentences: Annotated[list[str | Words], Field(fail_fast=True)]
    tokenize: Literal["none", "ptb", "ontonotes"] = "none"
    tags: Annotated[list[Words | None], Field(fail_fast=True)] = Field(default_factory=list)
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0
    beam_size: Annotated[int, Field(ge=1, le=16)] | None = None
    constrained: bool = True


@dataclass(frozen=True)
class Details:
    """Details that an answer contains, besides texts, scores and checks."""

    alignment: bool
    attention: bool


def build_own_router(service: TranslationService, settings: ServerSettings, glossaries: GlossaryStore) -> APIRouter:
    """Return the routes of our own API."""
    router = APIRouter(prefix="/v1", tags=["dragoman"])

    @router.post("/translate", openapi_extra=describe_fields(TranslationFields, TRANSLATE_EXAMPLES))
    async def translate(request: Request) -> Response:
        """Translate texts, with the score, the status and the checks of each segment."""
        text_request, details = await _read_request(request, settings, glossaries)
        results = await service.translate(text_request)
        describe = partial(describe_translation, details=details)
        return await _answer("translations", describe, results, in_thread=details.attention or is_long(text_request.texts))

    @router.post("/translate/stream", openapi_extra=describe_fields(TranslationFields, TRANSLATE_EXAMPLES))
    async def stream(request: Request) -> StreamingResponse:
        """Translate texts, and send each sentence as a server-sent event as soon as it is finished.

        The events are `sentence`, `text` with the whole translation of one text, and `end` or `error`.
        """
        text_request, details = await _read_request(request, settings, glossaries)
        return StreamingResponse(_stream(service, text_request, details), media_type="text/event-stream")

    @router.post("/parse", openapi_extra=describe_fields(ParseFields, PARSE_EXAMPLES))
    async def parse(request: Request) -> Response:
        """Parse sentences: trees in the format of treebank files, with tags, brackets, scores and statuses."""
        fields = check_fields(ParseFields, await read_fields(request))
        check_number_of_texts(fields.sentences, settings)
        _check_one_for_each("tags", fields.tags, fields.sentences, "sentences")
        decoding = _build_decoding(fields.beam_size, fields.alternatives)
        parses = await service.parse(
            ParseRequest(
                fields.sentences,
                fields.tags,
                None if fields.tokenize == "none" else fields.tokenize,
                fields.constrained,
                tuple(sorted(decoding.items())),
            )
        )
        return await _answer("parses", describe_parse, parses, in_thread=is_long(fields.sentences))

    return router


def build_model_router(service: TranslationService) -> APIRouter:
    """Return the routes that show the models, their languages and the search of one of them."""
    router = APIRouter(prefix="/v1", tags=["dragoman"])

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

    @router.get("/models")
    async def models() -> JSONResponse:
        """List the models of translation with their languages and what their cards say.

        `data` names the models of speech, as in OpenAI's API.
        """
        return JSONResponse(
            {
                "models": list(map(describe_model, service.models.models)),
                "object": "list",
                "data": [{"id": name, "object": "model"} for name in service.models.transcribers],
            }
        )

    return router


async def _answer(name: str, describe: Callable[[ResultT], object], results: Sequence[ResultT], *, in_thread: bool) -> Response:
    """Return an answer with the fields of each result. in_thread: it is long"""
    if not in_thread:
        return JSONResponse({name: [list_answer_fields(describe(result)) for result in results]})
    answers = await asyncio.to_thread(lambda: [_write_long(describe, result) for result in results])
    return Response(f'{{"{name}":[{",".join(answers)}]}}', media_type="application/json")


def _write_long(describe: Callable[[ResultT], object], result: ResultT) -> str:
    """Return a result as JSON. It is written in pieces, so that other threads go on meanwhile."""
    return "".join(json.JSONEncoder(ensure_ascii=False).iterencode(list_answer_fields(describe(result))))


async def _read_request(request: Request, settings: ServerSettings, glossaries: GlossaryStore) -> tuple[TextRequest, Details]:
    """Return a request for translations, and the details of its answer. Raises HttpError."""
    fields = check_fields(TranslationFields, await read_fields(request))
    check_number_of_texts(fields.texts, settings)
    _check_one_for_each("constraints", fields.constraints, fields.texts)
    constraints = [None if item is None else item.to_constraints() for item in fields.constraints]
    decoding = _build_decoding(fields.beam_size, fields.alternatives)
    if fields.attention:
        _check_number_of_weights(sum(map(len, fields.texts)), fields.alternatives + 1)
    owner = identify_client(request.scope).owner
    glossary = None if fields.glossary is None else await asyncio.to_thread(_find_glossary, fields, glossaries, owner)
    text_request = TextRequest(
        fields.texts,
        fields.source,
        fields.target,
        TextOptions(
            fields.markup,
            split_sentences=fields.split_sentences,
            keep_line_breaks=fields.markup == "none",
            detects_outline=fields.markup == "xml",
            attention=fields.alignment or fields.attention,
            glossary=glossary,
            strict_terms=fields.strict_terms,
        ),
        tuple(sorted(decoding.items())),
        constraints,
    )
    return text_request, Details(fields.alignment, fields.attention)


def _check_one_for_each(name: str, values: Sequence[object], texts: Sequence[object], noun: str = "texts") -> None:
    """Raise HttpError if a field has values, but not one for each text. noun: name of the texts"""
    if values and len(values) != len(texts):
        raise HttpError(400, f"{name}: has {len(values)} items for {len(texts)} {noun}; give a value or null for each one")


def _check_number_of_weights(characters: int, hypotheses: int) -> None:
    """Raise HttpError if so many characters with so many hypotheses have more attention weights than an answer holds."""
    if characters * hypotheses > MAX_WEIGHED_CHARACTERS:
        raise HttpError(
            400,
            f"attention: the texts have {characters:,} characters; with {hypotheses} hypotheses each, weights are given for "
            f"{MAX_WEIGHED_CHARACTERS // hypotheses:,} at most; send fewer texts at a time",
        )


def _find_glossary(fields: TranslationFields, glossaries: GlossaryStore, owner: str) -> Glossary | None:
    """Return the glossary of a request, or None if it has none. Raises HttpError for an unknown id and too many terms."""
    if isinstance(fields.glossary, str):
        return glossaries.get_index(fields.glossary, owner, (fields.source or "", fields.target))
    if fields.glossary is None:
        return None
    entries = [term.to_entry() for term in fields.glossary]
    check_number_of_entries(entries)
    return Glossary(entries, fields.source or "", fields.target)


def _build_decoding(chosen_beam_size: int | None, alternatives: int) -> dict[str, Any]:
    decoding: dict[str, Any] = {}
    if chosen_beam_size is not None:
        decoding |= {"method": "greedy" if chosen_beam_size == 1 else "beam", "beam_size": chosen_beam_size}
    if alternatives:
        beam_size = chosen_beam_size or max(4, alternatives + 1)
        if beam_size <= alternatives:
            raise HttpError(400, f"alternatives: a beam of {beam_size} gives {beam_size - 1} at most; raise beam_size")
        decoding |= {"method": "beam", "beam_size": beam_size, "nbest": alternatives + 1}
    return decoding


def describe_model(model: ServedModel) -> dict[str, Any]:
    """Return the fields of a model: the name of its folder without the path, its pairs of languages, and its card."""
    recipe = model.translator.recipe
    fields = {"name": recipe.name, "pairs": model.pairs, **recipe.card.model_dump()}
    return {**fields, "license": get_license(recipe.card.license, model.translator.metadata) or ""}


def describe_translation(result: ServedTranslation, details: Details) -> ClientTranslation:
    """Return the answer for one text."""
    translation = result.translation
    return ClientTranslation(
        text=translation.text,
        source=result.source,
        status=translation.status,
        segments=tuple(describe_segment(segment, details) for segment in translation.segments),
        confidence=None if result.detected is None else result.detected.confidence,
        alternatives=tuple(translation.alternatives),
    )


def describe_segment(segment: TranslatedSegment, details: Details) -> ClientSegment:
    """Return the answer for a segment: that of its best hypothesis, with the others as its alternatives."""
    translation = segment.translation
    others = () if translation is None or not segment.alternatives else translation.alternatives
    return ClientSegment(
        **_describe_hypothesis(segment.text, translation, details),
        source=segment.source,
        status=segment.status,
        checks=tuple(segment.checks),
        terms=tuple(ClientTerm(use.source, use.entry.targets, use.form) for use in segment.terms),
        unmet_constraints=() if translation is None else translation.unmet_constraints,
        alternatives=tuple(
            ClientHypothesis(**_describe_hypothesis(text, other, details))
            for text, other in zip(segment.alternatives if others else (), others, strict=True)
        ),
    )


def _describe_hypothesis(text: str, translation: Translation | None, details: Details) -> dict[str, Any]:
    """Return the fields of a `ClientHypothesis`: the text with its markup, the score, and the details."""
    fields: dict[str, Any] = {"text": text}
    if translation is None:
        return fields
    fields["score"] = translation.score
    if details.alignment:
        fields["alignment"] = translation.alignment or ()
    if details.attention and translation.attention is not None:
        fields["source_tokens"], fields["tokens"] = translation.source_tokens, translation.tokens
        fields["attention"] = tuple(
            tuple(round(weight, WEIGHT_DIGITS) for weight in row) for row in translation.attention.tolist()
        )
    return fields


def describe_parse(parse: Parse) -> ClientParse:
    """Return the answer for a sentence."""
    return ClientParse(
        words=tuple(parse.words),
        tree=parse.brackets,
        tags=tuple(parse.tags),
        brackets=tuple(ClientBracket(*span) for span in parse.spans),
        score=parse.score,
        status=parse.status,
        repairs=tuple(parse.repairs),
        alternatives=tuple(map(describe_parse, parse.alternatives)),
    )


def list_answer_fields(answer: Any) -> dict[str, Any]:
    """Return what JSON has of an answer, an object of the client. Fields that have their defaults are left out."""
    return {
        item.name: _list_parts(value)
        for item in dataclasses.fields(answer)
        if (value := getattr(answer, item.name)) != item.default
    }


def _list_parts(value: Any) -> Any:
    """Return a value with the fields of the answers and brackets in it. Tuples of numbers stay as they are."""
    if not isinstance(value, tuple) or not value:
        return value
    if isinstance(value[0], ClientBracket):
        return [bracket._asdict() for bracket in value]
    return list(map(list_answer_fields, value)) if dataclasses.is_dataclass(value[0]) else value


async def _stream(service: TranslationService, request: TextRequest, details: Details) -> AsyncIterator[bytes]:
    """Yield an event for each sentence and for each text as it is finished, and one for the end."""
    events: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def translate(index: int) -> None:
        """Put the events of one text into the queue."""

        def on_line(line: str, translation: Translation) -> None:
            """Put the event of a sentence into the queue."""
            events.put_nowait(_write_event("sentence", {"index": index, "source": line, "text": translation.text}))

        one_text = replace(request, texts=request.texts[index : index + 1], constraints=request.constraints[index : index + 1])
        results = await service.translate(one_text, on_line)
        if details.attention:
            answer = await asyncio.to_thread(_write_long, partial(describe_translation, details=details), results[0])
            events.put_nowait(f'event: text\ndata: {{"index": {index}, {answer[1:]}\n\n'.encode())
        else:
            events.put_nowait(
                _write_event("text", {"index": index, **list_answer_fields(describe_translation(results[0], details))})
            )

    async def translate_all() -> None:
        """Translate all texts at the same time, and put None behind the last event."""
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(request.texts)):
                    group.create_task(translate(index))
            events.put_nowait(_write_event("end", {"count": len(request.texts)}))
        except ExceptionGroup as errors:
            error = to_http_error(errors.exceptions[0])
            if error.status == 500:  # the answer has begun, so the guard before the routes does not see the error
                logger.error("request failed", exc_info=errors.exceptions[0])
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
